"""Rules of the simulated world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from colocate.preflight.table import rule
from colocate.problems import Problem

_DISTRIBUTIONS = (
    "sim.environment.reset",
    "sim.environment.step",
    "sim.episode.prompt_tokens",
    "sim.episode.turn_tokens",
    "sim.episode.observation_tokens",
    "sim.episode.turns",
    "sim.episode.reward",
)


def _values_go_with_empirical(path: str) -> None:
    @rule(f"{path}.kind", f"{path}.values")
    def _empirical_has_values(kind: str, values: Sequence[float]) -> Iterator[Problem]:
        if kind == "empirical" and not values:
            yield Problem(
                field=f"{path}.values",
                value=list(values),
                rule=f"must hold at least one number with {path}.kind=empirical",
                remedy=f"give what was measured, as {path}.values=[0.2,0.5,3.1], or another kind",
            )
        if kind != "empirical" and values:
            yield Problem(
                field=f"{path}.values",
                value=list(values),
                rule=f"must be empty with {path}.kind={kind}, which would not read it",
                remedy=f"set {path}.kind=empirical, or leave the values out",
            )


for _path in _DISTRIBUTIONS:
    _values_go_with_empirical(_path)


@rule("sim.from_run")
def _from_run_is_a_finished_run(from_run: str | None) -> Iterator[Problem]:
    if from_run is None:
        return
    missing = [
        name
        for name in ("events.jsonl", "summary.json", ".hydra/config.yaml")
        if not (Path(from_run) / name).is_file()
    ]
    if missing:
        yield Problem(
            field="sim.from_run",
            value=from_run,
            rule=f"must be the folder of a run that has ended; it lacks {', '.join(missing)}",
            remedy="give the folder that `colocate train` printed at its end",
        )


@rule("sim.engine.kv_token_bytes", "inference.kv_cache_memory_bytes", "inference.max_model_len")
def _a_context_fits_the_cache(
    kv_token_bytes: int, kv_cache_memory_bytes: int, max_model_len: int
) -> Iterator[Problem]:
    if kv_token_bytes * max_model_len > kv_cache_memory_bytes:
        most = kv_cache_memory_bytes // kv_token_bytes
        yield Problem(
            field="sim.engine.kv_token_bytes",
            value=kv_token_bytes,
            rule=f"times inference.max_model_len = {max_model_len} must be at most "
            f"inference.kv_cache_memory_bytes = {kv_cache_memory_bytes}, or the longest context "
            "could never run",
            remedy=f"set inference.max_model_len={most}, or raise inference.kv_cache_memory_bytes",
        )


@rule("sim.memory")
def _each_side_fits_the_device(memory: dict[str, int | None]) -> Iterator[Problem]:
    total = memory["device_bytes"]
    if total is None:
        return
    sides = {
        "engine": ("weights_bytes", "kv_bytes", "engine_residual_bytes", "trainer_residual_bytes"),
        "trainer": (
            "parameters_bytes",
            "gradients_bytes",
            "optimizer_bytes",
            "activations_bytes",
            "trainer_residual_bytes",
            "engine_residual_bytes",
        ),
    }
    for side, names in sides.items():
        needed = sum(memory[name] or 0 for name in names)
        if needed > total:
            yield Problem(
                field="sim.memory.device_bytes",
                value=total,
                rule=f"must hold at least the {side} alone, which needs {needed} "
                f"({' + '.join(names)})",
                remedy=f"raise sim.memory.device_bytes to {needed} or more, or null to measure "
                "nothing",
            )
