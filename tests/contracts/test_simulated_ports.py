"""The contracts, kept by the simulated ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from colocate.core.types import MemorySample
from colocate.sim.ports import (
    SimEngineSettings,
    SimInference,
    SimMemory,
    SimTrainer,
    SimTrainerSettings,
    SimTransfer,
)
from tests.contracts.inference import EngineUnderTest, InferenceContract
from tests.contracts.memory import MemoryContract
from tests.contracts.trainer import TrainerContract, TrainerUnderTest

QUICK_ENGINE = SimEngineSettings(token_s=0.002, sleep_s=0.0, wake_s=0.0)
QUICK_TRAINER = SimTrainerSettings(token_s=0.0, move_s=0.0)


class TestSimInference(InferenceContract):
    @pytest_asyncio.fixture
    async def engine(self) -> AsyncIterator[EngineUnderTest]:
        inference, trainer = SimInference(QUICK_ENGINE), SimTrainer(QUICK_TRAINER)
        transfer = SimTransfer(trainer, inference, publish_s=0.0)

        async def publish(version):  # type: ignore[no-untyped-def]
            trainer.version = version
            return await transfer.publish(version)

        await inference.start()
        yield EngineUnderTest(
            inference=inference,
            publish=publish,
            stop_token=0,
            long_request_tokens=5000,
            name="sim",
        )
        await inference.close()


class TestSimTrainer(TrainerContract):
    @pytest_asyncio.fixture
    async def under_test(self) -> TrainerUnderTest:
        trainer = SimTrainer(QUICK_TRAINER)
        await trainer.start()
        return TrainerUnderTest(trainer=trainer)


class TestSimMemory(MemoryContract):
    @pytest_asyncio.fixture
    async def sample(self) -> MemorySample:
        inference, trainer = SimInference(QUICK_ENGINE), SimTrainer(QUICK_TRAINER)
        await inference.start()
        await trainer.start()
        return await SimMemory(trainer, inference, 64 * 2**30).measure()


@pytest.mark.parametrize("port", [SimInference, SimTrainer])
def test_a_port_can_be_closed_before_it_was_started_and_twice(port: type) -> None:
    async def main() -> list[int]:
        instance = port()
        await instance.close()
        await instance.close()
        return list(instance.process_ids())

    assert asyncio.run(main()) == []
