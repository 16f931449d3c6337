"""One engine that batches continuously, as arithmetic: nothing happens between its events.

Every running sequence gets one token from each decoding pass, so all of them advance together. Let
``v`` count passes, continuously, and ``b`` sequences with ``u`` tokens of context run:

    seconds of a pass = pass_s + sequence_s x b + context_token_s x u

``u`` grows by ``b`` with each pass, so ``d`` passes take ``(pass_s + sequence_s b + context_token_s
u) d + context_token_s b d^2 / 2``, which is inverted in closed form. A sequence that joins at ``v``
with ``n`` tokens to sample is done at ``v + n``; who is done first is a heap's business, and a
change of ``b`` changes no entry of it. Prefill holds up the passes for ``prefill_token_s`` a token.

Where the KV cache is full, the sequence that joined last is preempted, as vLLM does: it waits, and
its whole context is computed anew.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from colocate.config import SimEngineConfig

Owner = TypeVar("Owner")

_NEVER = math.inf

_SLACK = 1e-6
"""Passes, or tokens, by which sums of floats may miss what they should reach."""


@dataclass(slots=True, eq=False)
class Sequence(Generic[Owner]):
    """A request at the engine.

    Attributes:
        context: Tokens that its next prefill must provide, those sampled before included.
        cached: Those of them that the prefix cache holds.
        left: Tokens to sample from here on.
        sampled: Tokens that it sampled before it was preempted.
        began: Passes of the engine when it joined the running ones; below 0 while it waits.
    """

    owner: Owner
    context: int
    cached: int
    left: int
    sampled: int = 0
    began: float = -1.0


class BatchingEngine(Generic[Owner]):
    """Call ``advance`` with the present time before anything else; times must not fall."""

    def __init__(
        self, config: SimEngineConfig, *, max_num_seqs: int, kv_tokens: int | None = None
    ) -> None:
        self._config = config
        self._max_num_seqs = max_num_seqs
        self._kv_tokens = _NEVER if kv_tokens is None else float(kv_tokens)
        self._time_s = 0.0
        self._stall_s = 0.0
        self._passes = 0.0
        self._context = 0.0
        self._serial = 0
        self._running: dict[int, Sequence[Owner]] = {}
        self._done_at: list[tuple[float, int]] = []
        self._waiting: deque[Sequence[Owner]] = deque()
        self.num_preemptions = 0
        self.busy_s = 0.0

    @property
    def num_requests(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_context_tokens(self) -> float:
        """Of the running sequences, with what they have sampled."""
        return self._context

    def advance(self, time_s: float) -> None:
        """Lets time pass up to ``time_s``; must not pass ``next_s``."""
        elapsed_s = time_s - self._time_s
        self._time_s = time_s
        if not self._running or elapsed_s <= 0:
            return
        self.busy_s += elapsed_s
        stalled_s = min(elapsed_s, self._stall_s)
        self._stall_s -= stalled_s
        self._pass(self._passes_in(elapsed_s - stalled_s))

    def submit(self, sequence: Sequence[Owner]) -> None:
        self._waiting.append(sequence)
        self._admit()

    def next_s(self) -> float:
        """When the next sequence is done, or preempted; infinite where nothing runs."""
        if not self._running:
            return _NEVER
        return self._time_s + self._stall_s + self._seconds_of(self._passes_to_next())

    def collect(self) -> list[Sequence[Owner]]:
        """At ``next_s``: takes out what is done, admits what waits."""
        to_next = self._passes_to_next()
        if to_next > 0:  # what rounding of times has left
            self._pass(to_next)
        done = []
        while self._done_at and self._done_at[0][0] <= self._passes + _SLACK:
            _, serial = heapq.heappop(self._done_at)
            sequence = self._running.pop(serial, None)
            if sequence is None:
                continue
            self._context -= sequence.context + sequence.left
            sequence.sampled += sequence.left
            sequence.left = 0
            done.append(sequence)
        while self._context >= self._kv_tokens - _SLACK and len(self._running) > 1:
            self._preempt()
        if not self._running:
            self._context = 0.0
        self._admit()
        return done

    def abort_all(self) -> list[Sequence[Owner]]:
        """Takes out everything; ``sampled`` counts whole tokens, ``left`` the rest."""
        aborted = [*self._running.values(), *self._waiting]
        for sequence in self._running.values():
            self._stop(sequence)
        self._clear()
        return aborted

    def abort(self, owner: Owner) -> None:
        """Takes one request out, wherever it is."""
        for serial, sequence in self._running.items():
            if sequence.owner is owner:
                del self._running[serial]
                self._context -= sequence.context + (self._passes - sequence.began)
                self._admit()
                return
        self._waiting = deque(s for s in self._waiting if s.owner is not owner)

    # Inside

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_num_seqs:
            sequence = self._waiting[0]
            if self._running and self._context + sequence.context + 1 > self._kv_tokens:
                return
            self._waiting.popleft()
            self._stall_s += self._config.prefill_token_s * (sequence.context - sequence.cached)
            self._context += sequence.context
            sequence.began = self._passes
            self._running[self._serial] = sequence
            heapq.heappush(self._done_at, (self._passes + sequence.left, self._serial))
            self._serial += 1

    def _preempt(self) -> None:
        serial = next(reversed(self._running))
        sequence = self._running.pop(serial)
        self._context -= sequence.context + (self._passes - sequence.began)
        self._stop(sequence)
        sequence.cached = 0
        self._waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _stop(self, sequence: Sequence[Owner]) -> None:
        num_new = min(sequence.left, math.floor(self._passes - sequence.began + _SLACK))
        sequence.sampled += num_new
        sequence.context += num_new
        sequence.left -= num_new
        sequence.began = -1.0

    def _clear(self) -> None:
        self._running.clear()
        self._waiting.clear()
        self._done_at.clear()
        self._context = self._stall_s = 0.0

    def _pass(self, num_passes: float) -> None:
        self._passes += num_passes
        self._context += num_passes * len(self._running)

    def _passes_to_next(self) -> float:
        done_at = self._done_at
        while done_at and done_at[0][1] not in self._running:
            heapq.heappop(done_at)
        until_done = done_at[0][0] - self._passes if done_at else _NEVER
        if self._kv_tokens is _NEVER or len(self._running) < 2:
            return max(0.0, until_done)
        until_full = (self._kv_tokens - self._context) / len(self._running)
        return max(0.0, min(until_done, until_full))

    def _pass_s(self) -> float:
        config = self._config
        return (
            config.pass_s
            + config.sequence_s * len(self._running)
            + config.context_token_s * self._context
        )

    def _seconds_of(self, num_passes: float) -> float:
        growth = self._config.context_token_s * len(self._running) / 2
        return num_passes * (self._pass_s() + growth * num_passes)

    def _passes_in(self, seconds: float) -> float:
        """The inverse: the positive root, in the form that does not cancel."""
        first, growth = self._pass_s(), self._config.context_token_s * len(self._running) / 2
        return 2 * seconds / (first + math.sqrt(first * first + 4 * growth * seconds))
