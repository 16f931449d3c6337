"""What keeps engine and trainer together is refused where it cannot."""

from __future__ import annotations

import pytest

from colocate.config import InferenceConfig
from tests.config.trees import problem_of, problems_of


def test_a_float32_model_has_no_other_head() -> None:
    problem = problem_of({"inference.fp32_head": True, "model.dtype": "float32"})
    assert problem.field == "inference.fp32_head"
    assert "model.dtype=bfloat16" in problem.remedy


def test_a_bfloat16_model_may_have_a_float32_head() -> None:
    assert problems_of({"inference.fp32_head": True, "model.dtype": "bfloat16"}) == []


def test_batch_invariant_kernels_are_refused_on_cpu() -> None:
    problem = problem_of({"inference.batch_invariant": True})
    assert problem.field == "inference.batch_invariant"
    assert "GPU" in problem.rule
    assert "inference.batch_invariant=false" in problem.remedy


@pytest.mark.parametrize(("name", "value"), [("top_p", 0.9), ("top_k", 20), ("min_p", 0.1)])
def test_a_sampler_that_cuts_the_distribution_is_refused_with_the_reason(name, value) -> None:
    problem = problem_of({f"rollout.{name}": value})
    assert problem.field == f"rollout.{name}"
    assert "mask" in problem.rule
    assert problem.remedy.startswith(f"set rollout.{name}=")


def test_a_threshold_of_nothing_is_no_threshold() -> None:
    assert problem_of({"inference.mismatch_warn": 0.0}).field == "inference.mismatch_warn"


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("float32", "float32"), 1e-3),
        (("bfloat16", "float32"), 0.05),
        (("float32", "bfloat16"), 0.05),
    ],
)
def test_the_coarsest_type_decides_what_is_worth_a_warning(dtypes, expected) -> None:
    sizes = {"kv_cache_memory_bytes": 1, "max_model_len": 8}
    assert InferenceConfig(**sizes).warns_of_mismatch_above(*dtypes) == expected
    assert InferenceConfig(**sizes, mismatch_warn=0.2).warns_of_mismatch_above(*dtypes) == 0.2
