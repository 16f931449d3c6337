"""One trainer rank in a process of its own, which trains with and without offloading in between.

``python offload_cycles.py MODEL FOLDER RESULT`` writes, for each case, what differed, as JSON.
Many engines one after another in one process take a fraction of the time of as many ranks.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {
    "DS_ACCELERATOR": "cpu",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    # The model is so small that a second thread costs more than it brings.
    "OMP_NUM_THREADS": "1",
}

import deepspeed
import deepspeed.ops
import torch
from deepspeed_support import (
    ALGORITHM,
    OFFLOAD_CASES,
    SEED,
    STEPS,
    TEMPERATURE,
    make_batch,
    trainer_config,
)

from colocate.adapters.deepspeed.engine import TrainingEngine, load_scorer
from colocate.adapters.deepspeed.moves import FrozenReference, flat
from colocate.adapters.deepspeed.residency import Residency
from colocate.adapters.deepspeed.step import StepSettings, admit, train_step
from colocate.core.types import TRAINER_PARTS, Part

CPU = torch.device("cpu")

LARGE_BYTES = 2048
"""Of a tensor that must be accounted for."""


class Rank:
    """What ``Worker`` holds of one rank, without the socket."""

    def __init__(self, model: str, case: str) -> None:
        stage, dtype, options = OFFLOAD_CASES[case]
        # Micro-batches of a few trajectories: gradients are accumulated over several.
        trainer = trainer_config(stage, 1, 100, options)

        def scorer():
            return load_scorer(model, trainer, dtype=dtype, temperature=TEMPERATURE, device=CPU)

        self.engine = TrainingEngine(scorer(), trainer, dtype=dtype, device=CPU)
        self.reference = scorer().requires_grad_(False)
        self.residency = Residency(
            self.engine.state, FrozenReference(self.reference, device=CPU), device=CPU
        )
        self._settings = StepSettings(
            trainer=trainer, algorithm=ALGORITHM, steps=STEPS, seed=SEED, rank=0, device=CPU
        )

    def step(self, version: int) -> float:
        batch = admit(make_batch(version), version=version, algorithm=ALGORITHM)
        metrics = train_step(self.engine, self.reference, batch, settings=self._settings)
        return metrics["loss"]

    def weights(self) -> dict[str, torch.Tensor]:
        return {
            name: self.engine.full_parameter(parameter).clone()
            for name, parameter in self.engine.named_parameters()
        }

    def keys(self) -> tuple[list[str], list[str]]:
        engine = self.engine.deepspeed
        names = [str(key) for key in engine.optimizer.state_dict()]
        moments = [sorted(state) for state in engine.basic_optimizer.state.values()]
        return list(engine.module.state_dict()), [*names, *map(str, moments)]

    def unaccounted(self, others: set[int]) -> list[str]:
        """Large tensors of this process that no part counts. ZeRO 3 gathers parameters beside."""
        known = addresses([self.engine.state.tensors(), list(self.reference.parameters())])
        known |= addresses(list(self.engine.deepspeed.module.parameters()))
        return [
            f"{tensor.dtype} {tuple(tensor.shape)}"
            for tensor in large_tensors()
            if tensor.untyped_storage().data_ptr() not in known | others
        ]


def addresses(value: object) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in flat(value)}


def large_tensors() -> list[torch.Tensor]:
    gc.collect()
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    return [t for t in tensors if t.device == CPU and t.untyped_storage().nbytes() >= LARGE_BYTES]


def plans() -> Iterator[list[list[frozenset[Part]]]]:
    """What is offloaded between one training step and the next: cycles, each of several calls."""
    singles = [frozenset({part}) for part in sorted(TRAINER_PARTS - {Part.REFERENCE})]
    yield [[TRAINER_PARTS - {Part.PARAMETERS}, frozenset({Part.PARAMETERS})]]
    yield [list(order) for order in itertools.permutations(singles)]
    yield [[TRAINER_PARTS, TRAINER_PARTS], [frozenset({Part.OPTIMIZER}), TRAINER_PARTS]]


def compare(model: str, case: str) -> dict[str, Any]:
    """The same steps with and without cycles in between."""
    steps = range(len(list(plans())) + 2)
    others = addresses(large_tensors())
    plain = Rank(model, case)
    losses: list[float] = []
    weights: list[dict[str, torch.Tensor]] = []
    for version in steps:
        losses.append(plain.step(version))
        if version == 0:
            unaccounted = plain.unaccounted(others)
        weights.append(plain.weights())
    plain.engine.deepspeed.destroy()
    del plain

    rank = Rank(model, case)
    result: dict[str, Any] = {"losses": losses, "cycled_losses": [], "differ": [], "moved": []}
    between = iter(plans())
    gc.collect()
    gc.freeze()
    for version in steps:
        result["cycled_losses"].append(rank.step(version))
        now = rank.weights()
        result["differ"] += [
            f"{name} after step {version}"
            for name, value in now.items()
            if not torch.equal(value, weights[version][name])
        ]
        held, keys = rank.residency.holdings(), rank.keys()
        for cycle in next(between, []):
            for parts in cycle:
                rank.residency.offload(parts)
            if any(not torch.equal(v, now[n]) for n, v in rank.weights().items()):
                result["differ"].append(f"weights as published after {cycle}")
            rank.residency.load()
            if (rank.residency.holdings(), rank.keys()) != (held, keys):
                result["moved"].append(f"after {cycle}")
    result |= {"parts": held.device, "unaccounted": unaccounted}
    gc.unfreeze()
    rank.engine.deepspeed.destroy()
    return result


def main() -> None:
    model, folder, results = sys.argv[1:]
    deepspeed.ops.__compatible_ops__ = {}
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1
    )
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    Path(results).write_text(json.dumps({case: compare(model, case) for case in OFFLOAD_CASES}))


if __name__ == "__main__":
    main()
