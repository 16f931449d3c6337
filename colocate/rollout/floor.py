"""The floor on which trajectories run: one task each, started and ended as the scheduler says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from colocate.core.actions import Train
from colocate.core.buffer_snapshot import BufferSnapshot
from colocate.core.types import BatchId, GroupId, TrajectoryId
from colocate.ports import PromptSource, TrainingBatch, TrainingSample
from colocate.rollout.content import Content, ContentStore
from colocate.rollout.runner import Desk, Runner
from colocate.rollout.versions_of_text import VersionedText, versions_of_turns
from colocate.run_state import RunState, SavedContent

logger = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 5.0
"""For the environments of a run that is ending."""


class Floor:
    """Keeps the tasks and the contents of resident trajectories, and contents for replay."""

    def __init__(
        self,
        desk: Desk,
        prompts: PromptSource,
        tasks: asyncio.TaskGroup,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._desk = desk
        self._prompts = prompts
        self._group = tasks
        self._on_fault = on_fault
        self._current: dict[TrajectoryId, asyncio.Task[None]] = {}
        self._running: dict[asyncio.Task[None], Runner] = {}
        self._groups: dict[TrajectoryId, GroupId] = {}
        self.contents = ContentStore()

    def start(self, trajectory: TrajectoryId, group: GroupId, attempt: int) -> None:
        """Begins an attempt; an earlier one of the same trajectory is ended first."""
        self._cancel(trajectory)
        self.contents.begin(trajectory)
        self._run(trajectory, group, attempt)

    def take_up(self, state: RunState) -> None:
        """The contents of an earlier life; ``resume`` goes on with the unfinished of them."""
        for record in () if state.buffer is None else state.buffer.contents:
            self._groups[record.id] = record.group
            self.contents.take_up(record.id, state.contents.get(record.id))

    def go_back(
        self, buffer: BufferSnapshot, contents: Mapping[TrajectoryId, SavedContent]
    ) -> None:
        """Ends whatever plays, and puts the contents of a checkpoint in the place of all others.

        Raises:
            ValueError: a content is not what the buffer's record says.
        """
        for trajectory in [*self._current]:
            self._cancel(trajectory)
        self._groups.clear()
        self.contents = ContentStore()
        known = {r.id: contents[r.id] for r in buffer.contents if r.num_context_tokens}
        state = RunState(buffer=buffer, contents=known)
        state.check_contents()
        self.take_up(state)

    def resume(self, trajectory: TrajectoryId, group: GroupId, attempt: int) -> None:
        """Goes on with an attempt of an earlier life, from the content that was taken up."""
        self._run(trajectory, group, attempt)

    def save(self, buffer: BufferSnapshot) -> dict[TrajectoryId, SavedContent]:
        """Copies of the contents of a buffer, each as far as the buffer knows of it."""
        return {
            record.id: self.contents[record.id].save(
                record.num_context_tokens, record.num_turns if record.is_unfinished else None
            )
            for record in buffer.contents
            if record.num_context_tokens
        }

    def _run(self, trajectory: TrajectoryId, group: GroupId, attempt: int) -> None:
        runner = Runner(
            self._desk,
            self.contents[trajectory],
            self._prompts.prompt(group),
            trajectory=trajectory,
            group=group,
            attempt=attempt,
        )
        self._groups[trajectory] = group
        task = self._group.create_task(self._guard(runner), name=f"trajectory-{trajectory}")
        self._current[trajectory] = task
        self._running[task] = runner
        task.add_done_callback(self._running.pop)

    def end(self, trajectory: TrajectoryId, *, keeps_content: bool = False) -> None:
        """Ends the task, if it still plays, and forgets the content unless it may be replayed."""
        self._cancel(trajectory)
        if not keeps_content:
            self.forget([trajectory])

    def forget(self, trajectories: Iterable[TrajectoryId]) -> None:
        """Forgets contents, and whose they were."""
        for trajectory in trajectories:
            self._groups.pop(trajectory, None)
            self.contents.forget(trajectory)

    async def close(self) -> None:
        """Ends all tasks and closes their environments, those that close within a few seconds."""
        for task in list(self._running):
            self._end_play(task)
        await self._wait_for_tasks()
        for task in self._running:
            task.cancel()
        await self._wait_for_tasks()
        if self._running:
            logger.warning("%d environments could not be closed", len(self._running))

    def batch(self, lease: Train, rewards: Mapping[TrajectoryId, float]) -> TrainingBatch:
        """The samples of a lease, as the trainer takes them."""
        origins = {t: replay.origin for replay in lease.replays for t in replay.trajectories}
        return TrainingBatch(
            batch=lease.batch,
            version=lease.version,
            samples=[self._sample(t, rewards[t], origins.get(t)) for t in lease.contents],
        )

    def versions_of_turns(self, trajectory: TrajectoryId) -> list[tuple[VersionedText, ...]]:
        """Of each turn of a trajectory, which weights sampled how many of its characters."""
        return versions_of_turns(self.contents[trajectory], self._desk.tokenizer.decode)

    def _sample(
        self, trajectory: TrajectoryId, reward: float, origin: BatchId | None
    ) -> TrainingSample:
        content: Content = self.contents[trajectory]
        return TrainingSample(
            trajectory=trajectory,
            group=self._groups[trajectory],
            token_ids=content.token_ids,
            loss_mask=content.loss_mask,
            logprobs=content.logprobs,
            versions=content.versions,
            reward=reward,
            truncated=content.truncated,
            origin=origin,
        )

    def _cancel(self, trajectory: TrajectoryId) -> None:
        task = self._current.pop(trajectory, None)
        if task is not None:
            self._end_play(task)

    def _end_play(self, task: asyncio.Task[None]) -> None:
        """An environment that is being closed already is let finish that."""
        runner = self._running.get(task)
        if runner is not None and not runner.is_over:
            task.cancel()

    async def _wait_for_tasks(self) -> None:
        if self._running:
            await asyncio.wait(list(self._running), timeout=CLOSE_PATIENCE_S)

    async def _guard(self, runner: Runner) -> None:
        try:
            await runner.run()
        except Exception as error:
            self._on_fault(error)
