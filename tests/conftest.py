"""For all tests.

``HYPOTHESIS_PROFILE=nightly launch/test.sh tests/core`` searches longer. ``COLOCATE_TEST_UNTIL``
(seconds since the epoch; ``launch/test.sh`` makes it of ``COLOCATE_TEST_MINUTES``) is when no test
is begun any more: what is left then is reported as skipped, with this reason.
"""

from __future__ import annotations

import gc
import os
import time

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("normal", max_examples=60, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("nightly", settings.get_profile("normal"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "normal"))

# Torch, transformers and vLLM leave millions of live objects; a full collection walks them all.
gc.set_threshold(50_000, 20, 100)

_UNTIL = float(os.environ.get("COLOCATE_TEST_UNTIL", "inf"))


def pytest_runtest_setup() -> None:
    if time.time() > _UNTIL:
        pytest.skip("not run: the time that COLOCATE_TEST_MINUTES gives is used up")
