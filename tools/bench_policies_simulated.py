"""Swap policies against the best fixed interval in hindsight, over families of workloads.

    .venv/bin/python tools/bench_policies_simulated.py --out policies.json

Everything is simulated: the scheduler is the real one, durations are arithmetic, so that the
figures are the same on every machine. The families are those of ``tools/policy_bench/families.py``;
a run's throughput counts its beginning, its end and what the policy needed to learn.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.policy_bench.compare import INTERVALS, Comparison, compare, throughput, worst
from tools.policy_bench.families import FAMILIES

SCHEMA = 1


def of_family(name: str, seeds: Sequence[int]) -> Comparison:
    return compare(name, FAMILIES[name], seeds=seeds)


def table(comparisons: Sequence[Comparison]) -> str:
    """Markdown: a line for each family, ratios to the best fixed interval."""
    columns = [k for k in INTERVALS if any(k in c.intervals for c in comparisons)]
    head = ["family", *(f"{k}" for k in columns), "drain", "adaptive"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for c in comparisons:
        fixed = [c.interval_ratio(k) for k in columns]
        cells = ["" if r is None else f"{r:.2f}" for r in fixed]
        cells += [f"{c.ratio('drain'):.2f}", f"**{c.ratio('adaptive'):.3f}**"]
        lines.append(f"| {c.family} | {' | '.join(cells)} |")
    worsts = [worst(comparisons, k)[0] for k in columns]
    ends = [f"{worst(comparisons, 'drain')[0]:.2f}", f"**{worst(comparisons, 'adaptive')[0]:.3f}**"]
    lines.append(f"| *worst* | {' | '.join([f'{w:.2f}' for w in worsts] + ends)} |")
    return "\n".join(lines)


def record(comparisons: Sequence[Comparison], seeds: Sequence[int]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "seeds": list(seeds),
        "families": {
            c.family: {
                "best_interval": c.best_interval,
                "best_per_s": throughput(c.intervals[c.best_interval]),
                "adaptive_ratio": c.ratio("adaptive"),
                "runs": {
                    **{f"interval {k}": [asdict(r) for r in rs] for k, rs in c.intervals.items()},
                    **{policy: [asdict(r) for r in rs] for policy, rs in c.others.items()},
                },
            }
            for c in comparisons
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=4, help="runs of each policy, averaged")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--families", default="", help="parts of names, separated by |; all")
    parser.add_argument("--jobs", type=int, default=1, help="families at a time")
    parser.add_argument("--out", type=Path, help="where every run's figures go, as JSON")
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    names = [n for n in FAMILIES if any(part in n for part in args.families.split("|"))]
    with ProcessPoolExecutor(args.jobs) as pool:
        comparisons = list(pool.map(partial(of_family, seeds=tuple(seeds)), names))
    print(table(comparisons))
    if args.out:
        args.out.write_text(json.dumps(record(comparisons, seeds), indent=1) + "\n")


if __name__ == "__main__":
    main()
