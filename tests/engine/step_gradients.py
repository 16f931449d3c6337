"""Trainer ranks that take the same optimizer step in many ways, and write down its gradient.

``python step_gradients.py MODEL RENDEZVOUS RESULT RANK NUM_RANKS``. All stages, and all ways to
split, one after another in one set of processes: starting ranks takes far longer than a step.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import sys
from pathlib import Path

os.environ |= {
    "DS_ACCELERATOR": "cpu",
    "RANK": sys.argv[4],
    "LOCAL_RANK": sys.argv[4],
    "WORLD_SIZE": sys.argv[5],
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}

import deepspeed
import deepspeed.ops
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad
from deepspeed_support import SEED, STEPS, TEMPERATURE, make_batch

from colocate.adapters.deepspeed.engine import TrainingEngine, load_scorer
from colocate.adapters.deepspeed.step import StepSettings, admit, train_step
from colocate.config import AlgorithmConfig, TrainerConfig
from colocate.ports import TrainingBatch

MODEL, RENDEZVOUS, RESULT, RANK, NUM_RANKS = sys.argv[1:]
CPU = torch.device("cpu")
ALGORITHM = AlgorithmConfig(
    group_size=4, groups_per_step=2, aggregation="token_mean", entropy_coef=0.05
)
BATCH = make_batch(0, groups=2, size=4)
BUDGETS = {1: (10**6, 60, 45, 1), 2: (10**6, 45, 1)}
"""Tokens of a micro-batch, by number of ranks: for one accumulation step, for some, for most."""

TINY = 1e-30
"""A learning rate that moves no float32 weight, so that every step begins with the same."""


class WatchedEngine(TrainingEngine):
    """Keeps each gradient that a step is taken with."""

    gradient: torch.Tensor

    def step(self, learning_rate: float) -> float:
        parts = [safe_get_full_grad(parameter) for _, parameter in self.named_parameters()]
        self.gradient = torch.cat([part.reshape(-1) for part in parts]).clone()
        return super().step(learning_rate)


def make_engine(
    stage: int, *, lean: bool, dtype: str = "float32"
) -> tuple[WatchedEngine, TrainerConfig]:
    """``lean``: logits by chunks of three rows, and layers computed again."""
    trainer = TrainerConfig(
        zero_stage=stage,
        num_ranks=int(NUM_RANKS),
        gradient_checkpointing=lean,
        learning_rate=TINY,
        max_grad_norm=1e6,
    )
    scorer = load_scorer(MODEL, trainer, dtype=dtype, temperature=TEMPERATURE, device=CPU)
    if lean:
        scorer.max_chunk_elements = 60
    return WatchedEngine(scorer, trainer, dtype=dtype, device=CPU), trainer


def shuffled(batch: TrainingBatch, seed: int) -> TrainingBatch:
    samples = list(batch.samples)
    random.Random(seed).shuffle(samples)
    return dataclasses.replace(batch, samples=samples)


def gradients() -> dict[str, tuple[int, torch.Tensor]]:
    """Micro-batches of a rank, and the gradient (P,), of each way to take the step."""
    found = {}
    for stage, lean in itertools.product(range(4), (False, True)):
        engine, trainer = make_engine(stage, lean=lean)
        for packed, budget in itertools.product((False, True), BUDGETS[int(NUM_RANKS)]):
            engine.deepspeed.module.packed = packed
            settings = StepSettings(
                trainer=trainer.model_copy(update={"micro_batch_tokens": budget}),
                algorithm=ALGORITHM,
                steps=STEPS,
                seed=SEED,
                rank=int(RANK),
                device=CPU,
            )
            # In an order of its own, which also gives each rank other members of the groups.
            batch = shuffled(BATCH, seed=len(found))
            admitted = admit(batch, version=0, algorithm=ALGORITHM)
            metrics = train_step(engine, None, admitted, settings=settings)
            way = f"zero{stage} ranks{NUM_RANKS} lean={lean} packed={packed} budget={budget}"
            found[way] = (int(metrics["micro_batches"]), engine.gradient)
        engine.deepspeed.destroy()
    return found


def masters(stage: int, rate: float, steps: int) -> list[torch.Tensor]:
    """Master weights, in full, before each of some bfloat16 steps and after the last."""
    engine, trainer = make_engine(stage, lean=False, dtype="bfloat16")
    settings = StepSettings(
        trainer=trainer.model_copy(update={"learning_rate": rate}),
        algorithm=ALGORITHM,
        steps=STEPS,
        seed=SEED,
        rank=int(RANK),
        device=CPU,
    )

    def whole() -> torch.Tensor:
        parts = [safe_get_full_fp32_param(p) for _, p in engine.named_parameters()]
        return torch.cat([part.reshape(-1) for part in parts]).clone()

    found = [whole()]
    for version in range(steps):
        batch = dataclasses.replace(BATCH, version=version)
        admitted = admit(batch, version=version, algorithm=ALGORITHM)
        train_step(engine, None, admitted, settings=settings)
        found.append(whole())
    published = [engine.full_parameter(p).reshape(-1) for _, p in engine.named_parameters()]
    engine.deepspeed.destroy()
    return [*found, torch.cat(published).clone()]


def main() -> None:
    deepspeed.ops.__compatible_ops__ = {}
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{RENDEZVOUS}", rank=int(RANK), world_size=int(NUM_RANKS)
    )
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    result = {"gradients": gradients()}
    if NUM_RANKS == "2":
        result["masters"] = {stage: masters(stage, rate=2e-5, steps=8) for stage in (1, 2, 3)}
    if RANK == "0":
        torch.save(result, Path(RESULT))


if __name__ == "__main__":
    main()
