"""The swap bench measures real swaps, and leaves figures and a picture."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from matplotlib.image import imread

from tests.patience import patient
from tools.swap_bench.summary import PUBLISH_PARTS
from tools.swap_bench.swaps import SWAP_PARTS

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench_swap.py"
KV_BYTES = 64 * 2**20
SWAPS = 4


@pytest.mark.engine
def test_the_bench_tells_what_each_part_of_a_swap_takes(tmp_path):
    options = [f"--swaps={SWAPS}", "--requests=4", f"--kv-bytes={KV_BYTES}", f"--out={tmp_path}"]
    bench = subprocess.run(
        [sys.executable, str(BENCH), *options, "inference.verify_every=2"],
        capture_output=True,
        text=True,
        timeout=patient(280),
        check=False,
    )
    assert bench.returncode == 0, bench.stderr
    figures = json.loads((tmp_path / "bench_swap.json").read_text())

    assert set(figures) >= {
        *("schema", "setting", "machine", "model", "swaps", "warm_up", "swap", "parts", "beside"),
        *("publish", "transport", "reprefill", "released", "rss", "device_memory", "each_swap"),
    }
    assert figures["swaps"] == len(figures["each_swap"]) == SWAPS
    assert list(figures["parts"]) == list(SWAP_PARTS)
    assert list(figures["publish"]["parts"]) == list(PUBLISH_PARTS)
    assert set(figures["beside"]) == {"train", "verify"}
    for part in [*figures["parts"].values(), *figures["publish"]["parts"].values()]:
        assert 0 < part["median_s"] <= part["p90_s"]
    assert sum(part["share"] for part in figures["parts"].values()) == pytest.approx(1)
    for swap in figures["each_swap"]:
        assert swap["parked"] == 4
        # What the engine says to have given up has left its processes.
        fell = swap["rss"]["engine awake"] - swap["rss"]["engine asleep"]
        assert fell > 0.9 * KV_BYTES
    transport = figures["transport"]
    assert transport["bytes_per_s"] > 0
    assert transport["share_of_plain_copy"]["1"] > 0
    assert transport["best"]["share_of_plain_copy"]["1"] > 0

    pixels = imread(tmp_path / "bench_swap.png")
    assert pixels.shape[0] > 800
    assert pixels.shape[1] > 800
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 20

    *_, told, drawn = bench.stdout.splitlines()
    assert told.endswith(str(tmp_path / "bench_swap.json"))
    assert drawn.endswith(str(tmp_path / "bench_swap.png"))
    assert not writers_to(tmp_path / "logs")


def writers_to(folder: Path) -> list[int]:
    """Processes that have a log there open, as ranks and engines do all their lives."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(Path(file.path).is_relative_to(folder) for file in process.open_files()):
                found.append(process.pid)
    return found
