"""Swap policies against each other in real runs, under one bound, on an equal workload.

    .venv/bin/python tools/bench_policies.py --out outputs/policies
    .venv/bin/python tools/bench_policies.py --out outputs/policies --repetitions 5 steps=24
    .venv/bin/python tools/bench_policies.py --out outputs/simulated --simulate

Runs `+experiment=sweep_swap_interval` (fixed intervals 1, 2, 4 and 8, `drain`, `adaptive`), one
repetition after another, each with its own seed. A second call goes on where the first ended. Then
it prints a table of each policy's figures and its ratios to `drain` and to the best fixed interval,
each made within a repetition, with 95% intervals; `bench_policies.json` in the folder has them all.

Exit status: 0 done; 1 a job failed; 2 a wrong setting; 130 or 143 after a signal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from colocate.cli.main import main as colocate
from colocate.report.sweep_jobs import read_sweep
from tools.policy_bench.sweep import Figures, UnfitSweepError, best_interval, figures, repetitions

SCHEMA = 1
TITLES = {
    "throughput": "trained/s",
    "busy": "devices busy",
    "hidden": "hidden env. time",
    "hideable": "of what could be",
    "mean_lag": "mean lag",
    "max_lag": "max lag",
    "swaps": "swaps",
    "expired_share": "expired",
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    out = given.out.absolute()
    seeds = ",".join(str(seed) for seed in range(given.repetitions))
    status = colocate(
        [
            "simulate" if given.simulate else "train",
            "--multirun",
            "+experiment=sweep_swap_interval",
            f"seed={seeds}",
            f"hydra.sweep.dir={out}",
            *given.overrides,
        ]
    )
    if status:
        return status
    try:
        rounds = repetitions(out, read_sweep(out))
    except UnfitSweepError as error:
        print(f"bench_policies: {out}: {error}", file=sys.stderr)
        return 1
    found, best = figures(rounds), best_interval(rounds)
    Console().print(table(found, best))
    record = {
        "schema": SCHEMA,
        "simulated": given.simulate,
        "overrides": given.overrides,
        "best_interval": best,
        "repetitions": [asdict(each) for each in rounds],
        "policies": {policy: asdict(each) for policy, each in found.items()},
    }
    written = out / "bench_policies.json"
    written.write_text(json.dumps(record, indent=1) + "\n")
    print(f"All figures are in {written}; `colocate report {out}` draws them.")
    return 0


def table(found: Mapping[str, Figures], best: str) -> Table:
    """A line a policy; a ratio's interval is of the ratio, not of its parts."""
    shown = Table(title=f"Swap policies; the best fixed interval is scheduler={best}")
    shown.add_column("scheduler")
    for title in (*TITLES.values(), "to drain", "to the best interval"):
        shown.add_column(title, justify="right")
    for policy, each in found.items():
        cells = ["" if (e := each.measures[name]) is None else e.text(2) for name in TITLES]
        shown.add_row(policy, *cells, each.to_drain.text(2), each.to_best.text(2))
    return shown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the multirun's folder")
    parser.add_argument("--repetitions", type=int, default=3, help="seeds 0, 1, ... (default: 3)")
    parser.add_argument("--simulate", action="store_true", help="under a virtual clock instead")
    parser.add_argument("overrides", nargs="*", help="of the configuration: steps=24 ...")
    return parser


if __name__ == "__main__":
    sys.exit(main())
