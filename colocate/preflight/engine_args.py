"""Rules of ``inference.engine_args``, which go to vLLM beside what colocate sets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colocate.machine import DeviceChoice, resolve_device
from colocate.preflight.signatures import UnknownSignatureError, field_names
from colocate.preflight.table import rule
from colocate.problems import Problem, nearest


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why an argument is refused, and what to do instead; ``harmless`` values are let through."""

    rule: str
    remedy: str
    harmless: tuple[Any, ...] = ()

    def forgives(self, value: Any) -> bool:
        """A boolean is no integer here: ``True == 1``."""
        return any(type(value) is type(each) and value == each for each in self.harmless)


_FIELDS = {
    "model": "model.path",
    "model_weights": "model.path",
    "tokenizer": "model.path",
    "revision": "model.path",
    "code_revision": "model.path",
    "tokenizer_revision": "model.path",
    "hf_config_path": "model.path",
    "hf_overrides": "model.path",
    "dtype": "model.dtype",
    "seed": "seed",
    "tensor_parallel_size": "inference.tensor_parallel_size",
    "kv_cache_memory_bytes": "inference.kv_cache_memory_bytes",
    "gpu_memory_utilization": "inference.kv_cache_memory_bytes",
    "num_gpu_blocks_override": "inference.kv_cache_memory_bytes",
    "max_model_len": "inference.max_model_len",
    "max_num_seqs": "inference.max_num_seqs",
    "enforce_eager": "inference.enforce_eager",
    "enable_sleep_mode": "inference.sleep",
    "enable_cumem_allocator": "inference.sleep",
    "sleep_preserve_parameter_names": "inference.sleep",
    "override_generation_config": "rollout.temperature",
}
"""Arguments that fields of the configuration stand for; trainer and engine must agree on them."""

_FIXED = {
    "worker_cls": "its worker releases memory, takes it back and receives weights",
    "weight_transfer_config": "weights come from the trainer's ranks",
    "logprobs_mode": "the log-probabilities must be those of what was sampled from",
    "max_logprobs": "the log-probability of the sampled token is all that is recorded",
    "enable_prefix_caching": "the turns of a trajectory share a prefix, and a publication resets "
    "the cache",
    "generation_config": "sampling is what the section `rollout` says",
    "distributed_executor_backend": "it starts and supervises the engine's processes",
    "logging_config": "the engine's log goes to logs/vllm.log",
    "log_level": "the engine's log goes to logs/vllm.log",
    "log_config_file": "the engine's log goes to logs/vllm.log",
    "disable_log_stats": "its own metrics are measured outside the engine",
    "runner": "the engine generates",
    "convert": "the engine generates",
    "pooler_config": "the engine generates",
}

_NONE = (None, False)

_SPECULATION = _Refusal(
    "speculative decoding is not supported: a publication does not reach a draft, which would go "
    "on with old weights, and methods without one have not been tried with a swap",
    "remove it",
    _NONE,
)
_QUANTIZATION = _Refusal(
    "quantized rollout is not supported: a publication brings unquantized weights, and scales do "
    "not survive a sleep",
    "remove it, and choose model.dtype=bfloat16",
    (None, False, "auto", "bfloat16", "float16"),
)
_PARALLEL = _Refusal(
    "is not supported: colocate places the engine's workers on the GPUs of the trainer's ranks",
    "use inference.num_engines for engines side by side, and inference.tensor_parallel_size to "
    "divide one; CUDA_VISIBLE_DEVICES chooses GPUs",
    (None, False, 1),
)
_SECOND_CACHE = _Refusal(
    "a second tier of KV cache is not supported: a swap frees the memory that it has registered, "
    "and it may go on serving what old weights computed",
    "remove it; raise inference.kv_cache_memory_bytes instead",
    _NONE,
)
_SAMPLING = _Refusal(
    "is not supported: the trainer does not apply it, so its probabilities would not be those "
    "sampled from",
    "remove it",
    _NONE,
)

_REFUSED: dict[str, _Refusal] = {
    **{
        name: _Refusal(f"is set by colocate, from {field}", f"remove it, and set {field}")
        for name, field in _FIELDS.items()
    },
    **{name: _Refusal(f"is set by colocate: {why}", "remove it") for name, why in _FIXED.items()},
    **dict.fromkeys(
        (
            "speculative_config",
            "speculative_model",
            "num_speculative_tokens",
            "spec_method",
            "spec_model",
            "spec_tokens",
        ),
        _SPECULATION,
    ),
    **dict.fromkeys(("quantization", "quantization_config", "kv_cache_dtype"), _QUANTIZATION),
    **dict.fromkeys(
        (
            "pipeline_parallel_size",
            "prefill_context_parallel_size",
            "data_parallel_size",
            "data_parallel_size_local",
            "data_parallel_rank",
            "data_parallel_start_rank",
            "data_parallel_address",
            "data_parallel_rpc_port",
            "data_parallel_hybrid_lb",
            "data_parallel_external_lb",
            "data_parallel_multi_port_external_lb",
            "data_parallel_backend",
            "enable_elastic_ep",
            "nnodes",
            "node_rank",
            "master_addr",
            "master_port",
            "device_ids",
        ),
        _PARALLEL,
    ),
    **dict.fromkeys(("kv_transfer_config", "kv_offloading_size"), _SECOND_CACHE),
    **dict.fromkeys(("logits_processors", "watermark_config"), _SAMPLING),
}


@rule("inference.engine_args")
def _engine_args_are_ours_to_pass(engine_args: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in engine_args.items():
        refusal = _REFUSED.get(name)
        if refusal is not None and not refusal.forgives(value):
            yield Problem(
                field=f"inference.engine_args.{name}",
                value=value,
                rule=refusal.rule,
                remedy=refusal.remedy,
            )
    if engine_args.get("load_format") == "dummy":
        yield Problem(
            field="inference.engine_args.load_format",
            value="dummy",
            rule="the engine's first rollout must use the model's weights, not random ones",
            remedy="remove it",
        )


@rule("inference.engine_args")
def _engine_args_are_known_to_vllm(engine_args: Mapping[str, Any]) -> Iterator[Problem]:
    names = [name for name in engine_args if name not in _REFUSED]
    if not names:
        return
    try:
        known = field_names("vllm", "engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs"))
    except UnknownSignatureError as error:
        yield Problem(
            field="inference.engine_args",
            value=dict(engine_args),
            rule=f"must be arguments of vLLM's AsyncEngineArgs, which cannot be read: {error}",
            remedy="see `colocate doctor`, or leave inference.engine_args empty",
        )
        return
    for name in names:
        if name not in known:
            guess = nearest(name, known - _REFUSED.keys())
            yield Problem(
                field=f"inference.engine_args.{name}",
                value=engine_args[name],
                rule="vLLM's AsyncEngineArgs has no such argument",
                remedy=f"did you mean `{guess}`?"
                if guess
                else "see vLLM's documentation of its engine arguments",
            )


@rule("inference.engine_args", "inference.sleep")
def _adapters_survive_sleep(engine_args: Mapping[str, Any], sleep: str | int) -> Iterator[Problem]:
    if engine_args.get("enable_lora") and sleep in (2, "auto"):
        level = "level 2 sleep" if sleep == 2 else "level 2 sleep, which `auto` may choose,"
        yield Problem(
            field="inference.engine_args.enable_lora",
            value=engine_args["enable_lora"],
            rule=f"cannot be combined with inference.sleep={sleep}: {level} drops adapters, and a "
            "publication brings the full weights only",
            remedy="remove it, or set inference.sleep=1, which keeps them in RAM",
        )


@rule("device", "inference.engine_args")
def _prompts_are_whole_on_cpu(
    device: DeviceChoice, engine_args: Mapping[str, Any]
) -> Iterator[Problem]:
    if engine_args.get("enable_chunked_prefill") and resolve_device(device, os.environ) == "cpu":
        yield Problem(
            field="inference.engine_args.enable_chunked_prefill",
            value=engine_args["enable_chunked_prefill"],
            rule="must be off on CPU: vLLM rewinds the random generator of a request whose prompt "
            "it prefills in pieces, which torch cannot do there",
            remedy="remove it",
        )


@rule("model.path")
def _model_is_not_quantized(path: str | None) -> Iterator[Problem]:
    if path is None:
        return
    try:
        config = json.loads((Path(path).expanduser() / "config.json").read_text())
    except (OSError, ValueError):  # a hub name, or a folder that another rule or loading refuses
        return
    method = config.get("quantization_config") if isinstance(config, dict) else None
    if method:
        name = method.get("quant_method", "unnamed") if isinstance(method, dict) else method
        yield Problem(
            field="model.path",
            value=path,
            rule=f"{_QUANTIZATION.rule}; this model is quantized ({name})",
            remedy="name the model that it was made from",
        )
