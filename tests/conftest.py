"""Hypothesis profiles: ``HYPOTHESIS_PROFILE=nightly launch/test.sh tests/core`` searches longer."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("normal", max_examples=60, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("nightly", settings.get_profile("normal"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "normal"))
