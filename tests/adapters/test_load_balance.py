"""Requests go to the least loaded engine, or to the one whose cache knows them, within a bound."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from colocate.adapters.load_balance import SLACK, LoadBalancer

KEYS = st.sampled_from(["a", "b", "c"])


class Balancing(RuleBasedStateMachine):
    """Requests begin and end in any order, with and without a key."""

    @initialize(num_engines=st.integers(1, 4))
    def begin(self, num_engines: int) -> None:
        self.balancer = LoadBalancer(num_engines)
        self.owed: list[tuple[int, int, ExitStack]] = []
        self.served_by: dict[str, int] = {}

    def _assign(self, affinity: str | None, num_tokens: int) -> int:
        stack = ExitStack()
        index = stack.enter_context(self.balancer.assigned(affinity, num_tokens))
        self.owed.append((index, num_tokens, stack))
        return index

    def _requests(self) -> list[int]:
        return [load.requests for load in self.balancer.loads]

    @rule(num_tokens=st.integers(1, 9))
    def a_request_without_a_key_goes_to_a_least_loaded_engine(self, num_tokens: int) -> None:
        loads = [(load.requests, load.prompt_tokens) for load in self.balancer.loads]
        index = self._assign(None, num_tokens)
        assert loads[index] == min(loads)

    @rule(key=KEYS, num_tokens=st.integers(1, 9))
    def a_request_with_a_key_stays_where_it_was_served_unless_that_engine_is_overloaded(
        self, key: str, num_tokens: int
    ) -> None:
        before = self._requests()
        least = min(before)
        index = self._assign(key, num_tokens)
        assert before[index] - least <= max(SLACK, least // 2)
        last = self.served_by.get(key)
        if last is not None and before[last] - least <= max(SLACK, least // 2):
            assert index == last
        elif last is not None:
            assert before[index] == least
        self.served_by[key] = index

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def a_request_ends(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.owed) - 1))
        self.owed.pop(position)[2].close()

    @rule()
    def the_caches_are_emptied(self) -> None:
        self.balancer.forget()
        self.served_by.clear()

    @invariant()
    def what_is_owed_is_counted(self) -> None:
        for index, load in enumerate(getattr(self, "balancer", LoadBalancer(0)).loads):
            mine = [tokens for engine, tokens, _ in self.owed if engine == index]
            assert (load.requests, load.prompt_tokens) == (len(mine), sum(mine))


TestBalancing = Balancing.TestCase


def test_an_engine_far_ahead_of_the_others_loses_even_its_own_trajectories() -> None:
    balancer = LoadBalancer(2)
    with ExitStack() as stack:
        first = stack.enter_context(balancer.assigned("mine", 10))
        for _ in range(SLACK):
            stack.enter_context(balancer.assigned("mine", 10))
        assert balancer.loads[first].requests == SLACK + 1
        assert stack.enter_context(balancer.assigned("mine", 10)) != first


def test_a_forgotten_key_is_one_like_any_other() -> None:
    balancer = LoadBalancer(2)
    with balancer.assigned("mine", 10) as first:
        balancer.forget()
        with balancer.assigned("mine", 10) as second:
            assert second != first
