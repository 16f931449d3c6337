"""What the driver relies on of a trainer. Run against every implementation of the port."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from colocate.core.types import TRAINER_PARTS, BatchId, GroupId, Part, TrajectoryId, Version
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

    @pytest.mark.parametrize(
        "calls",
        [
            [TRAINER_PARTS],
            [{Part.GRADIENTS}],
            [TRAINER_PARTS - {Part.PARAMETERS}, {Part.PARAMETERS}],
            [{Part.PARAMETERS}, {Part.OPTIMIZER}],
            [{Part.OPTIMIZER}, TRAINER_PARTS, TRAINER_PARTS],
        ],
        ids=lambda calls: "-then-".join("+".join(sorted(parts)) for parts in calls),
    )
    async def test_whatever_was_offloaded_in_whatever_order_load_brings_back(
        self, under_test: TrainerUnderTest, calls: list[set[Part]]
    ) -> None:
        trainer = under_test.trainer
        before = await trainer.residency()
        for parts in calls:
            await trainer.offload(parts)
            with pytest.raises(ValueError, match="load"):
                await trainer.train(under_test.batch())
        await trainer.load()
        assert await trainer.residency() == before
        report = await trainer.train(under_test.batch())
        under_test.version += 1
        assert report.version == under_test.version

    async def test_loading_what_never_left_changes_nothing(
        self, under_test: TrainerUnderTest
    ) -> None:
        before = await under_test.trainer.residency()
        await under_test.trainer.load()
        await under_test.trainer.collect()
        assert await under_test.trainer.residency() == before

    async def test_residency_names_every_part_and_its_parameters_take_bytes(
        self, under_test: TrainerUnderTest
    ) -> None:
        held = await under_test.trainer.residency()
        assert held.keys() == TRAINER_PARTS
        assert all(num_bytes >= 0 for num_bytes in held.values())
        assert held[Part.PARAMETERS] > 0
