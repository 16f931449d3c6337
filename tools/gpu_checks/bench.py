"""The swap bench, whose own tables go to the log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.gpu_checks.checks import Checks

BENCH = Path(__file__).resolve().parents[1] / "bench_swap.py"
OPTIONS = {
    "cuda": ("--model=100m", "--swaps=20", "--kv-bytes=4294967296", "model.dtype=bfloat16"),
    "cpu": ("--swaps=4", "--requests=4", "--kv-bytes=67108864"),
}


def run(checks: Checks, device: str, folder: Path) -> None:
    command = [sys.executable, str(BENCH), *OPTIONS[device], f"--out={folder}", f"device={device}"]
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        checks.check("swaps", False, f"exit status {status}")
        return
    figures = json.loads((folder / "bench_swap.json").read_text())
    checks.check(
        "swaps",
        True,
        f"{figures['swaps']} swaps, median {figures['swap']['median_s']:.2f} s; publishing "
        f"{figures['publish']['bytes_per_s'] / 1e9:.2f} GB/s",
    )
    transport = figures["transport"]
    checks.check(
        "transport",
        True,
        f"{transport['bytes_per_s'] / 1e9:.2f} GB/s, "
        f"{100 * transport['share_of_plain_copy']['1']:.0f}% of a plain copy with one thread",
    )
    checks.check("files", True, str(folder / "bench_swap.png"))
