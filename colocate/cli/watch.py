"""``colocate watch``: the report of a run or of a multirun in a browser, while it grows."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from colocate.report.main import NEITHER, is_run
from colocate.report.sweep_jobs import is_sweep
from colocate.report.watch.server import Board, WatchServer
from colocate.report.watch.subject import Subject

EVERY_S = 1.0
_NICENESS = 10
"""The run that is watched has the machine first."""
_MAX_PORT = 65535


def watch_command(arguments: Sequence[str]) -> int:
    """Serves until SIGINT or SIGTERM, then returns 0; 2 where the arguments are wrong."""
    given = _parser().parse_args(list(arguments))
    folder: Path = given.folder
    if not folder.is_dir() or not (is_sweep(folder) or is_run(folder)):
        print(f"colocate watch: {NEITHER.format(folder=folder)}", file=sys.stderr)
        return 2
    board = Board(f"colocate watch {folder.absolute().name}")
    try:
        server = WatchServer(board, given.port)
    except OSError as error:
        print(
            f"colocate watch: --port {given.port} cannot be used: {error.strerror}; take another, "
            "or leave --port out for one that is free",
            file=sys.stderr,
        )
        return 2
    stop = threading.Event()
    broken: list[Exception] = []

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # What is being drawn when the end comes may still be written.
        with (
            tempfile.TemporaryDirectory(
                prefix="colocate-watch-", ignore_cleanup_errors=True
            ) as scratch,
            server,
        ):
            subject = Subject(folder, Path(scratch))
            work = (subject, board, stop, broken)
            threading.Thread(target=_watch, args=work, daemon=True).start()
            print(f"Watching {folder} at {server.url} (Ctrl-C ends it)", flush=True)
            stop.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if broken:
        raise broken[0]
    return 0


def _watch(subject: Subject, board: Board, stop: threading.Event, broken: list[Exception]) -> None:
    """Draws until it is stopped; where it cannot go on, it ends the watching, with the cause."""
    try:
        os.nice(_NICENESS)
        board.show(subject.strip(), "", 0)
        while not stop.is_set():
            subject.draw()
            board.show(subject.strip(), subject.page, subject.revision)
            stop.wait(EVERY_S)
    except Exception as error:
        broken.append(error)
        stop.set()


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to {_MAX_PORT}, not {text}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="colocate watch",
        description="Shows the report of a run or of a multirun in a browser on this machine, and "
        "draws it anew while the run goes on. Writes nothing into the folder.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "folder", type=Path, metavar="RUN_OR_SWEEP_DIR", help="of a run that goes on or has ended"
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=0,
        help="on the loopback interface (default: any that is free)",
    )
    return parser
