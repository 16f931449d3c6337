"""Rules of supervision: a bound that could never be reached is refused."""

from __future__ import annotations

from collections.abc import Iterator

from colocate.preflight.table import rule
from colocate.problems import Problem


@rule(
    "supervision.max_restarts",
    "supervision.restart_window_s",
    "supervision.start_timeout_s",
    "supervision.phase_timeout_s",
    "supervision.training_timeout_s",
    "supervision.idle_timeout_s",
)
def _restarts_are_counted_together(
    max_restarts: int,
    window_s: float,
    start_timeout_s: float,
    phase_timeout_s: float,
    training_timeout_s: float,
    idle_timeout_s: float,
) -> Iterator[Problem]:
    """A process that hangs again and again is noticed at the end of a deadline each time."""
    noticed_s = max(phase_timeout_s, training_timeout_s, idle_timeout_s)
    longest_s = max_restarts * (start_timeout_s + noticed_s)
    if window_s < longest_s:
        yield Problem(
            field="supervision.restart_window_s",
            rule=f"must hold supervision.max_restarts={max_restarts} restarts, each as late as "
            "the deadlines allow (start_timeout_s and the longest of phase_timeout_s, "
            f"training_timeout_s and idle_timeout_s: {longest_s:g} s together), or a run whose "
            "process hangs each time never ends",
            value=window_s,
            remedy=f"set supervision.restart_window_s={longest_s:g}, lower those deadlines, or "
            "set supervision.max_restarts=0 to end at the first loss",
        )
