"""What staying in rollout would bring: expected tokens and completions over a range of horizons.

A fluid model: those who decode end their turns as the learned lengths say, environments answer as
their learned latencies say given how long each has kept silent already, answers either end the
episode or queue for the engine, and the engine decodes at its learned rate for however many it
then has. It is what lets the policy tell a rate that has fallen for good from one that is about to
rise, since environments are about to return.
"""

from __future__ import annotations

from dataclasses import dataclass

from colocate.core.survival import Survival, pool
from colocate.core.workload import Stage, Workload

NUM_STEPS = 18
STEP_RATIO = 1.35
"""Each step of the horizon is longer than the one before by this."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Expected between now and ``horizon_s`` from now.

    Attributes:
        num_tokens: Tokens sampled.
        num_finished: Trajectories whose episode ends.
    """

    horizon_s: float
    num_tokens: float
    num_finished: float


@dataclass(slots=True)
class _Wave:
    """Entered a stage together, in the course of the outlook."""

    entered: float
    mass: float


def look_ahead(
    workload: Workload, *, time_s: float, longest_s: float, max_requests: int
) -> list[Outlook]:
    """The outlook at ``NUM_STEPS`` horizons up to ``longest_s``; empty before anything is known."""
    fit = workload.decode.fit()
    if fit is None:
        return []
    over = workload.end_hazard()
    tokens, step, begin = workload.turn_tokens, workload.step_s, workload.begin_s
    decoding = pool(workload.decoding_ages(time_s))
    waiting = pool(workload.ages(Stage.WAITING, time_s))
    beginning = pool(workload.ages(Stage.BEGINNING, time_s))
    queued = float(workload.num_queued)
    decode_waves: list[_Wave] = []
    wait_waves: list[_Wave] = []

    def left_decoding(progress: float) -> float:
        return _left(decoding, tokens, progress) + _left_of(decode_waves, tokens, progress)

    def left_waiting(ahead_s: float) -> float:
        return _left(waiting, step, ahead_s) + _left_of(wait_waves, step, ahead_s)

    ahead_s = progress = num_tokens = num_finished = 0.0
    step_s = longest_s * (STEP_RATIO - 1) / (STEP_RATIO**NUM_STEPS - 1)
    outlooks = []
    for _ in range(NUM_STEPS):
        now_decoding = left_decoding(progress)
        starting = min(queued, max(0.0, max_requests - now_decoding))
        if starting > 0:
            queued -= starting
            decode_waves.append(_Wave(progress, starting))
            now_decoding += starting
        # The engine's pace over the step, at the mean of those who decode at its two ends.
        pace = 1 / fit.token_s(max(1.0, now_decoding))
        after = left_decoding(progress + pace * step_s)
        mean = (now_decoding + after) / 2
        pace = 1 / fit.token_s(max(1.0, mean))
        num_tokens += mean * pace * step_s
        progress += pace * step_s
        ended = now_decoding - left_decoding(progress)
        before = left_waiting(ahead_s)
        begun = _left(beginning, begin, ahead_s) - _left(beginning, begin, ahead_s + step_s)
        answered = before - left_waiting(ahead_s + step_s)
        if ended > 0:
            # Whoever ends a turn in this step has on average half of it left to be answered in.
            early = ended * (1 - step.beyond(step_s / 2))
            answered += early
            wait_waves.append(_Wave(ahead_s + step_s / 2, ended))
        num_finished += answered * over
        queued += answered * (1 - over) + begun
        ahead_s += step_s
        step_s *= STEP_RATIO
        outlooks.append(Outlook(ahead_s, num_tokens, num_finished))
    return outlooks


def _left(groups: list[tuple[float, int]], lasting: Survival, ahead: float) -> float:
    return sum(count * lasting.still(age, ahead) for age, count in groups)


def _left_of(waves: list[_Wave], lasting: Survival, now: float) -> float:
    return sum(wave.mass * lasting.beyond(max(0.0, now - wave.entered)) for wave in waves)
