"""The last words of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from colocate.core.memory import MemoryLedger
from colocate.core.types import MemorySample
from colocate.report.ending import render_ending, run_facts


def shown(summary: dict[str, Any], run_dir: Path, width: int = 100, **texts: str) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(render_ending(summary, run_dir, **texts))
    return capture.get()


def test_a_completed_run_is_told_in_words(summary: dict[str, Any], run_dir: Path) -> None:
    text = shown(summary, run_dir, before="agent  9", after="agent  4")
    for told in (
        "Done: 12 training steps in 1:33.",
        "from 0.070 to 0.550 (best 0.610)",
        "420 begun: 384 trained, 5 expired, 31 resident",
        "44 trajectories crossed a swap unfinished, with 321 tokens",
        "90% of the trained tokens were fresh; the oldest lagged by 1 (bound 2)",
        "25% of their time went by during swaps and training",
        "270 of 600 MiB kept while asleep",
        str(run_dir),
        "metrics.jsonl",
    ):
        assert told in text
    assert text.index("Before training") < text.index("agent  9") < text.index("agent  4")


def test_only_what_the_folder_holds_is_listed(summary: dict[str, Any], run_dir: Path) -> None:
    assert "checkpoints" not in shown(summary, run_dir)
    (run_dir / "checkpoints").mkdir()
    assert "checkpoints" in shown(summary, run_dir)


def test_a_failure_comes_with_its_cause(summary: dict[str, Any], run_dir: Path) -> None:
    text = shown({**summary, "status": "failed", "error": "rank 1 ended [status 9]"}, run_dir)
    assert "Failed: 12 training steps" in text
    assert "rank 1 ended [status 9]" in text


def test_a_failure_comes_with_the_ledger_and_a_warning_is_repeated_at_the_end(
    summary: dict[str, Any], run_dir: Path
) -> None:
    ledger = MemoryLedger()
    ledger.observe(MemorySample(used=3 << 20, total=9 << 20, tenants={"engine": 2 << 20}))
    memory = {**summary["memory"], "ledger": ledger.table()}
    failed = {**summary, "status": "failed", "error": "stuck", "memory": memory}
    text = shown({**failed, "warnings": ["the engine asleep grows"]}, run_dir)
    assert "Memory ledger" in text
    assert "of which engine" in text
    assert "Warning: the engine asleep grows" in text
    assert "Memory ledger" not in shown({**failed, "status": "completed"}, run_dir)


def test_a_stopped_run_promises_a_checkpoint_only_where_there_is_one(
    summary: dict[str, Any], run_dir: Path
) -> None:
    stopped = {**summary, "status": "stopped"}
    assert "checkpoint" not in shown(stopped, run_dir)
    (run_dir / "checkpoints").mkdir()
    assert f"  resume=auto hydra.run.dir={run_dir}" in shown(stopped, run_dir, width=300)


def test_a_long_run_is_measured_by_its_last_steps_together(
    summary: dict[str, Any], run_dir: Path
) -> None:
    with (run_dir / "metrics.jsonl").open("w") as metrics:
        metrics.writelines(
            f'{{"step": {step}, "reward_mean": {0.4 if step < 20 else 0.9}}}\n'
            for step in range(1, 21)
        )
    text = shown({**summary, "steps": 20}, run_dir)
    assert "from 0.070 to 0.450 (mean of the last 10 steps; best 0.610)" in text


def test_a_transcript_is_shown_once_and_a_resumed_run_did_not_begin_untrained(
    summary: dict[str, Any], run_dir: Path
) -> None:
    text = shown({**summary, "steps": 1}, run_dir, before="agent  9", after="agent  9")
    assert "Done: 1 training step in" in text
    assert "When it went on" in text
    assert "After training" not in text


def test_a_run_that_trained_nothing_has_an_ending_too(
    summary: dict[str, Any], run_dir: Path
) -> None:
    bare = {
        **summary,
        "status": "failed",
        "error": "no memory",
        "steps": 0,
        "swaps": 0,
        "phase_s": dict.fromkeys(summary["phase_s"], 0.0),
        "trajectories": dict.fromkeys(summary["trajectories"], 0),
        "staleness": {"bound": 1, "max_trained_lag": None, "histogram": {}},
        "environment": {"steps": 0, "busy_s": 0.0, "hidden_s": 0.0, "failures": 0},
        "reward": {"first": None, "last": None, "best": None},
        "memory": {**dict.fromkeys(summary["memory"]), "ledger": MemoryLedger().table()},
    }
    text = shown(bare, run_dir)
    assert "no memory" in text
    assert str(run_dir) in text
    assert "begun" not in text
    begun = {**bare, "trajectories": {**bare["trajectories"], "admitted": 3}}
    text = shown(begun, run_dir)
    assert "mean reward" not in text
    assert "nothing trained (bound 1)" in text
    assert "3 begun: none ended" in text


@pytest.mark.parametrize("width", [60, 80])
def test_the_ending_fits_the_terminal(summary: dict[str, Any], run_dir: Path, width: int) -> None:
    lines = shown(summary, run_dir, width).splitlines()
    assert max(map(len, lines)) <= width
    assert shown(summary, run_dir, width).isascii()


def test_the_mismatch_is_told_with_its_figures(summary: dict[str, Any], run_dir: Path) -> None:
    text = shown(summary, run_dir, width=400)
    assert (
        "differ by 1.0e-06 in the mean, 1.0e-05 at most; perplexity 3.25 and 3.25, k3 KL 0.0e+00, "
        "effective sample size 100%"
    ) in text


def test_a_run_that_compared_no_token_says_nothing_of_a_mismatch(
    summary: dict[str, Any], run_dir: Path
) -> None:
    nothing = dict.fromkeys(summary["mismatch"])
    assert "mismatch" not in shown({**summary, "mismatch": nothing}, run_dir)


def test_a_resumed_run_says_what_it_took_up_and_what_could_not_go_on(
    summary: dict[str, Any],
) -> None:
    assert "resumed with" not in dict(run_facts(summary, []))
    reason = "its environment cannot be replayed (is_replayable is not True)"
    resumed = {
        "finished": 7,
        "partials": 5,
        "begun": 0,
        "tokens": 1234,
        "continued": 3,
        "restarted": 2,
        "given_up": 0,
        "discarded_tokens": 80,
        "reasons": {reason: 2},
    }
    text = dict(run_facts({**summary, "resumed": resumed}, []))["resumed with"]
    assert "7 finished and 5 partial" in text
    assert "1,234 tokens" in text
    assert f"2 began again (most often: {reason})" in text
