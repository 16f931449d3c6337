"""Rules of what the trainer's state can be: where it lies, and what can be moved in a swap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from colocate.config import Packing
from colocate.learn.packing import reason_to_pad
from colocate.preflight.files import model_settings
from colocate.preflight.table import rule
from colocate.problems import Problem

_OFFLOAD = "zero_optimization.offload_optimizer"

_NEEDS_COMPILED_ADAM = {"ratio": 1.0, "super_offload": False}
"""Keys of ``offload_optimizer``, and the values with which torch's AdamW can be the optimizer."""


@rule("trainer.zero_stage", "trainer.dtype", "model.dtype")
def _state_without_zero_can_be_moved(
    stage: int, trainer_dtype: str | None, model_dtype: str
) -> Iterator[Problem]:
    dtype = trainer_dtype or model_dtype
    if stage == 0 and dtype != "float32":
        yield Problem(
            field="trainer.zero_stage",
            value=stage,
            rule=f"must be at least 1 to train in {dtype}: DeepSpeed cannot offload the master "
            "weights that it keeps without ZeRO",
            remedy="set trainer.zero_stage=1, or trainer.dtype=float32",
        )


@rule("trainer.zero_stage", "trainer.deepspeed")
def _optimizer_on_the_host_is_zeros(stage: int, options: Mapping[str, Any]) -> Iterator[Problem]:
    offload = _offload_optimizer(options)
    if offload.get("device") != "cpu":
        return
    if stage == 0:
        yield Problem(
            field=f"trainer.deepspeed.{_OFFLOAD}.device",
            value="cpu",
            rule="needs trainer.zero_stage of 1 or more; without ZeRO DeepSpeed passes it over",
            remedy="choose trainer=zero3_offload, or set trainer.zero_stage",
        )
    for key, supported in _NEEDS_COMPILED_ADAM.items():
        if offload.get(key, supported) != supported:
            yield Problem(
                field=f"trainer.deepspeed.{_OFFLOAD}.{key}",
                value=offload[key],
                rule="needs DeepSpeed's own Adam, which is compiled on the machine; the optimizer "
                "here is torch's",
                remedy="remove it",
            )


@rule("trainer.packing", "model.path")
def _packing_goes_with_the_model(packing: Packing, path: str | None) -> Iterator[Problem]:
    settings = model_settings(path)
    reason = reason_to_pad(settings) if packing is True and settings else None
    if reason is not None:
        yield Problem(
            field="trainer.packing",
            value=packing,
            rule=f"must be auto or false with the model in model.path: {reason}",
            remedy="set trainer.packing=auto, which pads it",
        )


def _offload_optimizer(options: Mapping[str, Any]) -> Mapping[str, Any]:
    zero = options.get("zero_optimization")
    offload = zero.get("offload_optimizer") if isinstance(zero, Mapping) else None
    return offload if isinstance(offload, Mapping) else {}
