"""Entry point of the console script: finds the command, and keeps the exit statuses.

0 done; 1 a failure; 2 a wrong configuration or input; 130, 143 and 129 after SIGINT, SIGTERM and
SIGHUP.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from colocate import __version__

Command = Callable[[Sequence[str]], int]


class UsageError(Exception):
    """A command line that names no command, or gives one what it does not take."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"colocate {__version__}")
        return 0
    logging.getLogger("DeepSpeed").addFilter(_is_news)
    # A user's environments and rewards may lie in the folder that a run is started from.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return _find(arguments[0])(arguments[1:])
    except UsageError as error:
        print(f"colocate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _is_news(record: logging.LogRecord) -> bool:
    """Transformers imports DeepSpeed, which then says on standard output that it found no GPU."""
    return not record.getMessage().startswith("Setting accelerator to CPU")


def _find(name: str) -> Command:
    commands: dict[str, Command] = {
        **_COMMANDS,
        "run-job": _run_job,
        "simulate-job": _simulate_job,
    }
    if name not in commands:
        raise UsageError(f"no command `{name}`; the commands are: {', '.join(_COMMANDS)}")
    return commands[name]


def _train(arguments: Sequence[str]) -> int:
    """a training run; -m for a multirun over several values"""
    from colocate.cli.train import train
    from colocate.problems import ConfigurationError

    try:
        return train(arguments)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2


def _run_job(arguments: Sequence[str]) -> int:
    """Carries out one prepared job of a multirun; `train -m` calls it, not people."""
    from colocate.cli.multirun import stop_with_parent
    from colocate.cli.train import run_job
    from colocate.problems import ConfigurationError

    stop_with_parent()
    try:
        return run_job(_folder("run-job", arguments))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2


def _simulate(arguments: Sequence[str]) -> int:
    """the same scheduler under a virtual clock; -m for a multirun"""
    from colocate.cli.simulate import simulate
    from colocate.problems import ConfigurationError

    try:
        return simulate(arguments)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2


def _simulate_job(arguments: Sequence[str]) -> int:
    """Carries out one prepared job of a multirun; `simulate -m` calls it, not people."""
    from colocate.cli.multirun import stop_with_parent
    from colocate.cli.simulate import SIMULATE
    from colocate.cli.train import run_job
    from colocate.problems import ConfigurationError

    stop_with_parent()
    try:
        return run_job(_folder("simulate-job", arguments), program=SIMULATE)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2


def _replay(arguments: Sequence[str]) -> int:
    """replays a run's journal and re-checks every invariant"""
    run_dir = _folder("replay", arguments)

    from colocate.replay import main as replay

    return replay(run_dir)


def _report(arguments: Sequence[str]) -> int:
    """report.html of a run or of a multirun, with pictures and tables"""
    folder, num_trajectories = _report_arguments(arguments)

    from colocate.report.main import report

    return report(folder, num_trajectories=num_trajectories)


def _report_arguments(arguments: Sequence[str]) -> tuple[Path, int | None]:
    """Reads ``RUN_OR_SWEEP_DIR [--trajectories N]``, in any order."""
    rest = list(arguments)
    number: int | None = None
    if "--trajectories" in rest:
        at = rest.index("--trajectories")
        given = rest[at + 1 : at + 2]
        if not given or not given[0].isdecimal() or int(given[0]) < 1:
            raise UsageError("--trajectories takes a number above 0: --trajectories 5000")
        number = int(given[0])
        del rest[at : at + 2]
    return _folder("report", rest, "a run's or a multirun's folder"), number


def _watch(arguments: Sequence[str]) -> int:
    """the report in a browser on this machine, drawn anew while the run goes on"""
    from colocate.cli.watch import watch_command

    return watch_command(arguments)


def _export(arguments: Sequence[str]) -> int:
    """a trained model as a Hugging Face folder, from a run or one of its checkpoints"""
    from colocate.cli.export import export_command

    return export_command(arguments)


def _chat(arguments: Sequence[str]) -> int:
    """talk to a run's trained model, or see it play an episode of the run's environment"""
    from colocate.cli.chat import chat_command

    return chat_command(arguments)


def _doctor(arguments: Sequence[str]) -> int:
    """what this machine has, what will be used, what is missing and how to get it"""
    if arguments:
        raise UsageError(f"doctor takes no arguments; given: {' '.join(arguments)}")

    from colocate.cli.doctor import doctor

    return doctor()


_COMMANDS: dict[str, Command] = {
    "train": _train,
    "simulate": _simulate,
    "report": _report,
    "watch": _watch,
    "export": _export,
    "chat": _chat,
    "replay": _replay,
    "doctor": _doctor,
}
_TAKES = {
    "train": "[overrides]",
    "simulate": "[overrides]",
    "report": "RUN_OR_SWEEP_DIR",
    "watch": "RUN_OR_SWEEP_DIR",
    "export": "RUN_DIR OUT_DIR",
    "chat": "RUN_DIR",
    "replay": "RUN_DIR",
    "doctor": "",
}


def _folder(command: str, arguments: Sequence[str], what: str = "a run's folder") -> Path:
    if len(arguments) != 1:
        raise UsageError(f"{command} takes one argument, {what}; given: {len(arguments)}")
    folder = Path(arguments[0])
    if not folder.is_dir():
        raise UsageError(f"{command} takes {what}; {folder} is none")
    return folder


def _usage() -> str:
    lines = ["usage: colocate COMMAND ...", ""]
    for name, command in _COMMANDS.items():
        lines.append(f"  {f'{name} {_TAKES[name]}':<24} {command.__doc__}")
    lines += [
        "",
        "To begin with: colocate train +experiment=quickstart steps=15",
        "`colocate train --help` shows the configuration's groups, docs/configuration.md its keys;",
        "what `+experiment=` takes lies in the folder conf/experiment.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
