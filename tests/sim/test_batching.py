"""The engine's arithmetic against passes written out one by one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colocate.config import SimEngineConfig
from colocate.sim.batching import BatchingEngine, Sequence


def run(
    engine: BatchingEngine[int], arrivals: list[tuple[float, int, int]]
) -> tuple[dict[int, float], dict[int, int]]:
    """When each of ``arrivals`` (time, context, tokens to sample) was done, and what it sampled."""
    pending = sorted((time_s, number, c, n) for number, (time_s, c, n) in enumerate(arrivals))
    done_s: dict[int, float] = {}
    sampled: dict[int, int] = {}
    while pending or engine.num_requests:
        arrival_s = pending[0][0] if pending else math.inf
        event_s = engine.next_s()
        now_s = min(arrival_s, event_s)
        engine.advance(now_s)
        if arrival_s <= event_s:
            _, number, context, left = pending.pop(0)
            engine.submit(Sequence(owner=number, context=context, cached=0, left=left))
            continue
        for sequence in engine.collect():
            done_s[sequence.owner] = now_s
            sampled[sequence.owner] = sequence.sampled
    return done_s, sampled


def test_a_lone_request_takes_its_prefill_and_a_pass_a_token() -> None:
    config = SimEngineConfig(
        pass_s=0.02, sequence_s=0.001, context_token_s=1e-5, prefill_token_s=1e-3
    )
    done_s, _ = run(BatchingEngine(config, max_num_seqs=8), [(1.0, 100, 50)])
    # Context grows continuously from 100 to 150 over the passes.
    expected = 1.0 + 100 * 1e-3 + 50 * (0.021 + 1e-5 * 125)
    assert done_s[0] == pytest.approx(expected)


def test_equal_requests_share_every_pass_and_more_than_fit_wait_their_turn() -> None:
    config = SimEngineConfig(pass_s=0.01, sequence_s=0.002, prefill_token_s=0.0)
    done_s, _ = run(BatchingEngine(config, max_num_seqs=4), [(0.0, 10, 20)] * 6)
    together, rest = 20 * (0.01 + 4 * 0.002), 20 * (0.01 + 2 * 0.002)
    assert [done_s[n] for n in range(4)] == pytest.approx([together] * 4)
    assert [done_s[n] for n in (4, 5)] == pytest.approx([together + rest] * 2)


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(st.floats(0, 5), st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12
    ),
    max_num_seqs=st.integers(1, 6),
)
def test_any_arrivals_end_as_in_small_steps_of_time(
    arrivals: list[tuple[float, int, int]], max_num_seqs: int
) -> None:
    """Euler's method on the same rate, with steps far below a pass."""
    config = SimEngineConfig(
        pass_s=0.05, sequence_s=0.01, context_token_s=1e-4, prefill_token_s=0.0
    )
    done_s, sampled = run(BatchingEngine(config, max_num_seqs=max_num_seqs), arrivals)
    step_s, now_s = 1e-3, 0.0
    waiting = [n for _, n in sorted((t, n) for n, (t, _, _) in enumerate(arrivals))]
    running: dict[int, float] = {}
    written: dict[int, float] = {}
    while len(written) < len(arrivals):
        while waiting and len(running) < max_num_seqs and arrivals[waiting[0]][0] <= now_s:
            running[waiting.pop(0)] = 0.0
        context = sum(arrivals[n][1] + v for n, v in running.items())
        rate = 1 / (0.05 + 0.01 * len(running) + 1e-4 * context)
        now_s += step_s
        for number in list(running):
            running[number] += rate * step_s
            if running[number] >= arrivals[number][2]:
                written[number] = now_s
                del running[number]
    assert sampled == {n: a[2] for n, a in enumerate(arrivals)}
    for number, at_s in written.items():
        assert done_s[number] == pytest.approx(at_s, rel=0.01, abs=0.02)


def test_a_full_cache_preempts_the_youngest_and_every_token_is_sampled_once() -> None:
    config = SimEngineConfig(pass_s=0.01, sequence_s=0.0, prefill_token_s=1e-3)
    roomy = BatchingEngine[int](config, max_num_seqs=8)
    tight = BatchingEngine[int](config, max_num_seqs=8, kv_tokens=200)
    arrivals = [(0.01 * n, 40, 60) for n in range(4)]
    free_s, _ = run(roomy, arrivals)
    done_s, sampled = run(tight, arrivals)
    assert roomy.num_preemptions == 0
    assert tight.num_preemptions > 0
    assert sampled == dict.fromkeys(range(4), 60)
    assert done_s[0] == pytest.approx(free_s[0], rel=0.1), "the oldest is never preempted"
    assert max(done_s.values()) > max(free_s.values())


@given(elapsed_s=st.floats(0, 10), lengths=st.lists(st.integers(1, 200), min_size=1, max_size=6))
def test_what_is_aborted_has_its_whole_tokens_and_no_more(
    elapsed_s: float, lengths: list[int]
) -> None:
    config = SimEngineConfig(pass_s=0.05, sequence_s=0.0, prefill_token_s=0.0)
    engine = BatchingEngine[int](config, max_num_seqs=8)
    for number, length in enumerate(lengths):
        engine.submit(Sequence(owner=number, context=5, cached=0, left=length))
    sampled = dict.fromkeys(range(len(lengths)), 0)
    while engine.next_s() <= elapsed_s:
        engine.advance(engine.next_s())
        sampled.update({s.owner: s.sampled for s in engine.collect()})
    engine.advance(elapsed_s)
    sampled.update({s.owner: s.sampled for s in engine.abort_all()})
    for number, length in enumerate(lengths):
        assert abs(sampled[number] - min(length, elapsed_s / 0.05)) <= 1 + 1e-6
        assert sampled[number] <= length
    assert engine.num_requests == 0
