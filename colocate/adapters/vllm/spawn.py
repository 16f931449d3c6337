"""How the driver starts engine processes: their environment, their output, their leash."""

from __future__ import annotations

import logging
import multiprocessing.resource_tracker
import multiprocessing.spawn
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from colocate.adapters.vllm import child

_RAISED = re.compile(r"^(?:\([^)]*\)[^\n]*\] )?(\w*(?:Error|Exception): .+)$", re.MULTILINE)
"""The last line of a traceback, plain or behind the prefix of vLLM's log records."""


@contextmanager
def engine_spawning(
    *, log_file: Path, run_id: str, environment: Mapping[str, str]
) -> Iterator[None]:
    """Within it, processes that ``multiprocessing`` spawns are engine processes of this run.

    They write to ``log_file`` from their first instruction, are killed by the kernel when the
    thread that entered this context ends (so keep that thread for as long as the engine lives),
    and see ``environment``. vLLM sets variables of its own while it starts (``LD_PRELOAD`` among
    them); on exit the driver's environment is again what it was.

    The environment and the spawn executable belong to the whole process: start nothing else
    meanwhile.
    """
    multiprocessing.resource_tracker.ensure_running()
    environment_before = dict(os.environ)
    executable_before = multiprocessing.spawn.get_executable()
    with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
        launcher = Path(folder, "python")
        command = shlex.join([sys.executable, "-S", child.__file__])
        launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        launcher.chmod(0o700)
        os.environ.update(environment)
        os.environ[child.RUN_ID] = run_id
        os.environ[child.DRIVER_PID] = str(os.getpid())
        os.environ[child.LOG_FILE] = str(log_file)
        multiprocessing.spawn.set_executable(str(launcher))
        try:
            yield
        finally:
            multiprocessing.spawn.set_executable(executable_before)
            os.environ.clear()
            os.environ.update(environment_before)


@contextmanager
def vllm_logging_to(log_file: Path) -> Iterator[None]:
    """Within it, what vLLM logs in *this* process goes to ``log_file``, and not to the terminal.

    Contexts may overlap, ended in any order: the front ends of several engines share this process
    and vLLM's one logger, and records do not tell whose they are, so every open log gets them.

    vLLM must be told separately to leave its logger alone (``VLLM_CONFIGURE_LOGGING=0`` where it
    is first imported, ``LoggingConfig`` where an engine is made).
    """
    logger = logging.getLogger("vllm")
    others = [handler for handler in logger.handlers if isinstance(handler, _EngineLog)]
    before = others[0].before if others else _LoggerState.of(logger)
    handler = _EngineLog(log_file, before)
    if not others:
        logger.handlers.clear()
        logger.propagate = False
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
        if not any(isinstance(other, _EngineLog) for other in logger.handlers):
            before.restore(logger)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoggerState:
    handlers: tuple[logging.Handler, ...]
    propagate: bool
    level: int

    @classmethod
    def of(cls, logger: logging.Logger) -> _LoggerState:
        return cls(handlers=tuple(logger.handlers), propagate=logger.propagate, level=logger.level)

    def restore(self, logger: logging.Logger) -> None:
        logger.handlers[:], logger.propagate = self.handlers, self.propagate
        logger.setLevel(self.level)


class _EngineLog(logging.FileHandler):
    def __init__(self, log_file: Path, before: _LoggerState) -> None:
        super().__init__(log_file)
        self.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(name)s: %(message)s"))
        self.before = before


def first_error(log_file: Path, start: int) -> str | None:
    """The first exception that an engine's log names, from byte ``start`` on.

    A failure passes from worker to core to driver, and each adds an exception of its own that
    only points to the one before: the first says what happened.
    """
    with log_file.open("rb") as log:
        log.seek(start)
        found = _RAISED.search(log.read().decode(errors="replace"))
    return found[1] if found else None
