"""Episodes on held-out prompts, played by the same runners as those that are trained on.

    Evaluate --> a task a sample --EvaluationTurnReady--> [gate] --EvaluationRequestEnded--> ...
                                                     all over, or cut --> EvaluationEnded

A sample shares engine, gate, environments and reward with the trajectories. Its id is negative, so
that no name, no seed and no place at the gate is a trajectory's, and its prompt comes from a list
of its own: evaluations take nothing of what training draws.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from colocate.core.actions import CutEvaluation, Evaluate, SubmitEvaluation
from colocate.core.events import (
    EvaluationEnded,
    EvaluationRequestEnded,
    EvaluationTurnReady,
    Event,
    RequestEnded,
    TrajectoryFinished,
    TrajectoryLost,
    TurnReady,
)
from colocate.core.types import FinishReason, GroupId, TrajectoryId, Version
from colocate.ports import Prompt
from colocate.rollout.content import Content
from colocate.rollout.pass_at_k import Verdict, measure
from colocate.rollout.runner import Desk, RolloutRules, Runner

logger = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 10.0
"""For environments, and for what was found so far, when the run ends."""

INVALID = "its environment called it invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """What every evaluation of a run plays.

    Attributes:
        prompts: The same each time.
        rules: As of the rollout, but for temperature and lengths.
        k: Of pass@k.
        pass_reward: A sample passes with this reward or a greater one.
        max_episodes: Played at a time; the others have not begun.
        in_thread: Intervals are worked out beside the loop; False where its clock is a virtual one.
    """

    prompts: Sequence[Prompt]
    rules: RolloutRules
    samples_per_prompt: int
    k: int
    pass_reward: float
    max_episodes: int
    in_thread: bool = True

    @property
    def num_samples(self) -> int:
        return len(self.prompts) * self.samples_per_prompt


class Evaluator:
    """Carries out what the scheduler says of evaluations."""

    def __init__(
        self,
        desk: Desk,
        plan: EvaluationPlan,
        tasks: asyncio.TaskGroup,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._desk = desk
        self._plan = plan
        self._tasks = tasks
        self._on_fault = on_fault
        self._rounds: list[_Round] = []

    def begin(self, action: Evaluate) -> None:
        assert action.num_samples == self._plan.num_samples
        begun = _Round(action.version, self._desk, self._plan, self._tasks, self._on_fault)
        # One that was cut may still be closing its environments.
        self._rounds = [*(each for each in self._rounds if not each.is_over), begun]

    def let_through(self, action: SubmitEvaluation) -> None:
        self._desk.gate.let_through(_id_of(action.sample), action.request)

    def cut(self, action: CutEvaluation) -> None:
        self._rounds[-1].cut(is_void=action.is_void)

    async def close(self) -> None:
        """Ends all episodes; what was scored is told, where it can be told soon."""
        for each in self._rounds:
            await each.close()


def _id_of(sample: int) -> TrajectoryId:
    return TrajectoryId(-1 - sample)


class _Round:
    """One evaluation, of one version."""

    def __init__(
        self,
        version: Version,
        desk: Desk,
        plan: EvaluationPlan,
        tasks: asyncio.TaskGroup,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._version = version
        self._plan = plan
        self._now_s, self._post = desk.now_s, desk.post
        self._desk = replace(desk, rules=plan.rules, post=self._take)
        self._on_fault = on_fault
        self._spawn = tasks.create_task
        self._room = asyncio.Semaphore(plan.max_episodes)
        self._contents: dict[int, Content] = {}
        self._verdicts: list[Verdict] = []
        self._lost: Counter[str] = Counter()
        self._unsettled = set(range(plan.num_samples))
        self._telling: asyncio.Task[None] | None = None
        self._playing = [
            tasks.create_task(self._play(sample), name=f"evaluation-{version}-{sample}")
            for sample in range(plan.num_samples)
        ]

    @property
    def is_over(self) -> bool:
        alive = any(not task.done() for task in self._playing)
        return not alive and self._telling is not None and self._telling.done()

    def cut(self, *, is_void: bool) -> None:
        """Ends what is still played. Environments may take a while to close; nobody waits."""
        self._end_play()
        if self._telling is None:
            self._tell(is_void=is_void)

    async def close(self) -> None:
        self._end_play()
        ending = [task for task in (*self._playing, self._telling) if task and not task.done()]
        if not ending:
            return
        _, late = await asyncio.wait(ending, timeout=CLOSE_PATIENCE_S)
        for task in late:
            task.cancel()
        if late:
            logger.warning("%d episodes of an evaluation did not end in time", len(late))

    def _end_play(self) -> None:
        for task in self._playing:
            task.cancel()

    async def _play(self, sample: int) -> None:
        prompt = sample // self._plan.samples_per_prompt
        try:
            async with self._room:
                content = self._contents[sample] = Content()
                runner = Runner(
                    self._desk,
                    content,
                    self._plan.prompts[prompt],
                    trajectory=_id_of(sample),
                    group=GroupId(prompt),
                    attempt=0,
                )
                await runner.run()
        except Exception as error:
            self._on_fault(error)

    # What runners post

    def _take(self, event: Event) -> None:
        match event:
            case TurnReady():
                self._ask(-1 - event.trajectory)
            case RequestEnded():
                sample = -1 - event.trajectory
                self._post(
                    EvaluationRequestEnded(
                        time_s=event.time_s,
                        version=self._version,
                        sample=sample,
                        request=event.request,
                        spans=event.spans,
                    )
                )
                if event.finish_reason is FinishReason.ABORT:
                    self._ask(sample)  # its runner waits at the gate again
            case TrajectoryFinished():
                self._finished(-1 - event.trajectory, event)
            case TrajectoryLost():
                self._settle(-1 - event.trajectory, event.reason)
            case _:
                raise AssertionError(f"an evaluation resumes nothing: {event}")

    def _ask(self, sample: int) -> None:
        self._post(EvaluationTurnReady(time_s=self._now_s(), version=self._version, sample=sample))

    def _finished(self, sample: int, event: TrajectoryFinished) -> None:
        if event.masked:
            self._settle(sample, INVALID)
            return
        self._verdicts.append(
            Verdict(
                prompt=sample // self._plan.samples_per_prompt,
                reward=event.reward,
                num_tokens=sum(self._contents[sample].loss_mask),
                is_truncated=event.truncated is not None,
            )
        )
        self._settle(sample, None)

    def _settle(self, sample: int, lost_to: str | None) -> None:
        if self._telling is not None:  # cut in the same moment
            return
        if lost_to is not None:
            self._lost[lost_to] += 1
        self._unsettled.discard(sample)
        self._contents.pop(sample, None)
        if not self._unsettled:
            self._tell()

    def _tell(self, *, is_void: bool = False) -> None:
        verdicts, lost, num_cut = tuple(self._verdicts), dict(self._lost), len(self._unsettled)
        measured = () if is_void else verdicts
        find = partial(measure, measured, k=self._plan.k, pass_reward=self._plan.pass_reward)

        async def tell() -> None:
            try:
                metrics = await asyncio.to_thread(find) if self._plan.in_thread else find()
            except Exception as error:
                self._on_fault(error)
                return
            self._post(
                EvaluationEnded(
                    time_s=self._now_s(),
                    version=self._version,
                    num_scored=len(verdicts),
                    num_cut=num_cut,
                    lost=lost,
                    metrics=metrics,
                )
            )

        self._telling = self._spawn(tell(), name=f"evaluation-{self._version}-ends")
