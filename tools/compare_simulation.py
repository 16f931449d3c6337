"""Simulates real runs from their journals and sets what is predicted against what was.

    python tools/compare_simulation.py RUN_DIR [RUN_DIR ...] [--seeds 5] [--json FILE]

Each run is simulated with its own configuration and with parameters fitted to its journal, once a
seed; shown is the mean over seeds. Exit status 1 where wall time is missed by more than 10% or the
mean staleness by more than 0.2 versions, in any run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from colocate.assembly import core_settings
from colocate.sim.cluster import Cluster
from colocate.sim.fit import UnfitRunError, fit_run
from tools.run_config import RunConfigError, read_run_config

WALL_SHARE = 0.1
LAG_VERSIONS = 0.2


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run and its simulation are compared by. ``histogram``: shares of tokens by lag."""

    wall_s: float
    rollout_s: float
    training_s: float
    swaps: float
    mean_lag: float
    hidden_share: float
    hidden_s: float
    histogram: dict[str, float]

    @classmethod
    def of(cls, summary: dict[str, Any], wall_s: float) -> Figures:
        environment, staleness = summary["environment"], summary["staleness"]
        total = sum(staleness["histogram"].values()) or 1
        busy_s = environment["busy_s"]
        return cls(
            wall_s=wall_s,
            rollout_s=summary["phase_s"]["rollout"],
            training_s=summary["phase_s"]["training"],
            swaps=summary["swaps"],
            mean_lag=staleness["mean_trained_lag"] or 0.0,
            hidden_share=environment["hidden_s"] / busy_s if busy_s else 0.0,
            hidden_s=environment["hidden_s"],
            histogram={lag: count / total for lag, count in staleness["histogram"].items()},
        )

    @classmethod
    def mean(cls, figures: Sequence[Figures]) -> Figures:
        def average(name: str) -> float:
            return float(sum(getattr(each, name) for each in figures)) / len(figures)

        lags = sorted({lag for each in figures for lag in each.histogram}, key=int)
        numbers = {name: average(name) for name in cls.__slots__ if name != "histogram"}
        histogram = {
            lag: sum(each.histogram.get(lag, 0.0) for each in figures) / len(figures)
            for lag in lags
        }
        return cls(**numbers, histogram=histogram)


@dataclass(frozen=True, slots=True)
class Comparison:
    run: str
    real: Figures
    simulated: Figures

    @property
    def wall_error(self) -> float:
        """Of the real wall time, as a share; above 0 where too much was predicted."""
        return self.simulated.wall_s / self.real.wall_s - 1

    @property
    def lag_error(self) -> float:
        return self.simulated.mean_lag - self.real.mean_lag

    @property
    def histogram_distance(self) -> float:
        """Total variation: the share of tokens that would have to change their lag."""
        lags = {*self.real.histogram, *self.simulated.histogram}
        return (
            sum(
                abs(self.real.histogram.get(k, 0.0) - self.simulated.histogram.get(k, 0.0))
                for k in lags
            )
            / 2
        )

    @property
    def holds(self) -> bool:
        return abs(self.wall_error) <= WALL_SHARE and abs(self.lag_error) <= LAG_VERSIONS


def compare(run_dir: Path, seeds: Sequence[int]) -> Comparison:
    """Raises ``UnfitRunError`` or ``RunConfigError`` where the run tells too little."""
    config = read_run_config(run_dir)
    summary = json.loads((run_dir / "summary.json").read_text())
    figures = []
    for seed in seeds:
        fitted = fit_run(run_dir, config.model_copy(update={"seed": seed}))
        cluster = Cluster(core_settings(config), fitted.world, scripts=fitted.scripts)
        cluster.run()
        wall_s = cluster.now_s + fitted.world.outside_s
        figures.append(Figures.of(cluster.scheduler.summary(), wall_s))
    return Comparison(run_dir.name, Figures.of(summary, summary["wall_s"]), Figures.mean(figures))


_ROWS = (
    ("wall time, s", "wall_s", ".1f"),
    ("rollout, s", "rollout_s", ".1f"),
    ("training, s", "training_s", ".1f"),
    ("swaps", "swaps", ".1f"),
    ("mean lag, versions", "mean_lag", ".3f"),
    ("environment time hidden, s", "hidden_s", ".1f"),
    ("environment time hidden, share", "hidden_share", ".3f"),
)


def _render(comparison: Comparison) -> Table:
    table = Table(title=comparison.run, title_justify="left")
    for name in ("", "real", "simulated", "difference"):
        table.add_column(name, justify="left" if not name else "right")
    for label, name, form in _ROWS:
        real, simulated = (getattr(f, name) for f in (comparison.real, comparison.simulated))
        relative = f"{100 * (simulated / real - 1):+.1f}%" if real else "-"
        if name == "mean_lag":
            relative = f"{simulated - real:+.3f}"
        table.add_row(label, f"{real:{form}}", f"{simulated:{form}}", relative)
    for lag in sorted({*comparison.real.histogram, *comparison.simulated.histogram}, key=int):
        shares = (f.histogram.get(lag, 0.0) for f in (comparison.real, comparison.simulated))
        real, simulated = shares
        table.add_row(
            f"tokens of lag {lag}, share",
            f"{real:.3f}",
            f"{simulated:.3f}",
            f"{simulated - real:+.3f}",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--seeds", type=int, default=5, help="simulations of each run")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parsed = parser.parse_args(arguments)
    console = Console()
    comparisons = []
    for run_dir in parsed.run_dirs:
        try:
            comparisons.append(compare(run_dir, range(parsed.seeds)))
        except (UnfitRunError, RunConfigError, OSError) as error:
            print(f"compare_simulation: {error}", file=sys.stderr)
            return 2
        console.print(_render(comparisons[-1]))
        console.print(
            f"histograms differ by {comparisons[-1].histogram_distance:.3f} of the tokens\n"
        )
    if parsed.json is not None:
        rows = [
            {
                "run": each.run,
                "wall_error": each.wall_error,
                "lag_error": each.lag_error,
                "histogram_distance": each.histogram_distance,
                **{
                    side: {name: getattr(getattr(each, side), name) for name in Figures.__slots__}
                    for side in ("real", "simulated")
                },
            }
            for each in comparisons
        ]
        parsed.json.write_text(json.dumps(rows, indent=2) + "\n")
    missed = [each.run for each in comparisons if not each.holds]
    if missed:
        console.print(f"missed (wall time by over 10%, or lag by over 0.2): {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
