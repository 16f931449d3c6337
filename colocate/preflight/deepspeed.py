"""Rules of ``trainer.deepspeed``, which is merged into the configuration that colocate makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from colocate.preflight.signatures import UnknownSignatureError, field_names
from colocate.preflight.table import rule
from colocate.problems import Problem, nearest

_PASSED = frozenset(
    {
        "activation_checkpointing",
        "aio",
        "comms_logger",
        "communication_data_type",
        "compile",
        "csv_monitor",
        "disable_python_gc",
        "dump_state",
        "flops_profiler",
        "log_level",
        "memory_breakdown",
        "steps_per_print",
        "tensorboard",
        "timers",
        "wall_clock_breakdown",
        "wandb",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    }
)
"""Keys at DeepSpeed's root that may be given; it ignores those that it does not know."""

_ZERO = "zero_optimization"

_FIELDS = {
    "train_batch_size": "trainer.micro_batch_tokens",
    "train_micro_batch_size_per_gpu": "trainer.micro_batch_tokens",
    "gradient_accumulation_steps": "trainer.num_minibatches",
    "gradient_clipping": "trainer.max_grad_norm",
    "optimizer": "trainer.learning_rate, betas, eps and weight_decay",
    "scheduler": "trainer.schedule and warmup_steps",
    "bf16": "trainer.dtype",
    "bfloat16": "trainer.dtype",
    "fp16": "trainer.dtype",
    "amp": "trainer.dtype",
    "torch_autocast": "trainer.dtype",
    "data_types": "trainer.dtype",
    f"{_ZERO}.stage": "trainer.zero_stage",
}

_MEANS = (
    "is set by colocate: the loss is normalised for gradients that are averaged over the ranks",
    "remove it",
)
_MOVES = (
    "cannot be combined with a swap, which moves the trainer's state itself",
    "remove it; what a swap moves is planned from measured memory",
)
_WHOLE = (
    "is not supported: weights are published from shards that all ranks together hold whole, in "
    "the training's type",
    "remove it",
)

_REFUSED: dict[str, tuple[str, str]] = {
    **{
        path: (f"is set by colocate, from {field}", f"remove it, and set {field}")
        for path, field in _FIELDS.items()
    },
    **dict.fromkeys(
        (
            "managed_gradient_accumulation",
            "prescale_gradients",
            "gradient_predivide_factor",
            "gradient_allreduce_op",
        ),
        _MEANS,
    ),
    f"{_ZERO}.compute_grad_norm": (
        "is set by colocate: gradients are scaled to trainer.max_grad_norm by their norm",
        "remove it",
    ),
    **dict.fromkeys(
        (f"{_ZERO}.{key}" for key in ("offload_param", "cpu_offload_param", "zenflow")), _MOVES
    ),
    f"{_ZERO}.cpu_offload": (
        "is DeepSpeed's former name of offload_optimizer",
        f"set trainer.deepspeed.{_ZERO}.offload_optimizer.device=cpu",
    ),
    **dict.fromkeys(
        (
            f"{_ZERO}.{key}"
            for key in ("zero_hpz_partition_size", "zero_quantized_nontrainable_weights")
        ),
        _WHOLE,
    ),
    **dict.fromkeys(
        ("tensor_parallel", "sequence_parallel_size", "pipeline", "expert_parallel"),
        (
            "is not supported: the trainer's ranks are data parallel",
            "use trainer.zero_stage=3 to divide the parameters among trainer.num_ranks",
        ),
    ),
}


@rule("trainer.deepspeed")
def _deepspeed_keys_are_ours_to_pass(options: Mapping[str, Any]) -> Iterator[Problem]:
    for path, value in _paths(options):
        if path in _REFUSED:
            reason, remedy = _REFUSED[path]
            yield Problem(
                field=f"trainer.deepspeed.{path}", value=value, rule=reason, remedy=remedy
            )


@rule("trainer.deepspeed")
def _deepspeed_keys_are_known(options: Mapping[str, Any]) -> Iterator[Problem]:
    if not options:
        return
    known = {"": _PASSED}
    try:
        known[_ZERO] = field_names("deepspeed", "runtime/zero/config.py", ("DeepSpeedZeroConfig",))
        known["compile"] = field_names("deepspeed", "compile/config.py", ("CompileConfig",))
    except UnknownSignatureError as error:
        yield Problem(
            field="trainer.deepspeed",
            value=dict(options),
            rule=f"must be DeepSpeed's configuration, whose keys cannot be read: {error}",
            remedy="see `colocate doctor`, or leave trainer.deepspeed empty",
        )
        return
    for path, value in _paths(options):
        parent, _, name = path.rpartition(".")
        if name not in known[parent] and path not in _REFUSED:
            guess = nearest(name, known[parent])
            yield Problem(
                field=f"trainer.deepspeed.{path}",
                value=value,
                rule="DeepSpeed's configuration has no such key, or colocate does not pass it on",
                remedy=f"did you mean `{guess}`?"
                if guess
                else f"the keys are: {', '.join(sorted(known[parent]))}",
            )
    for section in (_ZERO, "compile"):
        if section in options and not isinstance(options[section], Mapping):
            yield Problem(
                field=f"trainer.deepspeed.{section}",
                value=options[section],
                rule="must be a mapping",
                remedy=f"give its keys, as +trainer.deepspeed.{section}.KEY=VALUE",
            )


@rule("trainer.deepspeed")
def _a_swap_can_move_the_trainer(options: Mapping[str, Any]) -> Iterator[Problem]:
    given = dict(_paths(options))
    if given.get("compile.deepcompile"):
        yield Problem(
            field="trainer.deepspeed.compile.deepcompile",
            value=given["compile.deepcompile"],
            rule="DeepCompile cannot be combined with a swap: states that its compiled graphs "
            "refer to cannot be offloaded",
            remedy="remove it",
        )
    optimizer = given.get(f"{_ZERO}.offload_optimizer")
    if isinstance(optimizer, Mapping) and optimizer.get("device") == "nvme":
        yield Problem(
            field=f"trainer.deepspeed.{_ZERO}.offload_optimizer.device",
            value="nvme",
            rule="must be `cpu` or `none`: a swap moves the trainer's state between device and RAM",
            remedy="set it to cpu",
        )


def _paths(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys at the root, and those of the sections whose keys are known here."""
    for key, value in options.items():
        if key in (_ZERO, "compile") and isinstance(value, Mapping):
            for inner, inner_value in value.items():
                yield f"{key}.{inner}", inner_value
        else:
            yield key, value
