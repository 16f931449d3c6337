"""Runs the embedded task while its processes are killed at random, and checks its books at the end.

    python tools/chaos.py RUN_DIR --seed 3 [--faults 4] [-- OVERRIDE ...]

The schedule follows from the seed: which process (engine, trainer rank, driver), which signal
(SIGKILL, SIGTERM, SIGSTOP), how many training steps after the fault before, and how long after that
step. A driver that is gone is started again with ``resume=auto``; one that is stopped goes on a few
seconds later. Exit status 1 where anything does not balance: each life's journal is replayed, every
step must have been taken once in the line that survived, and no process and no shared memory may be
left. Real engines; a start takes its time, so a run takes minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.chaos_run.checks import find_faults_of_books
from tools.chaos_run.ordeal import Ordeal
from tools.chaos_run.schedule import draw_schedule


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--seed", type=int, required=True, help="of the schedule")
    parser.add_argument("--faults", type=int, default=4, help="how many")
    parser.add_argument("--steps", type=int, default=12, help="of training")
    parser.add_argument("overrides", nargs="*", help="of the run's configuration")
    options = parser.parse_args(arguments)
    schedule = draw_schedule(options.seed, options.faults, options.steps)
    for fault in schedule:
        print(f"planned: {fault}", flush=True)
    ordeal = Ordeal(options.run_dir, options.steps, options.overrides)
    status = ordeal.endure(schedule)
    problems = find_faults_of_books(options.run_dir, options.steps, status, ordeal.seen)
    for problem in problems:
        print(f"WRONG: {problem}")
    print(f"{len(ordeal.struck)} faults, {ordeal.num_lives} lives: ", end="")
    print("books balanced" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
