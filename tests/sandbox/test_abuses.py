"""Each abuse is contained, as seen in what it reports and in what becomes of the world."""

from __future__ import annotations

import pytest

from colocate.sandbox.run import run_python
from tests.sandbox.abuse import Abuse, Outside
from tests.sandbox.escapes import ESCAPES
from tests.sandbox.resource_abuses import RESOURCE_ABUSES

pytestmark = pytest.mark.usefixtures("namespaces_allowed")


@pytest.mark.parametrize(
    "abuse", [pytest.param(abuse, id=abuse.name) for abuse in (*RESOURCE_ABUSES, *ESCAPES)]
)
async def test_is_contained(abuse: Abuse, nothing_left: None, outside: Outside) -> None:
    result = await run_python(
        outside.as_code() + abuse.code,
        limits=abuse.sandbox_limits(),
        stdin=abuse.stdin,
        collect=abuse.collect,
    )
    abuse.check(result, outside)
