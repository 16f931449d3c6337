"""What the driver relies on of a trainer. Run against every implementation of the port."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from colocate.core.types import BatchId, GroupId, TrajectoryId, Version
from colocate.ports import Trainer, TrainingBatch, TrainingSample


@dataclass
class TrainerUnderTest:
    """A started, loaded trainer. ``version`` is where it stands."""

    trainer: Trainer
    version: int = 0
    counter: int = 0

    def batch(self, *, version: int | None = None, trainable: bool = True) -> TrainingBatch:
        """Two groups of two, with tokens that the embedded model knows."""
        self.counter += 1
        at = self.version if version is None else version
        mask = [0, 0, int(trainable), int(trainable), 0, int(trainable)]
        return TrainingBatch(
            batch=BatchId(self.counter),
            version=Version(at),
            samples=[
                TrainingSample(
                    trajectory=TrajectoryId(i),
                    group=GroupId(i // 2),
                    token_ids=[0, 10, 1 + i, 12, 13, 5],
                    loss_mask=mask,
                    logprobs=[-2.0 if m else 0.0 for m in mask],
                    versions=[at if m else -1 for m in mask],
                    reward=float(i % 2),
                )
                for i in range(4)
            ],
        )


class TrainerContract:
    """Subclasses provide the fixture ``under_test``."""

    async def test_a_step_raises_the_version_by_one_and_counts_its_tokens(
        self, under_test: TrainerUnderTest
    ) -> None:
        batch = under_test.batch()
        report = await under_test.trainer.train(batch)
        under_test.version += 1
        assert report.batch == batch.batch
        assert report.version == under_test.version
        assert report.metrics["num_tokens"] == 12
        assert report.metrics["reward_mean"] == pytest.approx(0.5)

    async def test_a_batch_of_another_version_is_refused_and_changes_nothing(
        self, under_test: TrainerUnderTest
    ) -> None:
        with pytest.raises(ValueError, match="version"):
            await under_test.trainer.train(under_test.batch(version=under_test.version + 1))
        await under_test.trainer.train(under_test.batch())
        under_test.version += 1

    async def test_a_batch_without_a_trainable_token_is_refused(
        self, under_test: TrainerUnderTest
    ) -> None:
        with pytest.raises(ValueError, match="token"):
            await under_test.trainer.train(under_test.batch(trainable=False))

    async def test_an_offloaded_trainer_refuses_to_train_until_it_is_loaded(
        self, under_test: TrainerUnderTest
    ) -> None:
        await under_test.trainer.offload()
        with pytest.raises(ValueError, match="load"):
            await under_test.trainer.train(under_test.batch())
        await under_test.trainer.load()
        report = await under_test.trainer.train(under_test.batch())
        under_test.version += 1
        assert report.version == under_test.version
