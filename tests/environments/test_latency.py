"""Latency on top of an environment's steps: drawn from the seed, capped, replayed from a trace."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.adapters.environments.latency import (
    DelayedEnvironment,
    LognormalLatency,
    TraceLatency,
    make_latency,
)
from colocate.config import LatencyConfig
from colocate.embedded.digits import DigitSearch
from colocate.ports import Environment, Prompt


@given(seed=st.integers(), step=st.integers(min_value=0))
def test_a_delay_depends_on_seed_and_step_alone(seed: int, step: int) -> None:
    for make in (
        lambda: LognormalLatency(0.05, 1.0, 60.0),
        lambda: TraceLatency([0.1, 0.2, 0.3], 60.0),
    ):
        assert make().delay_s(seed, step) == make().delay_s(seed, step)


def test_lognormal_delays_have_the_median_and_the_tail_asked_for() -> None:
    latency = LognormalLatency(median_s=0.05, sigma=1.0, cap_s=60.0)
    delays = [latency.delay_s(seed, step) for seed in range(2000) for step in range(2)]
    assert statistics.median(delays) == pytest.approx(0.05, rel=0.1)
    # A standard lognormal exceeds its median e^2-fold in 2.3 % of the draws.
    assert sum(d > 0.05 * 7.389 for d in delays) / len(delays) == pytest.approx(0.023, abs=0.01)


@given(st.floats(0.001, 10), st.floats(0, 1e6), st.integers(0, 1000))
def test_no_delay_exceeds_the_cap(median_s: float, sigma: float, seed: int) -> None:
    assert 0 <= LognormalLatency(median_s, sigma, cap_s=0.2).delay_s(seed, 0) <= 0.2
    assert TraceLatency([5.0], cap_s=0.2).delay_s(seed, 0) == 0.2


def test_a_trace_is_read_on_from_step_to_step(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("0.1\n0.2\n\n0.3\n")
    latency = make_latency(LatencyConfig(kind="trace", trace=str(path)))
    assert latency is not None
    ring = [0.1, 0.2, 0.3]
    starts = set()
    for seed in range(20):
        delays = [latency.delay_s(seed, step) for step in range(6)]
        start = ring.index(delays[0])
        starts.add(start)
        assert delays == [ring[(start + step) % 3] for step in range(6)]
    assert starts == {0, 1, 2}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "holds no latency"),
        ("0.1\nfast\n", "line 2: 'fast' is no latency"),
        ("-1\n", "line 1: '-1'"),
        ("nan\n", "line 1: 'nan'"),
        (None, "cannot be read"),
    ],
)
def test_a_trace_that_is_none_is_refused(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "trace.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=reason):
        make_latency(LatencyConfig(kind="trace", trace=str(path)))


def test_a_trace_without_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"environment\.latency\.trace must name a file"):
        make_latency(LatencyConfig(kind="trace"))
    assert make_latency(LatencyConfig(kind="off")) is None


async def test_a_delayed_environment_answers_as_the_one_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def note(delay_s: float) -> None:
        slept.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", note)
    latency = LognormalLatency(0.05, 1.0, 60.0)
    plain, delayed = DigitSearch(), DelayedEnvironment(DigitSearch(), latency)
    assert isinstance(delayed, Environment)
    prompt = Prompt(text="", columns={"secret": 7})
    assert await delayed.reset(prompt, seed=3) == await plain.reset(prompt, seed=3)
    for action in ("4\n", "x\n", "7\n"):
        assert await delayed.step(action) == await plain.step(action)
    await delayed.close()
    assert slept == [latency.delay_s(3, step) for step in range(3)]
