"""The process of one trainer rank: ``python -m colocate.adapters.deepspeed.rank SOCKET``.

It waits on the socket, never in a collective, so a rollout may take as long as it likes. Ranks
get the same requests in the same order, which keeps their collectives matched. The socket's end
is the driver's end: then the rank leaves.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from colocate.adapters.deepspeed import wire

if TYPE_CHECKING:
    from colocate.adapters.deepspeed.worker import Worker

PR_SET_PDEATHSIG = 1
DRIVER_PID_VARIABLE = "COLOCATE_DRIVER_PID"


def main() -> None:
    die_with_driver(int(os.environ[DRIVER_PID_VARIABLE]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(sys.argv[1])
        connection.sendall(wire.encode(wire.Hello(rank=int(os.environ["RANK"]), pid=os.getpid())))
        serve(connection)
    # The interpreter's own way out takes seconds, with nothing left that it could save.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def die_with_driver(driver_pid: int) -> None:
    """Has the kernel kill this process when its driver dies, by whatever cause."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != driver_pid:
        sys.exit(f"the driver, process {driver_pid}, was gone before this rank had started")


def serve(connection: socket.socket) -> None:
    """Answers requests until the driver closes, or one fails in a way that leaves state unknown."""
    worker: Worker | None = None
    for request in read_requests(connection):
        try:
            if isinstance(request, wire.Close):
                reply: wire.Reply = wire.Done()
            elif isinstance(request, wire.Setup):
                # Imported now: connecting comes first, so that a slow import is seen as a start.
                from colocate.adapters.deepspeed.worker import Worker

                worker = Worker(request)
                reply = wire.Done()
            elif worker is None:
                raise RuntimeError(f"{type(request).__name__} came before Setup")
            else:
                reply = worker.handle(request)
        except wire.Refusal as error:
            reply = wire.Refused(message=str(error))
        except Exception as error:
            traceback.print_exc()
            reply = wire.Failed(
                message=f"{type(error).__name__}: {error}", traceback=traceback.format_exc()
            )
        connection.sendall(wire.encode(reply))
        if isinstance(request, wire.Close) or isinstance(reply, wire.Failed):
            break
    if worker is not None:
        worker.close()


def read_requests(connection: socket.socket) -> Iterator[wire.Request]:
    while (prefix := _read(connection, wire.LENGTH_BYTES)) is not None:
        body = _read(connection, wire.body_length(prefix))
        if body is None:
            return
        yield wire.decode_request(body)


def _read(connection: socket.socket, num_bytes: int) -> bytes | None:
    """Exactly so many bytes; None where the other end closed first."""
    received = bytearray(num_bytes)
    view = memoryview(received)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return bytes(received)


if __name__ == "__main__":
    main()
