"""Real ranks train every kind of objective as the formula written in float64 does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from deepspeed_support import (
    SEED,
    STEPS,
    TEMPERATURE,
    export,
    make_batch,
    minibatches,
    token_scores,
    trainer_config,
)
from transformers import AutoModelForCausalLM

from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.config import (
    AlgorithmConfig,
    CorrectionConfig,
    EmbeddedModelConfig,
    KlConfig,
    OverlongConfig,
)
from colocate.embedded.model import build_embedded_model
from colocate.learn.advantages import compute_advantages
from colocate.ports import StepReport, TrainingBatch
from tests.learn.written import Trajectory, written_kl, written_loss

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Case:
    """An objective, and how its training is spread."""

    algorithm: AlgorithmConfig
    zero_stage: int
    num_ranks: int
    micro_batch_tokens: int


def algorithm(**fields) -> AlgorithmConfig:
    return AlgorithmConfig(group_size=3, groups_per_step=3, **fields)


CASES = {
    "ratios of sequences": Case(
        algorithm(
            ratio="sequence",
            clip_low=0.02,
            clip_high=0.03,
            entropy_coef=0.05,
            correction=CorrectionConfig(level="geometric", cap=20.0),
        ),
        zero_stage=2,
        num_ranks=2,
        micro_batch_tokens=60,
    ),
    "penalties off the reward": Case(
        algorithm(
            advantage="leave_one_out",
            aggregation="fixed_length",
            length_budget=9,
            overlong=OverlongConfig(mode="shape", max_length=9, cache_length=6),
            kl=KlConfig(coef=0.05, estimator="k2", placement="reward"),
        ),
        zero_stage=1,
        num_ranks=2,
        micro_batch_tokens=60,
    ),
    "plain, masked, rejected": Case(
        algorithm(
            advantage="batch_norm",
            surrogate="cispo",
            aggregation="sequence_mean",
            kl=KlConfig(coef=0.1, estimator="k3"),
            correction=CorrectionConfig(
                objective="plain", mode="mask", cap=8.0, floor=0.1, band_low=0.5, veto=0.05
            ),
        ),
        zero_stage=3,
        num_ranks=2,
        micro_batch_tokens=10**5,
    ),
    "policy gradient": Case(
        algorithm(
            advantage="batch_std",
            surrogate="reinforce",
            aggregation="token_mean",
            correction=CorrectionConfig(objective="plain"),
        ),
        zero_stage=0,
        num_ranks=1,
        micro_batch_tokens=40,
    ),
}
BATCHES = [make_batch(0), make_batch(1, lag=1)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return build_embedded_model(
        tmp_path_factory.mktemp("model"),
        EmbeddedModelConfig(hidden_size=48, intermediate_size=64, initializer_range=0.1),
        seed=3,
        dtype="float32",
        max_model_len=96,
    )


@dataclass
class Trained:
    """Weights after each step, and what was reported of it."""

    weights: list[dict[str, torch.Tensor]]
    reports: list[StepReport]


async def train(case: Case, model: Path, folder: Path) -> Trained:
    trainer = DeepSpeedTrainer(
        model,
        trainer_config(case.zero_stage, case.num_ranks, case.micro_batch_tokens),
        case.algorithm,
        dtype="float32",
        temperature=TEMPERATURE,
        steps=STEPS,
        seed=SEED,
        device="cpu",
        log_dir=folder / "logs",
        run_id="test-algorithms",
    )
    trained = Trained([], [])
    try:
        await trainer.start()
        for batch in BATCHES:
            trained.reports.append(await trainer.train(batch))
            trained.weights.append((await export(trainer)).tensors)
    finally:
        await trainer.close()
    return trained


@dataclass
class Written:
    weights: dict[str, torch.Tensor]
    loss: float


def train_by_the_formula(model_path: Path, algorithm: AlgorithmConfig) -> list[Written]:
    """In float64, in one process, a mini-batch at once."""
    load = AutoModelForCausalLM.from_pretrained
    model = load(model_path, dtype=torch.float64).eval()
    first = load(model_path, dtype=torch.float64).eval()
    config = trainer_config(0, 1, 10**6)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
    )
    done = []
    for batch in BATCHES:
        rate = config.learning_rate * (1 - max(0, batch.version - 1) / (STEPS - 1))
        optimizer.param_groups[0]["lr"] = rate
        fixed = fixed_parts(model, first, batch, algorithm)
        losses = []
        for chosen in minibatches(batch, [0.0] * len(batch.samples)):
            optimizer.zero_grad()
            trajectories = []
            for row in chosen:
                sample, trajectory = fixed[row]
                current, entropy = token_scores(model, sample)
                trajectories.append(replace(trajectory, current=current, entropy=entropy))
            loss = written_loss(trajectories, algorithm)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            optimizer.step()
            losses.append(loss.item() * denominator(trajectories, algorithm))
            losses.append(denominator(trajectories, algorithm))
        weights = {n: p.detach().clone() for n, p in model.named_parameters()}
        done.append(Written(weights, sum(losses[::2]) / sum(losses[1::2])))
    return done


def denominator(trajectories: list[Trajectory], algorithm: AlgorithmConfig) -> float:
    if algorithm.aggregation == "token_mean":
        return sum(len(each.current) for each in trajectories)
    return len(trajectories)


def fixed_parts(model, first, batch: TrainingBatch, algorithm: AlgorithmConfig):
    """Each trained sample with what of it stays as it is during the step."""
    trained, penalties = [], [0.0] * len(batch.samples)
    for place, sample in enumerate(batch.samples):
        if sample.masked:
            continue
        with torch.no_grad():
            proximal, entropy = token_scores(model, sample)
            reference, _ = token_scores(first, sample)
        behaviour = [lp for lp, mark in zip(sample.logprobs, sample.loss_mask, strict=True) if mark]
        trained.append(
            (
                place,
                Trajectory(
                    current=proximal,
                    proximal=proximal,
                    behaviour=torch.tensor(behaviour, dtype=torch.float64),
                    reference=reference,
                    entropy=entropy,
                    advantage=0.0,
                ),
            )
        )
        if algorithm.kl.placement == "reward":
            estimates = [
                float(written_kl(policy, anchor, algorithm.kl))
                for policy, anchor in zip(proximal, reference, strict=True)
            ]
            penalties[place] = algorithm.kl.coef * sum(estimates)
        if algorithm.overlong.mode == "shape":
            length, longest = len(behaviour), algorithm.overlong.max_length
            cache = algorithm.overlong.cache_length
            penalties[place] += min(max((length - (longest - cache)) / cache, 0.0), 1.0)
    less = [
        replace(sample, reward=sample.reward - penalty)
        for sample, penalty in zip(batch.samples, penalties, strict=True)
    ]
    advantages = compute_advantages(less, algorithm)
    return [
        (batch.samples[place], replace(trajectory, advantage=advantages[place]))
        for place, trajectory in trained
    ]


@pytest.mark.parametrize("name", CASES)
def test_ranks_train_the_objective_as_its_written_formula_does(name, model, tmp_path):
    case = CASES[name]
    trained = asyncio.run(train(case, model, tmp_path))
    expected = train_by_the_formula(model, case.algorithm)
    for step, (weights, written) in enumerate(zip(trained.weights, expected, strict=True)):
        for parameter, value in weights.items():
            torch.testing.assert_close(
                value.double(),
                written.weights[parameter],
                rtol=0,
                atol=3e-5,
                msg=lambda text, step=step, name=parameter: f"step {step}, {name}: {text}",
            )
    for report, written in zip(trained.reports, expected, strict=True):
        assert report.metrics["loss"] == pytest.approx(written.loss, rel=1e-4, abs=1e-5)
    first, second = (report.metrics for report in trained.reports)
    if case.algorithm.kl.off_the_reward:
        # The first step begins with the reference's own weights, but for rounding.
        assert abs(first["kl_penalty_mean"]) < 1e-6 < second["kl_penalty_mean"]
    if case.algorithm.overlong.mode == "shape":
        assert 0 < first["overlong_penalty_mean"] < 1
    if case.algorithm.correction.veto:
        assert 0 < second["rejected_token_fraction"] < 1
