"""From real DeepSpeed ranks into real vLLM, as a swap does it: what is served is what was trained.

A trainer takes half a minute to start, so these are few. Layouts are pairwise, not a full product:
each ZeRO stage with one and with two ranks, and each stage and each number of ranks with tied and
with untied embeddings. Tests that need just any trainer, and leave it whole, share one with a
layout. One engine of each kind serves all trainers, which publish one after another.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from deepspeed_support import ALGORITHM, SEED, STEPS, TEMPERATURE, Layout, export, make_batch
from deepspeed_support import trainer_config as make_trainer_config
from vllm_support import make_request, max_difference, publish, reference_logprobs

from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.adapters.deepspeed.shared_memory import FOLDER, file_prefix
from colocate.adapters.verification import probe_prompts
from colocate.adapters.weights import StreamedTransfer
from colocate.config import LoraConfig
from colocate.core.types import TRAINER_PARTS, Part, SleepMode, Version
from colocate.ports import WeightBucket

# Nightly until it has been seen to pass as a whole: no machine was quick enough for it yet.
pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.asyncio(loop_scope="session")]

TOLERANCE = 1e-3
PROMPT = [index % 17 for index in range(40)]
RUN_ID = "publication"
SHARED_RUN_ID = "publications"
"""Of the trainer that several tests use, beside others' of their own."""

PAGES_BYTES = 64 * 2**10
"""Of shared memory, much less than a bucket's."""

TIED = [
    Layout(zero_stage=0, num_ranks=2),
    Layout(zero_stage=1, num_ranks=1),
    Layout(zero_stage=2, num_ranks=1),
]
ADAPTED = Layout(
    zero_stage=3,
    num_ranks=1,
    lora=LoraConfig(rank=4, alpha=64.0, target_modules=("q_proj", "v_proj", "down_proj")),
)
"""Merged for the engine, which knows nothing of adapters."""

SHARED = Layout(zero_stage=3, num_ranks=2)
"""With tied embeddings too."""

UNTIED = [
    Layout(zero_stage=0, num_ranks=1),
    Layout(zero_stage=1, num_ranks=2),
    Layout(zero_stage=2, num_ranks=2),
    Layout(zero_stage=3, num_ranks=1),
]


@asynccontextmanager
async def running(
    trainer: DeepSpeedTrainer, run_id: str = RUN_ID
) -> AsyncIterator[DeepSpeedTrainer]:
    await trainer.start()
    try:
        yield trainer
    finally:
        await trainer.close()
        assert not shared_files(run_id)


def make_trainer(
    model: Path, folder: Path, *, dtype: str, publish_dtype: str, num_ranks: int = 1
) -> DeepSpeedTrainer:
    return DeepSpeedTrainer(
        model,
        make_trainer_config(1, num_ranks, 100_000),
        ALGORITHM,
        dtype=dtype,
        publish_dtype=publish_dtype,
        temperature=TEMPERATURE,
        steps=STEPS,
        seed=SEED,
        device="cpu",
        log_dir=folder,
        run_id=RUN_ID,
    )


def shared_files(run_id: str) -> list[Path]:
    return list(FOLDER.glob(f"{file_prefix(run_id)}*"))


def shared_bytes(*tenants: Any) -> int:
    """Of shared memory that the tenants' processes have mapped."""
    found = [
        re.search(r"RssShmem:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        for tenant in tenants
        for pid in tenant.process_ids()
    ]
    return sum(int(match[1]) * 1024 for match in found if match)


async def swap(
    engine: Any, trainer: DeepSpeedTrainer, transfer: StreamedTransfer, *, before: int
) -> Version:
    """One whole swap, with a training step from version ``before`` in it."""
    await engine.park()
    await engine.sleep(SleepMode.LEVEL_2)
    await trainer.load()
    version = (await trainer.train(make_batch(before))).version
    await transfer.expect()
    await trainer.offload(TRAINER_PARTS - {Part.PARAMETERS})
    await engine.wake("weights")
    await transfer.publish(version)
    await trainer.offload({Part.PARAMETERS})
    await engine.wake("kv_cache")
    await transfer.verify()
    return version


async def assert_serves_what_was_trained(
    engine: Any, trainer: DeepSpeedTrainer, initial: Path, *, version: Version, name: str
) -> None:
    """Of prompts and of tokens that it samples, and no longer what it served at first."""
    await trainer.load()
    prompts = [*probe_prompts(20, max_model_len=512, seed=version), PROMPT]
    expected = await trainer.score(prompts)
    assert expected.version == version
    (actual,) = await engine.prompt_logprobs(prompts)
    for prompt, ours, theirs in zip(prompts, expected.logprobs, actual, strict=True):
        assert max_difference(ours, theirs) <= TOLERANCE
        assert max_difference(reference_logprobs(initial, prompt[:1], prompt[1:]), theirs) > 0.01
    result = await engine.generate(make_request(f"{name}-{version}", PROMPT, max_new_tokens=20))
    assert {span.version for span in result.spans} == {version}
    (sampled,) = (await trainer.score([[*PROMPT, *result.token_ids]])).logprobs
    assert max_difference(sampled[-20:], result.logprobs) <= TOLERANCE


@pytest_asyncio.fixture(loop_scope="session")
async def untied(untied_engine, untied_models, exporter):
    """The engine with an output head of its own, serving the first model at version 0."""
    yield untied_engine
    await publish(untied_engine, exporter(untied_models.first), version=0)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tied_models, tmp_path_factory):
    """A trainer of the first model with tied embeddings; whoever uses it may train it further."""
    trainer = SHARED.trainer(tied_models.first, tmp_path_factory.mktemp("shared"), SHARED_RUN_ID)
    async with running(trainer, SHARED_RUN_ID):
        yield trainer


async def train_and_serve(
    engine: Any, trainer: DeepSpeedTrainer, model: Path, run_id: str = RUN_ID
) -> None:
    transfer = StreamedTransfer(trainer, engine)
    started = await trainer.score([PROMPT])
    if started.version == 0:
        # Nothing was trained yet: this is the trainer's own scoring, against transformers.
        expected = reference_logprobs(model, PROMPT[:1], PROMPT[1:])
        assert max_difference(started.logprobs[0], expected) <= TOLERANCE
    for before in (started.version, started.version + 1):
        version = await swap(engine, trainer, transfer, before=before)
        assert version == before + 1 == engine.weights_version
        await assert_serves_what_was_trained(
            engine, trainer, model, version=version, name=str(model.parent.name)
        )
        assert len(shared_files(run_id)) == 2


@pytest.mark.parametrize("layout", [*TIED, ADAPTED], ids=str)
async def test_tied_weights_are_served_as_trained_after_each_of_two_updates(
    engine, tied_models, tmp_path, layout
):
    async with running(layout.trainer(tied_models.first, tmp_path, RUN_ID)) as trainer:
        await train_and_serve(engine, trainer, tied_models.first)


async def test_tied_weights_of_two_ranks_shards_are_served_as_trained_after_each_of_two_updates(
    engine, tied_models, shared
):
    await train_and_serve(engine, shared, tied_models.first, SHARED_RUN_ID)


@pytest.mark.parametrize("layout", UNTIED, ids=str)
async def test_untied_weights_are_served_as_trained_after_each_of_two_updates(
    untied, untied_models, tmp_path, layout
):
    async with running(layout.trainer(untied_models.first, tmp_path, RUN_ID)) as trainer:
        await train_and_serve(untied, trainer, untied_models.first)


async def test_bfloat16_training_is_published_to_a_float32_engine(engine, tied_models, tmp_path):
    trainer = make_trainer(tied_models.first, tmp_path, dtype="bfloat16", publish_dtype="float32")
    async with running(trainer):
        transfer = StreamedTransfer(trainer, engine)
        version = await swap(engine, trainer, transfer, before=0)
        await trainer.load()
        (ours,) = (await trainer.score([PROMPT])).logprobs
        ((theirs,),) = await engine.prompt_logprobs([PROMPT])
        assert 0 < max_difference(ours, theirs) < 0.1
        assert engine.weights_version == version


async def test_float32_weights_are_cast_by_each_rank_to_the_type_that_the_engine_wants(
    tied_models, tmp_path
):
    trainer = make_trainer(
        tied_models.first, tmp_path, dtype="float32", publish_dtype="bfloat16", num_ranks=2
    )
    async with running(trainer):
        exported = await export(trainer)
    original = transformers_weights(tied_models.first)
    assert exported.tensors.keys() == original.keys()
    for name, tensor in exported.tensors.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, original[name].to(torch.bfloat16)), name


def transformers_weights(folder: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {name: value.detach() for name, value in model.named_parameters()}


class MeddledSource:
    """A trainer to whom something is done after its first bucket."""

    def __init__(self, trainer: DeepSpeedTrainer) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    async def meddle(self, bucket: WeightBucket) -> None:
        raise NotImplementedError

    async def export_buckets(self, *, checksums: bool = True) -> AsyncGenerator[WeightBucket, None]:
        num_sent = 0
        async with aclosing(self._trainer.export_buckets(checksums=checksums)) as buckets:
            async for bucket in buckets:
                num_sent += 1
                if num_sent == 2:
                    await self.meddle(bucket)
                yield bucket


class KilledSource(MeddledSource):
    async def meddle(self, bucket: WeightBucket) -> None:
        for pid in self._trainer.process_ids():
            os.kill(pid, signal.SIGKILL)


class SpoiltSource(MeddledSource):
    async def meddle(self, bucket: WeightBucket) -> None:
        flip_a_bit(Path(bucket.handle["path"]), bucket.entries[-1].offset + 8)


def flip_a_bit(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))


async def break_half_way(engine: Any, source: MeddledSource, message: str) -> None:
    """Publishes from a source that breaks; nothing stays mapped, and nothing is served."""
    await engine.park()
    await engine.sleep(SleepMode.LEVEL_2)
    await engine.wake("weights")
    idle = shared_bytes(engine)
    with pytest.raises(Exception, match=message):
        await StreamedTransfer(source, engine).publish(Version(1))
    assert shared_bytes(engine) < idle + PAGES_BYTES
    await engine.wake("kv_cache")
    with pytest.raises(RuntimeError, match="cannot be served: publishing version 1"):
        await engine.generate(make_request("refused", PROMPT))


async def test_a_trainer_that_dies_half_way_leaves_nothing_to_serve_from(
    engine, tied_models, tmp_path, exporter
):
    layout = Layout(zero_stage=1, num_ranks=1)
    async with running(layout.trainer(tied_models.first, tmp_path, RUN_ID)) as trainer:
        await break_half_way(engine, KilledSource(trainer), "died: .*SIGKILL")
        with pytest.raises(RuntimeError, match="unknown since an earlier failure"):
            await trainer.weight_names()
    await publish(engine, exporter(tied_models.second), version=2)
    result = await engine.generate(make_request("another's", PROMPT))
    expected = reference_logprobs(tied_models.second, PROMPT, result.token_ids)
    assert max_difference(result.logprobs, expected) < TOLERANCE


async def test_after_a_spoilt_bucket_the_trainer_can_publish_again(engine, shared):
    await break_half_way(engine, SpoiltSource(shared), "the bucket was changed on its way")
    assert len(shared_files(SHARED_RUN_ID)) <= 2
    await publish(engine, shared, version=1)
    result = await engine.generate(make_request("after all", PROMPT))
    await shared.load()
    (expected,) = (await shared.score([[*PROMPT, *result.token_ids]])).logprobs
    assert max_difference(expected[-len(result.token_ids) :], result.logprobs) <= TOLERANCE


async def test_a_cancelled_publication_leaves_the_trainer_whole(engine, shared):
    await engine.park()
    source = StoppedSource(shared)
    publishing = asyncio.create_task(StreamedTransfer(source, engine).publish(Version(1)))
    await source.reached.wait()
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert engine.weights_version is None
    assert len(shared_files(SHARED_RUN_ID)) <= 2
    await publish(engine, shared, version=1)
    assert engine.weights_version == 1


async def test_the_engine_maps_buckets_while_it_reads_them_and_the_trainer_keeps_two(
    engine, shared
):
    idle = shared_bytes(engine)
    source = MeasuringSource(shared, engine)
    kept = []
    for version in (1, 2):
        await publish(engine, source, version=version)
        assert source.mapped[engine] > idle + 2 * PAGES_BYTES
        assert shared_bytes(engine) < idle + PAGES_BYTES
        files = sorted(file.stat().st_ino for file in shared_files(SHARED_RUN_ID))
        kept.append((shared_bytes(shared), files))
    assert kept[0] == kept[1]
    assert len(kept[0][1]) == 2
    assert kept[0][0] <= source.mapped[shared] + PAGES_BYTES


class MeasuringSource(MeddledSource):
    """Looks when one bucket has been loaded and the next has been packed."""

    def __init__(self, trainer: DeepSpeedTrainer, engine: Any) -> None:
        super().__init__(trainer)
        self._engine = engine
        self.mapped: dict[Any, int] = {}

    async def meddle(self, bucket: WeightBucket) -> None:
        self.mapped = {tenant: shared_bytes(tenant) for tenant in (self._trainer, self._engine)}


class StoppedSource(MeddledSource):
    def __init__(self, trainer: DeepSpeedTrainer) -> None:
        super().__init__(trainer)
        self.reached = asyncio.Event()

    async def meddle(self, bucket: WeightBucket) -> None:
        self.reached.set()
        await asyncio.Event().wait()
