"""Where the trainer's state may lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.config.trees import fields_of, problem_of


def offload_optimizer(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"offload_optimizer": {"device": "cpu", **keys}}}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_optimizer_on_the_host_goes_with_every_stage_of_zero(stage: int) -> None:
    options = offload_optimizer(pin_memory=True, ratio=1.0)
    assert fields_of({"trainer.zero_stage": stage, "trainer.deepspeed": options}) == set()


def test_an_optimizer_on_the_host_needs_zero() -> None:
    problem = problem_of(
        {
            "model.dtype": "float32",
            "trainer.zero_stage": 0,
            "trainer.deepspeed": offload_optimizer(),
        }
    )
    assert problem.field == "trainer.deepspeed.zero_optimization.offload_optimizer.device"
    assert "needs trainer.zero_stage of 1 or more" in problem.rule
    assert "trainer=zero3_offload" in problem.remedy


@pytest.mark.parametrize(("key", "value"), [("ratio", 0.5), ("super_offload", True)])
def test_what_only_deepspeeds_compiled_adam_can_do_is_refused(key: str, value: Any) -> None:
    problem = problem_of(
        {"trainer.zero_stage": 3, "trainer.deepspeed": offload_optimizer(**{key: value})}
    )
    assert problem.field == f"trainer.deepspeed.zero_optimization.offload_optimizer.{key}"
    assert "compiled on the machine" in problem.rule


@pytest.mark.parametrize(
    ("model", "trainer", "allowed"),
    [
        ("float32", None, True),
        ("bfloat16", "float32", True),
        ("bfloat16", None, False),
        ("float32", "bfloat16", False),
    ],
)
def test_without_zero_only_float32_can_be_trained(
    model: str, trainer: str | None, allowed: bool
) -> None:
    values = {"model.dtype": model, "trainer.dtype": trainer, "trainer.zero_stage": 0}
    assert fields_of(values) == (set() if allowed else {"trainer.zero_stage"})


def test_packing_is_refused_with_a_model_that_must_be_padded(tmp_path: Path) -> None:
    settings = {"model_type": "mistral", "sliding_window": 4096}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    model = {"model.embedded": None, "model.path": str(tmp_path)}
    problem = problem_of({**model, "trainer.packing": True})
    assert problem.field == "trainer.packing"
    assert "its attention has a sliding window" in problem.rule
    assert fields_of({**model, "trainer.packing": "auto"}) == set()


@pytest.mark.parametrize("packing", ["auto", True, False])
def test_the_embedded_model_can_be_packed_and_padded(packing: str | bool) -> None:
    assert fields_of({"trainer.packing": packing}) == set()


def test_another_word_for_packing_is_refused() -> None:
    assert problem_of({"trainer.packing": "always"}).field == "trainer.packing"
