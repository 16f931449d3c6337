"""Starts one process per trainer rank, and asks each what it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from colocate.adapters.deepspeed import wire
from colocate.adapters.deepspeed.rank import DRIVER_PID_VARIABLE
from colocate.adapters.exit_status import describe_status
from colocate.ports import TrainerLostError

RUN_ID_VARIABLE = "COLOCATE_RUN_ID"
LOG_TAIL_LINES = 12
CLOSE_GRACE_S = 5.0
"""How long a rank that was told to close may take before it is killed."""

DEATH_NOTICE_S = 5.0
"""How long after its socket closed a process may take to be reaped."""


class RankFailedError(RuntimeError):
    """A rank could not do what it was asked; its state, and so the trainer's, is unknown."""


class RankDiedError(RankFailedError, TrainerLostError):
    """A rank's process ended, or has to be ended: it was left in the middle of something."""


@dataclass(slots=True)
class Rank:
    """The driver's end of one rank's process."""

    index: int
    process: asyncio.subprocess.Process
    log: Path
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None

    async def ask(self, frame: bytes) -> wire.Reply:
        """Sends an encoded request and waits for its reply.

        Raises:
            RankDiedError: the process is gone; named with its exit status and the log's end.
            RankFailedError: the rank reports that something broke.
        """
        if self.reader is None or self.writer is None:
            raise RankFailedError(f"trainer rank {self.index} is not connected")
        try:
            self.writer.write(frame)
            await self.writer.drain()
            prefix = await self.reader.readexactly(wire.LENGTH_BYTES)
            body = await self.reader.readexactly(wire.body_length(prefix))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise await self.death() from error
        reply = wire.decode_reply(body)
        if isinstance(reply, wire.Failed):
            raise RankFailedError(
                f"trainer rank {self.index} failed: {reply.message} (traceback in {self.log})"
            )
        return reply

    async def death(self) -> RankDiedError:
        """Waits for the process's end and says how it came."""
        try:
            async with asyncio.timeout(DEATH_NOTICE_S):
                status = await self.process.wait()
        except TimeoutError:
            return RankDiedError(
                f"trainer rank {self.index} (process {self.process.pid}) closed its socket but "
                f"still runs; log {self.log} ends with:\n{tail(self.log)}"
            )
        return RankDiedError(
            f"trainer rank {self.index} (process {self.process.pid}) died: "
            f"{describe_status(status)}; log {self.log} ends with:\n{tail(self.log)}"
        )

    def kill(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()


def tail(log: Path) -> str:
    """The last lines of a log; what cannot be read is said instead."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"({error})"
    return "\n".join(lines[-LOG_TAIL_LINES:]) or "(nothing)"


def rank_environment(
    *, index: int, num_ranks: int, run_id: str, device: str, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a rank's process: the driver's, and what a rank needs to know."""
    num_cores = len(os.sched_getaffinity(0))
    environment = {
        **inherited,
        RUN_ID_VARIABLE: run_id,
        DRIVER_PID_VARIABLE: str(os.getpid()),
        "RANK": str(index),
        "LOCAL_RANK": str(index),
        "WORLD_SIZE": str(num_ranks),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
        environment["OMP_NUM_THREADS"] = str(max(1, num_cores // num_ranks))
        # Idle threads must not spin: driver, environments and other ranks share the cores.
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
        # Each shape of a batch has a kernel of its own; oneDNN keeps 1,024 of them otherwise.
        environment.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
        # All ranks are on this machine, and nobody else has a business with their sockets.
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    return environment


class RankPool:
    """All ranks of a trainer: started together, asked together, ended together.

    Args:
        folder: For sockets; only this user may enter it.
        log_dir: Gets ``trainer-rank{i}.log``, appended to.
    """

    def __init__(
        self, *, num_ranks: int, run_id: str, device: str, folder: Path, log_dir: Path
    ) -> None:
        self._num_ranks = num_ranks
        self._run_id = run_id
        self._device = device
        self._socket = folder / "ranks.sock"
        self._log_dir = log_dir
        self._ranks: list[Rank] = []

    def process_ids(self) -> list[int]:
        return [rank.process.pid for rank in self._ranks if rank.process.returncode is None]

    async def start(self) -> None:
        """Starts the processes and waits until each has connected.

        Raises:
            RankDiedError: one ended before it had.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        all_connected = asyncio.Event()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            prefix = await reader.readexactly(wire.LENGTH_BYTES)
            hello = wire.decode_hello(await reader.readexactly(wire.body_length(prefix)))
            rank = self._ranks[hello.rank]
            rank.reader, rank.writer = reader, writer
            if all(rank.reader for rank in self._ranks):
                all_connected.set()

        server = await asyncio.start_unix_server(greet, str(self._socket))
        try:
            for index in range(self._num_ranks):
                self._ranks.append(await self._spawn(index))
            await self._first_of(all_connected)
        finally:
            server.close()

    async def _spawn(self, index: int) -> Rank:
        log = self._log_dir / f"trainer-rank{index}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "colocate.adapters.deepspeed.rank",
                str(self._socket),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A session of its own: Ctrl-C reaches the driver alone, which ends ranks in order.
                start_new_session=True,
                env=rank_environment(
                    index=index,
                    num_ranks=self._num_ranks,
                    run_id=self._run_id,
                    device=self._device,
                    inherited=os.environ,
                ),
            )
        return Rank(index=index, process=process, log=log)

    async def _first_of(self, all_connected: asyncio.Event) -> None:
        connected = asyncio.create_task(all_connected.wait())
        exits = {asyncio.create_task(rank.process.wait()): rank for rank in self._ranks}
        try:
            await asyncio.wait([connected, *exits], return_when=asyncio.FIRST_COMPLETED)
            for task, rank in exits.items():
                if task.done():
                    raise await rank.death()
        finally:
            for task in (connected, *exits):
                task.cancel()

    async def ask(self, request: wire.Message) -> list[wire.Reply]:
        """Sends one request to every rank; returns their replies in the ranks' order.

        When one fails, the others may hang in a collective, so nobody waits for them. A death
        breaks the others' collectives too: it is told as the cause.

        Raises:
            RankFailedError: as ``Rank.ask``. The pool must not be asked again.
        """
        # Only a batch takes long to encode; for the rest a thread is the greater part of the time.
        large = isinstance(request, wire.Train)
        frame = await asyncio.to_thread(wire.encode, request) if large else wire.encode(request)
        tasks = [asyncio.create_task(rank.ask(frame)) for rank in self._ranks]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if all(task.done() and task.exception() is None for task in tasks):
                return [task.result() for task in tasks]
            raise await self._cause(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _cause(self, tasks: list[asyncio.Task[wire.Reply]]) -> BaseException:
        for rank in self._ranks:
            if rank.process.returncode is not None:
                return await rank.death()
        failures = [task.exception() for task in tasks if task.done() and task.exception()]
        deaths = [failure for failure in failures if isinstance(failure, RankDiedError)]
        first = (deaths or failures)[0]
        assert first is not None
        return first

    async def close(self) -> None:
        """Ends every rank: asked first, killed if it does not follow, or if nobody waits any more.

        Safe to call twice.
        """
        frame = wire.encode(wire.Close())
        for rank in self._ranks:
            if rank.writer is not None:
                with contextlib.suppress(ConnectionError):
                    rank.writer.write(frame)
        waiting = [asyncio.create_task(rank.process.wait()) for rank in self._ranks]
        if waiting:
            try:
                await asyncio.wait(waiting, timeout=CLOSE_GRACE_S)
            finally:
                for rank in self._ranks:
                    rank.kill()
            await asyncio.gather(*waiting)
        for rank in self._ranks:
            if rank.writer is not None:
                rank.writer.close()
        self._socket.unlink(missing_ok=True)
