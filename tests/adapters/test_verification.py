"""Which prompts are compared, and what difference is too large."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.adapters.verification import Limit, difference_of, limit_of, probe_prompts


@given(
    vocabulary_size=st.integers(1, 200_000),
    max_model_len=st.integers(3, 5000),
    seed=st.integers(0, 2**31),
)
def test_prompts_fit_the_model_and_are_the_same_every_time(vocabulary_size, max_model_len, seed):
    prompts = probe_prompts(vocabulary_size, max_model_len=max_model_len, seed=seed)
    lengths = [len(prompt) for prompt in prompts]
    assert lengths == sorted(set(lengths))
    assert lengths[0] >= 2
    assert lengths[-1] == min(64, max_model_len - 1)
    assert all(0 <= token < vocabulary_size for prompt in prompts for token in prompt)
    assert prompts == probe_prompts(vocabulary_size, max_model_len=max_model_len, seed=seed)


def test_prompts_come_from_the_whole_vocabulary():
    tokens = [t for p in probe_prompts(50_000, max_model_len=512, seed=0) for t in p]
    assert min(tokens) < 2_000
    assert max(tokens) > 48_000
    assert len(set(tokens)) > 0.9 * len(tokens)


def test_a_context_without_room_for_a_prompt_is_refused():
    with pytest.raises(ValueError, match="verify_every=0"):
        probe_prompts(10, max_model_len=2, seed=0)


def test_the_largest_difference_is_found_with_its_place():
    expected = [[-1.0], [-2.0, -3.0, -4.0]]
    found = difference_of(expected, [[-1.1], [-2.0, -3.5, -4.0]])
    assert (found.largest, found.prompt, found.token) == (0.5, 1, 2)
    assert found.mean == pytest.approx(0.15)


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
@pytest.mark.parametrize("of", ["largest", "mean"])
def test_what_is_not_finite_exceeds_every_limit(broken, of):
    found = difference_of([[-1.0, -2.0]], [[-1.0, broken]])
    assert Limit(of=of, value=1e9).is_exceeded_by(found)


@pytest.mark.parametrize("actual", [[[-1.0]], [[-1.0], [-2.0, -3.0]]])
def test_scorings_of_other_tokens_are_not_compared(actual):
    with pytest.raises(ValueError, match="zip"):
        difference_of([[-1.0], [-2.0]], actual)


def test_the_coarser_of_two_types_decides():
    assert limit_of(("float32", "float32")) == Limit(of="largest", value=1e-3)
    assert limit_of(("float32", "bfloat16")) == limit_of(("bfloat16", "float32"))
    assert limit_of(("float32", "bfloat16")).of == "mean"
    assert limit_of(("float32", "float32"), 0.1) == Limit(of="largest", value=0.1)


def test_in_bfloat16_a_single_token_may_be_far_off_but_not_all():
    expected = [[-5.0] * 100]
    limit = limit_of(("bfloat16",))
    assert not limit.is_exceeded_by(difference_of(expected, [[-9.5, *[-5.1] * 99]]))
    assert limit.is_exceeded_by(difference_of(expected, [[-6.0] * 100]))
