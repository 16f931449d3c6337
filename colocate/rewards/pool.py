"""Processes for reward functions that block: started when needed, killed when a call hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from colocate.rewards.worker import LENGTH_BYTES, Call, SetUp, pack
from colocate.rollout.runner import Episode, RewardFault

START_S = 120.0
"""For a worker to start, before what it calls is imported."""


class WorkerPool:
    """Calls functions in at most ``size`` processes.

    A call that its caller gave up goes on to its own deadline, so that cancelled trajectories do
    not cost a process each.

    Args:
        functions: Import path and options of each.
        size: How many calls run at a time.
        log: Gets what functions print; None: standard error.
    """

    def __init__(
        self, functions: Sequence[tuple[str, Mapping[str, Any]]], *, size: int, log: Path | None
    ) -> None:
        self._functions = functions
        self._log = log
        self._slots = asyncio.Semaphore(size)
        self._idle: list[asyncio.subprocess.Process] = []
        self._busy: set[asyncio.subprocess.Process] = set()
        self._calls: set[asyncio.Task[float | None]] = set()

    async def call(self, index: int, episode: Episode, timeout_s: float) -> float | None:
        """The reward of one function; None where it has none for this trajectory.

        The deadline counts from when a worker is free and has started.

        Raises:
            RewardFault: it raised, returned no reward, missed the deadline, or its process died.
        """
        try:
            frame = pack(pickle.dumps(Call(index=index, episode=episode)))
        except Exception as error:
            raise RewardFault(
                f"the prompt's columns cannot be sent to a worker process "
                f"({type(error).__name__}: {error}); make the function `async`, or the columns "
                "plain"
            ) from error
        await self._slots.acquire()
        task = asyncio.create_task(self._serve(frame, timeout_s))
        self._calls.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def process_ids(self) -> list[int]:
        """Of the workers that run."""
        return [process.pid for process in (*self._idle, *self._busy)]

    async def close(self) -> None:
        """Ends all workers. Safe to call twice."""
        for task in list(self._calls):
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        idle, self._idle = self._idle, []
        for process in idle:
            await _kill(process)

    def _done(self, task: asyncio.Task[float | None]) -> None:
        self._calls.discard(task)
        self._slots.release()
        if not task.cancelled():
            task.exception()  # Its caller may be gone; then nobody else asks for it.

    async def _serve(self, frame: bytes, timeout_s: float) -> float | None:
        process = self._idle.pop() if self._idle else await self._start()
        self._busy.add(process)
        sound = False
        try:
            async with asyncio.timeout(timeout_s):
                reply = await _exchange(process, frame)
            sound = True
        except TimeoutError:
            raise RewardFault(
                f"did not answer within {timeout_s:g} s; its worker was killed"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await process.wait()
            raise RewardFault(f"ended its worker process (status {status})") from None
        except ValueError as error:
            raise RewardFault(f"wrote to its worker's channel: {error}") from None
        finally:
            self._busy.discard(process)
            if sound:
                self._idle.append(process)
            else:
                await asyncio.shield(_kill(process))
        if "value" in reply:
            value: float | None = reply["value"]
            return value
        raise RewardFault(f"raised {reply['raised']}" if "raised" in reply else reply["unfit"])

    async def _start(self) -> asyncio.subprocess.Process:
        set_up = SetUp(sys_path=list(sys.path), functions=list(self._functions))
        log = None if self._log is None else self._log.open("ab")
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "colocate.rewards.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        finally:
            if log is not None:
                log.close()
        try:
            async with asyncio.timeout(START_S):
                await _exchange(process, pack(pickle.dumps(set_up)))
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            await _kill(process)
            raise RewardFault(
                f"its worker process did not start (status {process.returncode}); see "
                f"{self._log or 'standard error'}"
            ) from error
        except asyncio.CancelledError:
            await asyncio.shield(_kill(process))
            raise
        return process


async def _exchange(process: asyncio.subprocess.Process, frame: bytes) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(frame)
    await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
    reply: dict[str, Any] = json.loads(await process.stdout.readexactly(length))
    return reply


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
