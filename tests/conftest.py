"""For all tests.

``HYPOTHESIS_PROFILE=nightly launch/test.sh tests/core`` searches longer, and at random.
``COLOCATE_TEST_UNTIL`` (seconds since the epoch; ``launch/test.sh`` makes it of
``COLOCATE_TEST_MINUTES``) is when no test is begun any more: what is left then is reported as
skipped, with this reason. The one that runs then is ended if it takes very long.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

# The same examples each time, so that a change is judged by what it changes; a search is random.
settings.register_profile(
    "normal", max_examples=60, deadline=None, suppress_health_check=_SLOW, derandomize=True
)
settings.register_profile(
    "nightly", settings.get_profile("normal"), max_examples=20_000, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "normal"))

# Torch, transformers and vLLM leave millions of live objects; a full collection walks them all.
gc.set_threshold(50_000, 20, 100)

_UNTIL = float(os.environ.get("COLOCATE_TEST_UNTIL", "inf"))
_LAST_TEST_S = 35 * 60


@pytest.hookimpl(wrapper=True, tryfirst=True)  # pytest-timeout's is a wrapper, and reads the mark
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ends a test that would run on long after the time for tests is up."""
    marker = item.get_closest_marker("timeout")
    limit_s = marker.args[0] if marker else float(item.config.getini("timeout"))
    left_s = max(_UNTIL + _LAST_TEST_S - time.time(), 1.0)
    if left_s < limit_s:
        item.add_marker(pytest.mark.timeout(left_s), append=False)
    return (yield)


def pytest_runtest_setup() -> None:
    if time.time() > _UNTIL:
        pytest.skip("not run: the time that COLOCATE_TEST_MINUTES gives is used up")
