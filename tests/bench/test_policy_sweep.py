"""What a comparison of swap policies says of real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colocate.core.actions import Action, SubmitRequest
from colocate.core.events import PhaseEnded, RequestEnded
from colocate.core.phases import Phase
from colocate.core.types import FinishReason, TrajectoryId
from colocate.journal import Entry, JournalWriter
from colocate.report.sweep_jobs import SweepJob
from tools.policy_bench.busy import engine_busy_s
from tools.policy_bench.sweep import UnfitSweepError, best_interval, figures, repetitions


def submitted(request: str) -> Action:
    return SubmitRequest(trajectory=TrajectoryId(0), request=request)


def ended(time_s: float, request: str) -> RequestEnded:
    return RequestEnded(
        time_s=time_s,
        trajectory=TrajectoryId(0),
        attempt=0,
        request=request,
        finish_reason=FinishReason.STOP,
        spans=(),
        num_cached_tokens=0,
        base="",
        digest="",
    )


def beginning(time_s: float) -> PhaseEnded:
    return PhaseEnded(time_s=time_s, phase=Phase.STARTING)


def test_requests_that_overlap_keep_the_engine_busy_once() -> None:
    entries = [
        Entry(0, beginning(2.0), (submitted("a"),)),
        Entry(1, ended(3.0, "unknown"), (submitted("b"),)),
        Entry(2, ended(5.0, "a"), ()),
        Entry(3, ended(6.5, "b"), ()),
        Entry(4, ended(9.0, "late"), (submitted("c"),)),
        Entry(5, ended(9.25, "c"), ()),
        Entry(6, ended(20.0, "late"), ()),
    ]
    assert engine_busy_s(entries) == pytest.approx((6.5 - 2.0) + 0.25)


def job(folder: Path, policy: str, seed: int, *, trained: int, is_real: bool = False) -> SweepJob:
    name = f"{policy}-{seed}"
    (folder / name).mkdir()
    journal = JournalWriter(folder / name / "events.jsonl")
    journal.write(beginning(1.0), [submitted("a")])
    journal.write(ended(5.0, "a"), [])
    journal.close()
    phase_s = dict.fromkeys(Phase, 0.0) | {Phase.STARTING: 1.0, Phase.ROLLOUT: 7.0}
    summary: dict[str, Any] = {
        "phase_s": phase_s | {Phase.TRAINING: 2.0, Phase.PUBLISHING: 1.0, Phase.CLOSING: 3.0},
        "environment": {"hidden_s": 1.0, "busy_s": 4.0},
        "trajectories": {"trained": trained, "expired": 0, "admitted": 100},
        "staleness": {"mean_trained_lag": 0.5, "max_trained_lag": 1},
        "swaps": 3,
        "simulation": {},
    }
    if is_real:
        del summary["simulation"]
    return SweepJob(
        name=name,
        overrides={"scheduler": policy, "seed": str(seed)},
        status="completed",
        policy=policy,
        summary=summary,
    )


TRAINED = {
    ("interval", 0): 40,
    ("interval_2", 0): 60,
    ("drain", 0): 20,
    ("adaptive", 0): 66,
    # The machine is half as fast in this repetition, and nothing else is different.
    ("interval", 1): 20,
    ("interval_2", 1): 30,
    ("drain", 1): 10,
    ("adaptive", 1): 33,
}


def test_ratios_are_made_within_a_repetition(tmp_path: Path) -> None:
    jobs = [job(tmp_path, *key, trained=trained) for key, trained in TRAINED.items()]
    rounds = repetitions(tmp_path, jobs)
    assert [each.seed for each in rounds] == ["0", "1"]
    assert best_interval(rounds) == "interval_2"
    found = figures(rounds)
    assert found["adaptive"].to_drain.mean == pytest.approx(3.3)
    assert found["adaptive"].to_drain.half_width == pytest.approx(0.0, abs=1e-9)
    assert found["adaptive"].to_best.mean == pytest.approx(1.1)
    assert found["interval"].to_best.mean == pytest.approx(2 / 3)
    throughput = found["drain"].measures["throughput"]
    assert throughput is not None
    assert throughput.mean == pytest.approx((20 / 10 + 10 / 10) / 2)
    busy = found["drain"].measures["busy"]
    assert busy is not None
    assert busy.mean == pytest.approx((4.0 + 2.0) / 10.0)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"status": "failed"}, "did not complete: drain-0"),
        ({"overrides": {"scheduler": "drain", "seed": "2"}}, "the same policies"),
        ({"overrides": {"scheduler": "interval", "seed": "0"}}, "two jobs"),
    ],
)
def test_what_is_no_comparison_is_refused(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    jobs = [job(tmp_path, *key, trained=trained) for key, trained in TRAINED.items()]
    at = next(i for i, each in enumerate(jobs) if each.name == "drain-0")
    fields = {name: getattr(jobs[at], name) for name in SweepJob.__dataclass_fields__}
    jobs[at] = SweepJob(**{**fields, **changed})
    with pytest.raises(UnfitSweepError, match=says):
        repetitions(tmp_path, jobs)


def test_a_real_run_is_judged_by_the_latency_that_it_was_configured_with(tmp_path: Path) -> None:
    jobs = [job(tmp_path, *key, trained=1, is_real=True) for key in TRAINED]
    with pytest.raises(UnfitSweepError, match=r"lacks \.hydra/config\.yaml"):
        repetitions(tmp_path, jobs)
