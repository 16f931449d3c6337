"""What goes through to vLLM, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colocate.preflight import engine_args as rules
from colocate.preflight.signatures import UnknownSignatureError, field_names
from tests.config.trees import fields_of, problem_of, problems_of

VLLM = ("vllm", "engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs"))


def refused(name: str, value: Any, **others: Any) -> str:
    """The rule and the remedy of an argument's only problem."""
    values = {"inference.engine_args": {name: value}}
    problem = problem_of(values | {key.replace("__", "."): v for key, v in others.items()})
    assert problem.field == f"inference.engine_args.{name}"
    assert problem.value == value
    return f"{problem.rule}; {problem.remedy}"


@pytest.mark.parametrize(
    "engine_args",
    [
        {"max_num_batched_tokens": 4096, "block_size": 32},
        {"compilation_config": {"level": 3}, "attention_backend": "FLASH_ATTN"},
        {"enable_lora": False, "quantization": None, "kv_cache_dtype": "auto"},
        {"pipeline_parallel_size": 1, "speculative_config": None},
        {"enable_chunked_prefill": False},
    ],
)
def test_what_colocate_does_not_set_goes_through(engine_args: dict[str, Any]) -> None:
    assert fields_of({"inference.engine_args": engine_args}) == set()


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("model", "x", "model.path"),
        ("revision", "main", "model.path"),
        ("dtype", "half", "model.dtype"),
        ("seed", 1, "seed"),
        ("tensor_parallel_size", 2, "inference.tensor_parallel_size"),
        ("kv_cache_memory_bytes", 1, "inference.kv_cache_memory_bytes"),
        ("gpu_memory_utilization", 0.9, "inference.kv_cache_memory_bytes"),
        ("max_model_len", 64, "inference.max_model_len"),
        ("enforce_eager", True, "inference.enforce_eager"),
        ("enable_sleep_mode", True, "inference.sleep"),
    ],
)
def test_an_argument_that_a_field_sets_is_refused_with_the_field(
    name: str, value: Any, field: str
) -> None:
    words = refused(name, value)

    assert f"is set by colocate, from {field}" in words
    assert f"and set {field}" in words


@pytest.mark.parametrize(
    "name",
    [
        "worker_cls",
        "weight_transfer_config",
        "logprobs_mode",
        "max_logprobs",
        "enable_prefix_caching",
        "generation_config",
        "distributed_executor_backend",
        "disable_log_stats",
    ],
)
def test_an_argument_that_colocate_depends_on_is_refused_with_the_reason(name: str) -> None:
    assert "is set by colocate: " in refused(name, "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("speculative_config", {"method": "eagle", "model": "x"}),
        ("speculative_model", "x"),
        ("spec_model", "x"),
    ],
)
def test_speculation_is_refused_for_its_draft_is_never_updated(name: str, value: Any) -> None:
    assert "does not reach a draft" in refused(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantization", "fp8"),
        ("kv_cache_dtype", "fp8_e5m2"),
        ("kv_cache_dtype", "nvfp4"),
        ("quantization_config", {"x": 1}),
    ],
)
def test_quantized_rollout_is_refused(name: str, value: Any) -> None:
    assert "quantized rollout is not supported" in refused(name, value)


def test_a_quantized_model_is_refused(tmp_path: Path) -> None:
    config = {"max_position_embeddings": 64, "quantization_config": {"quant_method": "awq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))

    problem = problem_of({"model": {"path": str(tmp_path)}})

    assert problem.field == "model.path"
    assert "this model is quantized (awq)" in problem.rule


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pipeline_parallel_size", 2),
        ("data_parallel_size", 2),
        ("data_parallel_backend", "ray"),
        ("nnodes", 2),
        ("device_ids", [1]),
    ],
)
def test_other_parallelism_is_refused_with_what_to_use_instead(name: str, value: Any) -> None:
    assert "use inference.num_engines" in refused(name, value)


@pytest.mark.parametrize("sleep", ["auto", 2])
def test_adapters_are_refused_where_sleep_may_drop_them(sleep: str | int) -> None:
    words = refused("enable_lora", True, inference__sleep=sleep)

    assert f"inference.sleep={sleep}" in words
    assert "set inference.sleep=1" in words


@pytest.mark.parametrize("sleep", [0, "kv", 1])
def test_adapters_stay_where_sleep_keeps_the_weights(sleep: str | int) -> None:
    assert (
        fields_of({"inference.engine_args": {"enable_lora": True}, "inference.sleep": sleep})
        == set()
    )


@pytest.mark.parametrize("name", ["kv_transfer_config", "kv_offloading_size"])
def test_a_second_tier_of_kv_cache_is_refused(name: str) -> None:
    assert "a second tier of KV cache" in refused(name, {"kv_connector": "X"})


@pytest.mark.parametrize("name", ["logits_processors", "watermark_config"])
def test_what_changes_sampling_is_refused(name: str) -> None:
    assert "would not be those sampled from" in refused(name, ["x"])


def test_random_weights_are_refused() -> None:
    assert "random ones" in refused("load_format", "dummy")
    assert fields_of({"inference.engine_args": {"load_format": "safetensors"}}) == set()


@pytest.mark.usefixtures("two_gpus")
def test_prompts_are_prefilled_in_pieces_on_gpus_only() -> None:
    assert "on CPU" in refused("enable_chunked_prefill", True)
    values = {"device": "cuda", "inference.engine_args": {"enable_chunked_prefill": True}}
    assert fields_of(values) == set()


def test_an_unknown_argument_is_refused_with_the_nearest() -> None:
    assert "did you mean `max_num_batched_tokens`?" in refused("max_num_batchd_tokens", 1)
    assert "see vLLM's documentation" in refused("zzz", 1)
    assert "no such argument" in refused("_api_process_count", 2)


def test_every_refusal_is_of_an_argument_that_vllm_has_or_had() -> None:
    former = {"speculative_model", "num_speculative_tokens"}

    assert rules._REFUSED.keys() - field_names(*VLLM) == former


def test_all_that_is_wrong_is_reported_together() -> None:
    values = {"inference.engine_args": {"dtype": "half", "zzz": 1, "spec_model": "x"}}

    assert len(problems_of(values)) == 3


def test_an_engine_whose_arguments_cannot_be_known_takes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise UnknownSignatureError("vllm is not installed")

    monkeypatch.setattr(rules, "field_names", fail)

    assert fields_of({}) == set()
    problem = problem_of({"inference.engine_args": {"block_size": 32}})
    assert "vllm is not installed" in problem.rule
    assert "colocate doctor" in problem.remedy


@pytest.mark.parametrize(
    ("package", "file", "classes", "reason"),
    [
        ("no_such_package", "x.py", ("X",), "not installed"),
        ("colocate", "no_such_file.py", ("X",), "cannot be read"),
        ("colocate", "config/run.py", ("RunConfig", "Nothing"), "defines no Nothing"),
    ],
)
def test_a_signature_that_cannot_be_read_is_an_error_with_its_reason(
    package: str, file: str, classes: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(UnknownSignatureError, match=reason):
        field_names(package, file, classes)
