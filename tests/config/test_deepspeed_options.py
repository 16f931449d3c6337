"""What goes through to DeepSpeed, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from colocate.adapters.deepspeed.options import merged
from colocate.preflight import deepspeed as rules
from colocate.preflight.signatures import UnknownSignatureError
from tests.config.trees import fields_of, problem_of, problems_of


def refused(path: str, value: Any) -> str:
    """The rule and the remedy of a key's only problem."""
    options = value
    for key in reversed(path.split(".")):
        options = {key: options}
    problem = problem_of({"trainer.deepspeed": options})
    assert problem.field == f"trainer.deepspeed.{path}"
    return f"{problem.rule}; {problem.remedy}"


@pytest.mark.parametrize(
    "options",
    [
        {"zero_optimization": {"overlap_comm": True, "reduce_bucket_size": 1000}},
        {"zero_optimization": {"stage3_param_persistence_threshold": 0}},
        {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
        {"wall_clock_breakdown": True, "comms_logger": {"enabled": True}},
        {"compile": {"deepcompile": False}},
    ],
)
def test_what_colocate_does_not_set_goes_through(options: dict[str, Any]) -> None:
    assert fields_of({"trainer.deepspeed": options}) == set()


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("zero_optimization.stage", 3, "trainer.zero_stage"),
        ("optimizer", {"type": "Lamb"}, "trainer.learning_rate"),
        ("scheduler", {"type": "WarmupLR"}, "trainer.schedule"),
        ("bf16", {"enabled": True}, "trainer.dtype"),
        ("fp16", {"enabled": True}, "trainer.dtype"),
        ("gradient_clipping", 1.0, "trainer.max_grad_norm"),
        ("train_micro_batch_size_per_gpu", 8, "trainer.micro_batch_tokens"),
        ("train_batch_size", 8, "trainer.micro_batch_tokens"),
        ("gradient_accumulation_steps", 8, "trainer.num_minibatches"),
    ],
)
def test_a_key_that_a_field_sets_is_refused_with_the_field(
    path: str, value: Any, field: str
) -> None:
    assert f"is set by colocate, from {field}" in refused(path, value)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("compile.deepcompile", True, "DeepCompile cannot be combined with a swap"),
        ("zero_optimization.offload_param", {"device": "cpu"}, "moves the trainer's state itself"),
        ("zero_optimization.zenflow", {}, "moves the trainer's state itself"),
        ("zero_optimization.cpu_offload", True, "offload_optimizer"),
        ("zero_optimization.compute_grad_norm", False, "by their norm"),
        ("zero_optimization.zero_hpz_partition_size", 8, "all ranks together hold whole"),
        ("gradient_allreduce_op", "sum", "averaged over the ranks"),
        ("tensor_parallel", {"autotp_size": 2}, "data parallel"),
    ],
)
def test_what_a_swap_cannot_be_combined_with_is_refused(path: str, value: Any, reason: str) -> None:
    assert reason in refused(path, value)


def test_an_optimizer_on_a_disk_is_refused() -> None:
    options = {"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}}

    problem = problem_of({"trainer.deepspeed": options})

    assert problem.field == "trainer.deepspeed.zero_optimization.offload_optimizer.device"
    assert problem.value == "nvme"


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("zero_optimisation", "did you mean `zero_optimization`?"),
        ("zero_optimization.overlap_com", "did you mean `overlap_comm`?"),
        ("compile.deepcompil", "did you mean `deepcompile`?"),
        ("zzz", "the keys are: activation_checkpointing"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(path: str, remedy: str) -> None:
    assert remedy in refused(path, True)


def test_a_section_must_be_a_mapping() -> None:
    assert "must be a mapping" in refused("zero_optimization", 3)


def test_all_that_is_wrong_is_reported_together() -> None:
    options = {"zero_optimization": {"stage": 3, "overlap_com": True}, "fp16": {}, "zzz": 1}

    assert len(problems_of({"trainer.deepspeed": options})) == 4


def test_a_deepspeed_whose_keys_cannot_be_known_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise UnknownSignatureError("deepspeed is not installed")

    monkeypatch.setattr(rules, "field_names", fail)

    assert fields_of({}) == set()
    assert "not installed" in problem_of({"trainer.deepspeed": {"timers": {}}}).rule


def test_mappings_are_merged_key_by_key_and_all_else_is_replaced() -> None:
    base = {"a": {"x": 1, "y": [1]}, "b": 1}

    assert merged(base, {"a": {"y": [2], "z": {"w": 3}}, "c": {}}) == {
        "a": {"x": 1, "y": [2], "z": {"w": 3}},
        "b": 1,
        "c": {},
    }
    assert base == {"a": {"x": 1, "y": [1]}, "b": 1}
