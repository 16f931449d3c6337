"""Runs the embedded task while its processes are killed at random, and checks its books at the end.

    .venv/bin/python tools/chaos.py RUN_DIR --seed 3 [--faults 4] [KEY=VALUE ...]

The schedule follows from the seed: which process (engine, trainer rank, driver), which signal
(SIGKILL, SIGTERM, SIGSTOP), how many training steps after the fault before, and how long after that
step. A driver that is gone is started again with ``resume=auto``; one that is stopped goes on a few
seconds later. Exit status 1 where anything does not balance: each life's journal is replayed, every
step must have been taken once in the line that survived, and no process and no shared memory may be
left. Real engines; a start takes its time, so a run takes minutes.

Exit status: 0 all balanced; 1 something did not, or the run did not get on; 2 a wrong setting.
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
    options = parser.parse_intermixed_args(arguments)
    if options.run_dir.exists():
        print(f"chaos: {options.run_dir} must not exist yet; take another folder", file=sys.stderr)
        return 2
    schedule = draw_schedule(options.seed, options.faults, options.steps)
    for fault in schedule:
        print(f"planned: {fault}", flush=True)
    ordeal = Ordeal(options.run_dir, options.steps, options.overrides)
    try:
        status = ordeal.endure(schedule)
    except TimeoutError as error:
        print(f"chaos: {error}: {options.run_dir}", file=sys.stderr)
        return 1
    if status == 2:  # the run has said what is wrong
        return 2
    problems = find_faults_of_books(
        options.run_dir, options.steps, status, ordeal.seen, ordeal.run_ids
    )
    for fault in schedule:
        if fault not in ordeal.struck:
            print(f"the run was over, or nobody was there, for: {fault}")
    for problem in problems:
        print(f"WRONG: {problem}")
    print(f"{len(ordeal.struck)} faults, {ordeal.num_lives} lives: ", end="")
    print("books balanced" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
