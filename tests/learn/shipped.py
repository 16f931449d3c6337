"""The algorithms in ``conf/algorithm``, as a run gets them."""

from __future__ import annotations

import functools

from colocate.cli.compose import config_folder, plan_jobs
from colocate.cli.train import parse
from colocate.config import AlgorithmConfig
from colocate.preflight import validate

SHIPPED = sorted(path.stem for path in (config_folder() / "algorithm").glob("*.yaml"))

GIVEN = (
    "steps=1",
    "device=cpu",
    "model=embedded",
    "data=digits",
    "environment=digits",
    "inference.kv_cache_memory_bytes=1000000",
    "inference.max_model_len=64",
    "rollout.max_new_tokens=6",
    "rollout.max_turns=2",
)


@functools.cache
def shipped(name: str, *overrides: str) -> AlgorithmConfig:
    """With what only a user can give: 6 tokens a turn, 2 turns."""
    (job,) = plan_jobs(parse([*GIVEN, f"algorithm={name}", *overrides])).jobs
    return validate(job.tree).algorithm
