"""A training step written out plainly, and batches for it: what DeepSpeed ranks must agree with."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import AutoModelForCausalLM

from colocate.adapters.checksum import tensor_checksum
from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.config import AlgorithmConfig, KlConfig, LoraConfig, TrainerConfig
from colocate.core.types import Part
from colocate.learn.advantages import compute_advantages
from colocate.learn.batches import make_rows, plan_minibatches
from colocate.ports import StepReport, TrainingBatch, TrainingSample

STEPS = 10
SEED = 5
TEMPERATURE = 0.8
VOCABULARY = 18

ALGORITHM = AlgorithmConfig(
    group_size=3,
    groups_per_step=3,
    aggregation="token_mean",
    entropy_coef=0.05,
    kl=KlConfig(coef=0.1),
)


OPTIMIZER_ON_HOST = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}

OFFLOAD_CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "zero0-float32": (0, "float32", {}),
    "zero1-float32": (1, "float32", {}),
    "zero1-bfloat16": (1, "bfloat16", {}),
    "zero2-bfloat16": (2, "bfloat16", {}),
    "zero2-bfloat16-optimizer-on-host": (2, "bfloat16", OPTIMIZER_ON_HOST),
    "zero3-float32": (3, "float32", {}),
    "zero3-bfloat16": (3, "bfloat16", {}),
    "zero3-bfloat16-optimizer-on-host": (3, "bfloat16", OPTIMIZER_ON_HOST),
}
"""ZeRO stage, type and DeepSpeed options of what ``offload_cycles`` trains."""


def trainer_config(
    zero_stage: int,
    num_ranks: int,
    micro_batch_tokens: int,
    deepspeed: dict[str, Any] | None = None,
) -> TrainerConfig:
    return TrainerConfig(
        zero_stage=zero_stage,
        num_ranks=num_ranks,
        micro_batch_tokens=micro_batch_tokens,
        num_minibatches=2,
        learning_rate=5e-3,
        warmup_steps=1,
        schedule="linear",
        betas=(0.9, 0.95),
        # Wide enough that rounding in a gradient near zero does not turn a step around.
        eps=1e-4,
        weight_decay=0.1,
        max_grad_norm=0.3,
        publish_bucket_bytes=200_000,
        deepspeed=deepspeed or {},
    )


def make_batch(version: int, *, groups: int = 3, size: int = 3, lag: int = 0) -> TrainingBatch:
    """Two-turn trajectories of unequal lengths, with behaviour log-probabilities made up."""
    draw = random.Random(version)
    samples = []
    for index in range(groups * size):
        ids, mask = [draw.randrange(VOCABULARY) for _ in range(4)], [0] * 4
        for turn in range(1 + index % 3):
            for mark, count in ((1, 2 + turn), (0, draw.randrange(2, 7))):
                ids += [draw.randrange(VOCABULARY) for _ in range(count)]
                mask += [mark] * count
        samples.append(
            TrainingSample(
                trajectory=index,
                group=index // size,
                token_ids=ids,
                loss_mask=mask,
                logprobs=[mark * draw.uniform(-6.0, -1.0) for mark in mask],
                versions=[version - lag if mark else -1 for mark in mask],
                reward=draw.random(),
                masked=index == 1,
            )
        )
    return TrainingBatch(batch=version + 100, version=version, samples=samples)


@dataclass(frozen=True)
class Layout:
    """How the same training is spread; ``str`` is the test's id."""

    zero_stage: int
    num_ranks: int
    micro_batch_tokens: int = 100_000
    optimizer_on_host: bool = False
    lora: LoraConfig | None = None

    def __str__(self) -> str:
        host = "-optimizer-on-host" if self.optimizer_on_host else ""
        lora = "-lora" if self.lora is not None else ""
        layout = f"zero{self.zero_stage}-ranks{self.num_ranks}-micro{self.micro_batch_tokens}"
        return f"{layout}{host}{lora}"

    def trainer(self, model: Path, folder: Path, run_id: str) -> DeepSpeedTrainer:
        return DeepSpeedTrainer(
            model,
            trainer_config(
                self.zero_stage,
                self.num_ranks,
                self.micro_batch_tokens,
                OPTIMIZER_ON_HOST if self.optimizer_on_host else None,
            ),
            ALGORITHM,
            dtype="float32",
            lora=self.lora,
            temperature=TEMPERATURE,
            steps=STEPS,
            seed=SEED,
            device="cpu",
            log_dir=folder / "logs",
            run_id=run_id,
        )


@dataclass
class Exported:
    """Weights as an engine worker would read them."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    num_buckets: int = 0
    modes: set[int] = field(default_factory=set)
    paths: list[Path] = field(default_factory=list)


async def export(trainer: DeepSpeedTrainer) -> Exported:
    """Maps every bucket, checks each tensor's checksum, and copies it."""
    exported = Exported()
    async with aclosing(trainer.export_buckets()) as buckets:
        async for bucket in buckets:
            path = Path(bucket.handle["path"])
            raw = torch.frombuffer(
                bytearray(await asyncio.to_thread(path.read_bytes)), dtype=torch.uint8
            )
            exported.num_buckets += 1
            exported.modes.add((await asyncio.to_thread(path.stat)).st_mode & 0o777)
            exported.paths.append(path)
            for entry in bucket.entries:
                part = raw[entry.offset : entry.offset + entry.num_bytes].clone()
                tensor = part.view(getattr(torch, entry.dtype)).view(entry.shape)
                assert tensor_checksum(tensor) == entry.checksum, entry.name
                assert entry.name not in exported.tensors
                exported.tensors[entry.name] = tensor
    return exported


def expected_bytes(layout: Layout, sizes: list[int], *, num_moments: int) -> dict[Part, int]:
    """What ranks with float32 weights and a reference hold at rest, all together.

    Args:
        sizes: Elements of each parameter.
        num_moments: 2, but 0 before the first step.
    """
    ranks, whole = layout.num_ranks, sum(sizes)
    counters = {0: len(sizes) * ranks}.get(layout.zero_stage, ranks) if num_moments else 0
    if layout.zero_stage == 0:
        parameters, gradients, state = whole * ranks, 0, num_moments * whole * ranks
    elif layout.zero_stage == 3:
        shards = sum(math.ceil(size / ranks) for size in sizes) * ranks
        # A partition and a bucket; with the optimizer on the host, a buffer for its gradients.
        gradients = shards * (2 if layout.optimizer_on_host else 1) + whole * ranks
        parameters, state = shards, (1 + num_moments) * shards
    else:
        # DeepSpeed pads what it divides, to begin each partition at a multiple of two elements.
        flat = math.ceil(whole / (2 * ranks)) * 2 * ranks
        parameters, gradients, state = flat * ranks, 0, (1 + num_moments) * flat
    return {
        Part.PARAMETERS: 4 * parameters,
        Part.GRADIENTS: 4 * gradients,
        Part.OPTIMIZER: 4 * (state + counters),
        Part.REFERENCE: 4 * whole * ranks,
    }


@dataclass
class PlainStep:
    """What the plain implementation did."""

    weights: dict[str, torch.Tensor]
    loss: float
    grad_norm: float


class PlainAdapter(nn.Module):
    """``W + scale x B A``; B begins as zeros."""

    def __init__(self, down: torch.Tensor, *, num_outputs: int, scale: float) -> None:
        super().__init__()
        self.down = nn.Parameter(down.double())
        self.up = nn.Parameter(torch.zeros(num_outputs, len(down), dtype=torch.float64))
        self._scale = scale

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self._scale * self.up @ self.down


def train_plainly(
    model_path: Path,
    batches: list[TrainingBatch],
    *,
    first_factors: Mapping[str, torch.Tensor] | None = None,
    scale: float = 0.0,
) -> list[PlainStep]:
    """The same steps by torch alone, in float64, token by token, one process, no micro-batches.

    Args:
        first_factors: A (rank, in) of each weight that has an adapter, by name; only adapters are
            trained then. None: all weights are.
    """
    load = AutoModelForCausalLM.from_pretrained
    model = load(model_path, dtype=torch.float64).eval()
    names = [name for name, _ in model.named_parameters()]
    first = load(model_path, dtype=torch.float64).eval()
    config = trainer_config(0, 1, 10**6)
    if first_factors is not None:
        model.requires_grad_(False)
        for name, down in first_factors.items():
            module = model.get_submodule(name.removesuffix(".weight"))
            adapter = PlainAdapter(down, num_outputs=len(module.weight), scale=scale)
            parametrize.register_parametrization(module, "weight", adapter)
    trained_parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(
        trained_parameters,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
    )
    done = []
    for batch in batches:
        rate = config.learning_rate * (
            1.0 if batch.version < 1 else 1 - (batch.version - 1) / (STEPS - 1)
        )
        optimizer.param_groups[0]["lr"] = rate
        advantages = compute_advantages(batch.samples, ALGORITHM)
        trained = [
            (sample, advantage)
            for sample, advantage in zip(batch.samples, advantages, strict=True)
            if not sample.masked
        ]
        with torch.no_grad():
            proximal = [token_scores(model, sample)[0] for sample, _ in trained]
            reference = [token_scores(first, sample)[0] for sample, _ in trained]
        total, norms, count = 0.0, [], 0
        for chosen in minibatches(batch, advantages):
            optimizer.zero_grad()
            losses = torch.cat(
                [sample_losses(model, *trained[i], proximal[i], reference[i]) for i in chosen]
            )
            losses.mean().backward()
            norms.append(
                float(torch.nn.utils.clip_grad_norm_(trained_parameters, config.max_grad_norm))
            )
            optimizer.step()
            total, count = total + float(losses.sum().detach()), count + len(losses)
        weights = {name: weight_of(model, name) for name in names}
        done.append(PlainStep(weights, total / count, sum(norms) / len(norms)))
    return done


def weight_of(model: nn.Module, name: str) -> torch.Tensor:
    """With what is added to it."""
    module, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(module), attribute).detach().clone()


def minibatches(batch: TrainingBatch, advantages: list[float]) -> list[list[int]]:
    """Which trajectories share an optimizer step: a matter of the shuffle, not of the formula."""
    plan = plan_minibatches(
        make_rows(batch.samples, advantages),
        num_minibatches=2,
        num_ranks=1,
        micro_batch_tokens=10**6,
        seed=SEED + batch.version,
    )
    return [[row for micro in minibatch.ranks[0] for row in micro] for minibatch in plan]


def token_scores(model, sample: TrainingSample) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each sampled token, and its distribution's entropy."""
    logits = model(torch.tensor([list(sample.token_ids)])).logits[0] / TEMPERATURE
    logprobs, entropies = [], []
    for place in range(1, len(sample.token_ids)):
        if sample.loss_mask[place]:
            distribution = torch.distributions.Categorical(logits=logits[place - 1])
            logprobs.append(distribution.log_prob(torch.tensor(sample.token_ids[place])))
            entropies.append(distribution.entropy())
    return torch.stack(logprobs), torch.stack(entropies)


def sample_losses(model, sample, advantage, proximal, reference) -> torch.Tensor:
    current, entropies = token_scores(model, sample)
    behaviour = [lp for lp, mark in zip(sample.logprobs, sample.loss_mask, strict=True) if mark]
    losses = []
    for cur, prox, ref, beh, ent in zip(
        current, proximal, reference, behaviour, entropies, strict=True
    ):
        ratio = torch.exp(cur - prox)
        bounded = torch.clamp(ratio, 1 - ALGORITHM.clip_low, 1 + ALGORITHM.clip_high)
        kept = torch.minimum(ratio * advantage, bounded * advantage)
        weight = min(math.exp(float(prox) - beh), ALGORITHM.correction.cap)
        k3 = torch.exp(ref - cur) - 1 - (ref - cur)
        losses.append(-weight * kept - ALGORITHM.entropy_coef * ent + ALGORITHM.kl.coef * k3)
    return torch.stack(losses)


@dataclass
class Record:
    """What one life of a trainer showed."""

    start_s: float = 0.0
    refusals: dict[str, str] = field(default_factory=dict)
    reports: list[StepReport] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    weights: list[dict[str, torch.Tensor]] = field(default_factory=list)
    exports: dict[str, Exported] = field(default_factory=dict)
    held: dict[str, dict[Part, int]] = field(default_factory=dict)
