"""The digits environment with faults: the same for the same trajectory, and each one recorded."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colocate.core import actions as act
from colocate.core.types import Ending, TrajectoryId
from colocate.embedded.digits import DigitSearch
from colocate.journal import read_journal
from colocate.ports import Prompt, StepOutcome
from colocate.rollout.runner import derive_seed

KINDS = ("raise", "hang", "garbage", "invalid")


class FaultyDigitSearch:
    """A share of episodes breaks, at the reset or at the first step, which all episodes have.

    Args:
        fraction: The share.
        record: A file; every fault is appended as a JSON line when it strikes. A hang strikes when
            it begins, so that an episode may be over before its deadline has come.
        kinds: What may happen, each as likely.
    """

    def __init__(
        self,
        fraction: float,
        record: str,
        kinds: Sequence[str] = KINDS,
        max_turns: int = 5,
    ) -> None:
        self._inner = DigitSearch(max_turns)
        self._fraction = fraction
        self._record = Path(record)
        self._kinds = tuple(kinds)
        self._seed = 0
        self._fault: str | None = None

    async def reset(self, prompt: Prompt, seed: int) -> str:
        self._seed = seed
        draw = random.Random(seed)
        if draw.random() < self._fraction:
            self._fault = draw.choice(self._kinds)
        opening = await self._inner.reset(prompt, seed)
        if self._fault in ("raise", "hang") and draw.random() < 0.5:
            await self._strike()
        return opening

    async def step(self, action: str) -> StepOutcome:
        if self._fault is not None:
            return await self._strike()
        return await self._inner.step(action)

    async def close(self) -> None:
        await self._inner.close()

    async def _strike(self) -> Any:
        with self._record.open("a") as file:
            file.write(json.dumps({"seed": self._seed, "kind": self._fault}) + "\n")
        if self._fault == "hang":
            await asyncio.Event().wait()
        if self._fault == "raise":
            raise ConnectionError("the sandbox crashed")
        if self._fault == "invalid":
            return StepOutcome(observation="", invalid=True)
        return {"observation": "low"}


@dataclass(frozen=True)
class FaultBooks:
    """What was injected, and how each trajectory of the run ended (None: resident at exit)."""

    injected: dict[TrajectoryId, str]
    endings: dict[TrajectoryId, Ending | None]

    @classmethod
    def of(cls, run_dir: Path, record: Path, seed: int) -> FaultBooks:
        """Reads a run's journal and the record of its environments; ``seed`` is the run's."""
        endings: dict[TrajectoryId, Ending | None] = {}
        by_seed: dict[int, TrajectoryId] = {}
        for entry in read_journal(run_dir / "events.jsonl"):
            for action in entry.actions:
                if isinstance(action, act.StartTrajectory):
                    name = (seed, action.group, action.trajectory, action.attempt)
                    by_seed[derive_seed(*name, "environment")] = action.trajectory
                    endings[action.trajectory] = None
                elif isinstance(action, act.EndTrajectory):
                    endings[action.trajectory] = action.ending
        faults = [json.loads(line) for line in record.read_text().splitlines()]
        injected = {by_seed[fault["seed"]]: fault["kind"] for fault in faults}
        assert len(injected) == len(faults), "a trajectory was hit twice"
        return cls(injected, endings)

    @property
    def spoilt(self) -> set[TrajectoryId]:
        spoils = (Ending.FAILED, Ending.MASKED, Ending.FILTERED)
        return {t for t, ending in self.endings.items() if ending in spoils}

    @property
    def struck_too_late(self) -> set[TrajectoryId]:
        """Hit when they had ended already, or while the run ended: these faults are none."""
        return set(self.injected) - self.spoilt

    def check(self, counts: dict[str, int]) -> None:
        """``counts``: of ``summary.json``. Every fault is one ending, and every such ending one."""
        assert self.spoilt <= set(self.injected)
        otherwise = {self.endings[t] for t in self.struck_too_late}
        assert otherwise <= {None, Ending.EXPIRED, Ending.CANCELLED}
        counted = counts["failed"] + counts["masked"] + counts["filtered"]
        assert counted == len(self.injected) - len(self.struck_too_late)
        masked = sum(self.injected[t] == "invalid" for t in self.spoilt)
        assert counts["masked"] == masked
