"""Rules of what must lie on this machine: models, traces, checkpoints, the run's folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from colocate.preflight.table import rule
from colocate.problems import Problem

_LOOKS_LIKE_A_FOLDER = ("/", "./", "../", "~")
_SMOLLM2 = "./models/smollm2"
"""Of ``model=smollm2``."""


@rule("model.path")
def _model_folder_is_complete(path: str | None) -> Iterator[Problem]:
    if path is None:
        return
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            yield Problem(
                field="model.path",
                value=path,
                rule="must be a Hugging Face model folder; this one has no config.json",
                remedy="name the folder that holds config.json, tokenizer and *.safetensors",
            )
    elif path.startswith(_LOOKS_LIKE_A_FOLDER) or not path.strip():
        yield Problem(
            field="model.path",
            value=path,
            rule="must be a folder that exists, or the name of a model on the hub",
            remedy="run tools/get_smollm2.py, which makes it, from the folder you start from now"
            if path == _SMOLLM2
            else "check the path, or choose model=embedded for a model that is made here",
        )


@rule("model.path", "inference.max_model_len")
def _context_is_one_that_the_model_knows(path: str | None, max_model_len: int) -> Iterator[Problem]:
    longest = model_settings(path).get("max_position_embeddings")
    if isinstance(longest, int) and max_model_len > longest:
        yield Problem(
            field="inference.max_model_len",
            value=max_model_len,
            rule=f"must be at most {longest}, the model's max_position_embeddings",
            remedy=f"set inference.max_model_len={longest} or less",
        )


def model_settings(path: str | None) -> dict[str, Any]:
    """A model folder's ``config.json``; empty for a hub name, or where it cannot be read.

    Loading will say what is wrong with it.
    """
    if path is None:
        return {}
    try:
        settings = json.loads((Path(path).expanduser() / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


@rule("environment.latency.kind", "environment.latency.trace")
def _latency_trace_can_be_read(kind: str, trace: str | None) -> Iterator[Problem]:
    if kind != "trace":
        if trace is not None:
            yield Problem(
                field="environment.latency.trace",
                value=trace,
                rule=f"has no meaning for environment.latency.kind={kind}",
                remedy="set environment.latency.kind=trace, or environment.latency.trace=null",
            )
        return
    reason = "none is named" if trace is None else _trace_fault(Path(trace).expanduser())
    if reason is not None:
        yield Problem(
            field="environment.latency.trace",
            value=trace,
            rule=f"must be a text file of latencies, one in seconds a line; {reason}",
            remedy="name such a file, or choose environment.latency.kind=lognormal",
        )


def _trace_fault(path: Path) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        return str(error)
    if not lines:
        return "it is empty"
    for number, line in enumerate(lines, start=1):
        try:
            latency = float(line)
        except ValueError:
            return f"entry {number} is {line!r}"
        if not math.isfinite(latency) or latency < 0:
            return f"entry {number} is {line!r}"
    return None


@rule("resume")
def _resume_names_a_checkpoint(resume: str) -> Iterator[Problem]:
    if resume not in ("never", "auto") and not Path(resume).expanduser().is_dir():
        yield Problem(
            field="resume",
            value=resume,
            rule="must be `never`, `auto`, or the folder of a run or of a checkpoint",
            remedy="check the path, or leave resume out to begin anew",
        )


def check_run_dir(run_dir: Path, resume: Any) -> Iterator[Problem]:
    """The run's folder must be writable, and must not hold a run that would be overwritten."""
    if (run_dir / "events.jsonl").exists() and resume == "never":
        yield Problem(
            field="hydra.run.dir",
            value=str(run_dir),
            rule="must not hold a run already",
            remedy="choose another folder, or continue that run with resume=auto",
        )
    existing = run_dir
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        reason = f"{existing} is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = f"this user may not write to {existing}"
    else:
        return
    yield Problem(
        field="hydra.run.dir",
        value=str(run_dir),
        rule=f"must be a folder that can be written; {reason}",
        remedy="name one that can, as hydra.run.dir=PATH",
    )
