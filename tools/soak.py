"""Does anything grow? A real run of many swaps, looked at after each.

    .venv/bin/python tools/soak.py --out outputs/soak                      a thousand swaps
    .venv/bin/python tools/soak.py --out outputs/soak --swaps 200 trainer=zero2

The embedded task with small steps, so that swaps follow one another. After each: resident memory,
file descriptors, threads and processes of driver, engine and ranks, shared memory, and the bytes
that the swap added to the journal. Slopes are Theil and Sen's with intervals that allow for
readings that depend on the ones before (tools/trend.py), 95% for all of them together; the first
fifth of the swaps is a warm-up. What fills up and then stays is no growth: a slope counts where it
is told from zero over all swaps and in the second half too.

Exit status: 0 nothing grows; 1 something does, or the run failed; 2 a wrong setting.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from colocate.report.words import size
from tools.soak_run.readings import Reading, watch
from tools.soak_run.verdict import MIN_SWAPS, Growth, as_records, judge
from tools.trend import Trend

SCHEMA = 1

SMALL = (
    "+experiment=quickstart",
    "algorithm.group_size=2",
    "algorithm.groups_per_step=2",
    "inference.kv_cache_memory_bytes=67108864",
    "environment.latency.kind=off",
    "logger.display=off",
)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_intermixed_args(arguments)
    out = given.out.absolute()
    if out.exists() and any(out.iterdir()):
        print(f"soak: --out must be an empty folder or none, but {out} has files", file=sys.stderr)
        return 2
    if given.swaps < MIN_SWAPS:
        print(
            f"soak: --swaps must be at least {MIN_SWAPS} to tell a trend, is {given.swaps}",
            file=sys.stderr,
        )
        return 2
    out.mkdir(parents=True, exist_ok=True)
    readings, status = _read(out, given.swaps, given.overrides)
    if status:
        print(
            f"soak: the run ended with status {status} after {len(readings)} readings; what it "
            f"said is in {out / 'output.txt'}",
            file=sys.stderr,
        )
        return 2 if status == 2 else 1
    try:
        found = judge(readings)
    except ValueError as error:
        print(f"soak: {error}; what the run said is in {out}", file=sys.stderr)
        return 1
    console = Console(width=max(100, Console().width))  # a table that is cut tells nothing
    console.print(table(found, len(readings), readings[-1].swap))
    record = {
        "schema": SCHEMA,
        "swaps": readings[-1].swap,
        "readings": len(readings),
        "overrides": given.overrides,
        "slopes": as_records(found),
    }
    written = out / "soak.json"
    written.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"Written: {written}; each reading is in {out / 'soak.jsonl'}", soft_wrap=True)
    return 1 if any(each.grows for each in found) else 0


def _read(out: Path, swaps: int, overrides: Sequence[str]) -> tuple[list[Reading], int]:
    """What was read, and the run's exit status."""
    # One more, since a run ends its processes right after the last.
    run = (*SMALL, f"steps={swaps + 1}", f"hydra.run.dir={out / 'run'}", *overrides)
    command = [sys.executable, "-m", "colocate.cli.main", "train", *run]
    readings = []
    with (
        (out / "output.txt").open("wb") as output,
        (out / "soak.jsonl").open("w") as file,
        psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT) as driver,
    ):
        try:
            for reading in track(watch(driver, out / "run"), f"{swaps} swaps", total=swaps + 1):
                if reading.swap > swaps:
                    continue
                file.write(json.dumps(asdict(reading)) + "\n")
                file.flush()
                readings.append(reading)
        finally:
            if driver.poll() is None:
                driver.terminate()  # in order: it parks, saves and closes its processes
    return readings, driver.returncode


def table(found: Sequence[Growth], num_readings: int, num_swaps: int) -> Table:
    """A line a quantity."""
    shown = Table(
        title=f"{num_swaps} swaps, {num_readings} readings, the first fifth left out (slopes of "
        "bytes in KiB)",
        title_justify="left",
        box=None,
    )
    shown.add_column("", no_wrap=True)
    for title in ("median", "a swap (interval)", "in the second half", ""):
        shown.add_column(title, justify="right", no_wrap=True)
    for each in found:
        slopes = (_slope(each.name, trend) for trend in (each.trend, each.later))
        verdict = "GROWS" if each.grows else ""
        shown.add_row(each.name, _amount(each.name, each.median), *slopes, verdict)
    return shown


def _slope(name: str, trend: Trend) -> str:
    """In KiB for bytes."""
    unit = 1024 if "bytes" in name else 1
    slope, low, high = (f"{value / unit:.2g}" for value in (trend.slope, trend.low, trend.high))
    return f"{slope} ({low} to {high})"


def _amount(name: str, value: float) -> str:
    if "bytes" not in name:
        return f"{value:.3g}"
    return size(round(value)) if value >= 2**20 else f"{value / 1024:.1f} KiB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder for the run and figures")
    parser.add_argument("--swaps", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("overrides", nargs="*", help="of the run's configuration")
    return parser


if __name__ == "__main__":
    sys.exit(main())
