"""What lies in the folders of runs and of multiruns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from colocate.report.transcripts import TrajectorySample, Turn


def sample(step: int) -> TrajectorySample:
    return TrajectorySample(
        step=step,
        trajectory=step,
        group=0,
        reward=0.5,
        ending="trained",
        turns=[Turn("prompt", "0-9?\n"), Turn("agent", "<script>alert(1)</script>\x1b[2J")],
        token_ids=[1, 2],
        logprobs=[0.0, -0.5],
        versions=[-1, step],
        loss_mask=[0, 1],
    )


def rows(rewards: list[float], per_step: int = 10) -> list[dict[str, Any]]:
    return [
        {"step": step, "time_s": 2.0 * step, "reward_mean": reward, "num_sequences": per_step}
        for step, reward in enumerate(rewards, start=1)
    ]


def write_job(folder: Path, summary: dict[str, Any], bound: int, seed: int) -> None:
    (folder / ".hydra").mkdir(parents=True)
    overrides = ["+experiment=quickstart", f"buffer.max_staleness={bound}", f"seed={seed}"]
    (folder / ".hydra" / "overrides.yaml").write_text(json.dumps(overrides))
    (folder / ".hydra" / "config.yaml").write_text("scheduler: {policy: adaptive}")
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = rows([0.1 * bound + 0.01 * seed + 0.02 * step for step in range(12)])
    if seed:
        del lines[0]["reward_mean"]  # it trained nothing but replays
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
