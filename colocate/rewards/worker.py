"""A process that calls reward functions which block, one call at a time, in its main thread.

Frames on standard input and output are a length (8 bytes, big-endian) and a body. The driver sends
pickled values, first the set-up and then calls; what comes back is JSON, since a function's code
may have a hand in it. The process ends with its input, or with the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import json
import os
import pickle
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from colocate.rewards.functions import Prepared, UnfitRewardError
from colocate.rollout.runner import Episode

LENGTH_BYTES = 8
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """What a worker is to call: import path and options of each function, by index."""

    sys_path: Sequence[str]
    functions: Sequence[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One function on one trajectory."""

    index: int
    episode: Episode


def pack(body: bytes) -> bytes:
    """A frame."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def main() -> None:
    """Serves until the input ends."""
    _die_with_parent()
    # Ctrl-C reaches every process of the terminal; the driver ends this one in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    # Whatever a function reads or prints must not get between the frames.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve(requests, replies)


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    set_up: SetUp = pickle.loads(_read(requests))
    sys.path[:] = set_up.sys_path
    prepared: dict[int, Prepared] = {}
    _write(replies, {"ready": True})
    while True:
        body = _read(requests)
        try:
            call: Call = pickle.loads(body)
            if call.index not in prepared:
                prepared[call.index] = Prepared(*set_up.functions[call.index])
            reply: dict[str, Any] = {"value": _value(prepared[call.index], call.episode)}
        except UnfitRewardError as error:
            reply = {"unfit": str(error)}
        except (Exception, SystemExit) as error:
            reply = {"raised": f"{type(error).__name__}: {error}"}
        _write(replies, reply)


def _value(prepared: Prepared, episode: Episode) -> float | None:
    returned = prepared(episode)
    if inspect.isawaitable(returned):
        returned = asyncio.run(_await(returned))
    return prepared.value(returned)


async def _await(returned: Any) -> Any:
    return await returned


def _read(stream: BinaryIO) -> bytes:
    length = int.from_bytes(_exactly(stream, LENGTH_BYTES), "big")
    return _exactly(stream, length)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


def _write(stream: BinaryIO, reply: Mapping[str, Any]) -> None:
    stream.write(pack(json.dumps(reply).encode()))
    stream.flush()


def _die_with_parent() -> None:
    """A function that hangs would not see its input end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


if __name__ == "__main__":
    # Its classes must be those that the driver pickles, and not `__main__`'s.
    from colocate.rewards import worker

    worker.main()
