"""Real DeepSpeed ranks: every layout trains as the plain implementation, and keeps its state."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from pathlib import Path

import pytest
import torch
from deepspeed_support import Layout, Record, expected_bytes, export, make_batch, train_plainly
from transformers import AutoModelForCausalLM

from colocate.adapters.deepspeed.consolidate import consolidated_weights
from colocate.config import EmbeddedModelConfig
from colocate.core.types import TRAINER_PARTS, Part
from colocate.embedded.model import build_embedded_model
from colocate.ports import TrainingBatch

pytestmark = pytest.mark.engine

LAYOUTS = [
    Layout(zero_stage=0, num_ranks=2),
    Layout(zero_stage=1, num_ranks=1, micro_batch_tokens=40),
    Layout(zero_stage=1, num_ranks=2),
    Layout(zero_stage=2, num_ranks=2, micro_batch_tokens=60),
    Layout(zero_stage=3, num_ranks=2, micro_batch_tokens=60),
    Layout(zero_stage=3, num_ranks=1, micro_batch_tokens=60, optimizer_on_host=True),
    Layout(zero_stage=3, num_ranks=2, optimizer_on_host=True),
]
BATCHES = [make_batch(0), make_batch(1, lag=1), make_batch(2, groups=1)]
"""The last has two trainable trajectories and two mini-batches: a rank of two has none at all."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return build_embedded_model(
        tmp_path_factory.mktemp("model"),
        EmbeddedModelConfig(hidden_size=48, intermediate_size=64, initializer_range=0.1),
        seed=3,
        dtype="float32",
        max_model_len=96,
    )


@pytest.fixture(scope="module")
def plain(model):
    return train_plainly(model, BATCHES)


async def live(layout: Layout, model: Path, folder: Path) -> Record:
    """A whole life: refuse, train, offload as a swap does, save, load, save, train on."""
    trainer = layout.trainer(model, folder, run_id=f"test-{layout}")
    record = Record()
    try:
        await trainer.start()
        record.held["start"] = dict(await trainer.residency())
        record.names = list(await trainer.weight_names())
        record.exports["start"] = await export(trainer)
        for name, wrong in wrong_batches().items():
            with pytest.raises(ValueError) as refused:  # noqa: PT011  compared by the tests
                await trainer.train(wrong)
            record.refusals[name] = str(refused.value)
        for batch in BATCHES[:2]:
            record.reports.append(await trainer.train(batch))
            record.weights.append((await export(trainer)).tensors)
        record.held["trained"] = dict(await trainer.residency())
        await trainer.offload(TRAINER_PARTS - {Part.PARAMETERS})
        record.exports["published"] = await export(trainer)
        await trainer.offload({Part.PARAMETERS})
        record.held["offloaded"] = dict(await trainer.residency())
        record.exports["offloaded"] = await export(trainer)
        with pytest.raises(ValueError, match="the trainer is offloaded; call load before train"):
            await trainer.train(BATCHES[2])
        await trainer.save(folder / "saved-while-offloaded")
        record.held["saved"] = dict(await trainer.residency())
        await trainer.load()
        record.held["loaded"] = dict(await trainer.residency())
        record.exports["loaded"] = await export(trainer)
        await trainer.save(folder / "saved")
        record.reports.append(await trainer.train(BATCHES[2]))
        record.weights.append((await export(trainer)).tensors)
    finally:
        await trainer.close()
    return record


def wrong_batches() -> dict[str, TrainingBatch]:
    good = BATCHES[0]
    return {
        "version": dataclasses.replace(good, version=7),
        "masked": dataclasses.replace(
            good, samples=[dataclasses.replace(s, masked=True) for s in good.samples]
        ),
        "observations": dataclasses.replace(
            good,
            samples=[
                dataclasses.replace(s, loss_mask=[0] * len(s.token_ids)) for s in good.samples
            ],
        ),
    }


@pytest.fixture(scope="module")
def lives(model, tmp_path_factory):
    """Each layout's life, lived once, when first asked for."""

    @functools.cache
    def of(layout: Layout) -> tuple[Record, Path]:
        folder = tmp_path_factory.mktemp(str(layout))
        return asyncio.run(live(layout, model, folder)), folder

    return of


@pytest.fixture(params=LAYOUTS, ids=str)
def layout(request) -> Layout:
    return request.param


@pytest.fixture
def record(layout, lives) -> Record:
    return lives(layout)[0]


def test_weights_after_each_step_are_the_plain_implementations(record, plain):
    for step, (weights, expected) in enumerate(zip(record.weights, plain, strict=True)):
        assert weights.keys() == expected.weights.keys()
        for name, value in weights.items():
            torch.testing.assert_close(
                value.double(),
                expected.weights[name],
                rtol=0,
                atol=3e-5,
                msg=lambda text, step=step, name=name: f"step {step}, {name}: {text}",
            )


def test_loss_and_gradient_norm_are_the_plain_implementations(record, plain):
    for report, expected in zip(record.reports, plain, strict=True):
        assert report.metrics["loss"] == pytest.approx(expected.loss, rel=1e-4, abs=1e-5)
        assert report.metrics["grad_norm"] == pytest.approx(expected.grad_norm, rel=1e-3)


def test_steps_moved_the_weights_by_far_more_than_the_tolerance(record):
    first = record.exports["start"].tensors
    for earlier, later in zip([first, *record.weights], record.weights, strict=False):
        moved = max(float((later[name] - earlier[name]).abs().max()) for name in later)
        assert moved > 1e-3


def test_a_step_reports_its_version_and_the_data_it_saw(record):
    assert [report.version for report in record.reports] == [1, 2, 3]
    assert [report.batch for report in record.reports] == [100, 101, 102]
    fresh, stale, _ = (report.metrics for report in record.reports)
    tokens = sum(sum(s.loss_mask) for s in BATCHES[0].samples if not s.masked)
    assert fresh["num_tokens"] == tokens
    assert fresh["num_sequences"] == 8
    assert (fresh["lag_max"], stale["lag_mean"]) == (0.0, 1.0)
    assert fresh["mismatch_max_abs_logprob_diff"] > 0.1
    assert not any(name.startswith("mismatch") for name in stale)


def test_current_and_proximal_policy_part_after_the_first_minibatch_and_the_clip_bites(record):
    metrics = [report.metrics for report in record.reports]
    assert all(m["ratio_max"] > 1.0001 for m in metrics)
    assert any(m["clip_fraction_low"] + m["clip_fraction_high"] > 0 for m in metrics)
    assert all(m["importance_weight_max"] <= 2.0 for m in metrics)
    assert any(m["importance_weight_truncated_fraction"] > 0 for m in metrics)


def test_batches_that_cannot_be_trained_are_refused_and_change_nothing(record):
    assert record.refusals == {
        "version": "batch 100 begins at version 7, but the trainer is at version 0; lease it again",
        **dict.fromkeys(
            ("masked", "observations"),
            "batch 100 has no trainable token: each of its 9 trajectories is masked or sampled "
            "nothing; do not lease such a batch",
        ),
    }


def test_exported_weights_are_the_models_by_name_and_bit(record, model):
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    expected = dict(loaded.named_parameters())
    exported = record.exports["start"]
    assert record.names == list(exported.tensors) == list(expected)
    assert "lm_head.weight" not in expected
    for name, value in exported.tensors.items():
        assert torch.equal(value, expected[name]), name


def test_buckets_are_several_private_to_the_user_and_gone_when_closed(record):
    for exported in record.exports.values():
        assert exported.num_buckets > 1
        assert exported.modes == {0o600}
        assert not any(path.exists() for path in exported.paths)


def test_offloading_and_loading_change_no_bit_and_weights_export_meanwhile(record):
    before = record.weights[1]
    for state in ("published", "offloaded", "loaded"):
        after = record.exports[state].tensors
        assert all(torch.equal(after[name], before[name]) for name in before), state


def test_each_part_takes_the_bytes_that_arithmetic_gives_it(record, layout):
    sizes = [value.numel() for value in record.weights[0].values()]
    assert record.held["start"] == expected_bytes(layout, sizes, num_moments=0)
    assert record.held["trained"] == expected_bytes(layout, sizes, num_moments=2)


def test_offloading_drops_gradients_and_loading_brings_every_byte_back(record):
    trained = record.held["trained"]
    assert record.held["offloaded"] == {**trained, Part.GRADIENTS: 0}
    assert record.held["saved"] == record.held["offloaded"]
    assert record.held["loaded"] == trained


def test_a_checkpoint_gives_the_whole_weights_without_ranks(layout, lives):
    record, folder = lives(layout)
    weights = consolidated_weights(folder / "saved")
    assert weights.keys() - {"lm_head.weight"} == record.weights[1].keys()
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert all(torch.equal(weights[n], v) for n, v in record.weights[1].items())


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (LAYOUTS[2], "saved-while-offloaded"),
        (LAYOUTS[3], "saved"),
        (LAYOUTS[4], "saved"),
        (LAYOUTS[6], "saved-while-offloaded"),
    ],
    ids=str,
)
def test_a_fresh_process_restores_and_goes_on_bit_for_bit(layout, name, lives, model, tmp_path):
    record, folder = lives(layout)
    asyncio.run(restore_and_go_on(layout, model, folder / name, tmp_path, record))


async def restore_and_go_on(
    layout: Layout, model: Path, saved: Path, folder: Path, record: Record
) -> None:
    trainer = layout.trainer(model, folder, run_id=f"restored-{layout}")
    try:
        await trainer.start()
        with pytest.raises(ValueError, match=r"holds no trainer checkpoint: trainer\.json"):
            await trainer.restore(folder)
        assert await trainer.restore(saved) == 2
        await trainer.save(folder / "at-once")
        restored = (await export(trainer)).tensors
        assert all(torch.equal(restored[n], v) for n, v in record.weights[1].items())
        report = await trainer.train(BATCHES[2])
        weights = (await export(trainer)).tensors
    finally:
        await trainer.close()
    assert report.version == 3
    assert all(torch.equal(weights[n], v) for n, v in record.weights[2].items())
