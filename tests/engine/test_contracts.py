"""The contracts, kept by real vLLM, real DeepSpeed, and the probe that measures both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from vllm_support import FolderExporter

from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.adapters.memory.psutil_probe import PsutilProbe
from colocate.adapters.weights import StreamedTransfer
from colocate.config import AlgorithmConfig, TrainerConfig
from colocate.core.types import MemorySample
from tests.contracts.inference import EngineUnderTest, InferenceContract
from tests.contracts.memory import MemoryContract
from tests.contracts.trainer import TrainerContract, TrainerUnderTest

pytestmark = pytest.mark.engine

NEWLINE = 12


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def deepspeed(
    tied_models, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TrainerUnderTest]:
    trainer = DeepSpeedTrainer(
        tied_models.first,
        TrainerConfig(zero_stage=1),
        AlgorithmConfig(group_size=2, groups_per_step=2),
        dtype="float32",
        temperature=1.0,
        steps=100,
        seed=0,
        device="cpu",
        log_dir=tmp_path_factory.mktemp("trainer"),
        run_id="contracts",
    )
    await trainer.start()
    yield TrainerUnderTest(trainer=trainer)
    await trainer.close()
    assert not trainer.process_ids()


@pytest.mark.asyncio(loop_scope="session")
class TestVllmInference(InferenceContract):
    @pytest_asyncio.fixture(loop_scope="session")
    async def engine(self, engine, tied_models, tmp_path: Path, request) -> EngineUnderTest:
        # The outer fixture gives other tests their weights back afterwards.
        exporter = FolderExporter(tied_models.second, tmp_path)
        return EngineUnderTest(
            inference=engine,
            publish=StreamedTransfer(exporter, engine).publish,
            stop_token=NEWLINE,
            long_request_tokens=450,
            name=request.node.name,
            next_version=100,
        )


@pytest.mark.asyncio(loop_scope="session")
class TestDeepSpeedTrainer(TrainerContract):
    @pytest_asyncio.fixture(loop_scope="session")
    async def under_test(self, deepspeed: TrainerUnderTest) -> TrainerUnderTest:
        return deepspeed


class TestPsutilMemory(MemoryContract):
    @pytest_asyncio.fixture(loop_scope="session")
    async def sample(self, tied_engine, deepspeed: TrainerUnderTest) -> MemorySample:
        probe = PsutilProbe(
            {"engine": tied_engine.process_ids, "trainer": deepspeed.trainer.process_ids}, None
        )
        return probe.sample()
