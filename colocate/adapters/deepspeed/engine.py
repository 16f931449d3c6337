"""One rank's DeepSpeed engine: forward, backward, optimizer step, and moving its state about."""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import transformers.utils.logging
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from colocate.config import TrainerConfig
from colocate.learn.batches import MicroBatch
from colocate.learn.scoring import TokenScorer

REDUCE_BUCKET_ELEMENTS = 2**26
"""Gradients reduced at a time. DeepSpeed's default, 5e8, takes 2 GB of the device in float32."""

_OPTIMIZER_STATES = (OffloadStateTypeEnum.hp_params, OffloadStateTypeEnum.optim_states)


def deepspeed_config(trainer: TrainerConfig, *, dtype: str) -> dict[str, Any]:
    """The configuration of DeepSpeed for one rank.

    Accumulation steps are 1 because the number of micro-batches varies: the boundary is set by
    hand, and the loss is normalised before DeepSpeed sees it. The optimizer is torch's AdamW,
    which, unlike DeepSpeed's fused one, needs no compiler on the machine.

    In bfloat16, stages 2 and 3 accumulate gradients over micro-batches in float32. Stage 1 does
    so in bfloat16: in float32 DeepSpeed would take another optimizer wrapper there, which cannot
    be offloaded.
    """
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": trainer.max_grad_norm,
        "steps_per_print": 2**31 - 1,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": trainer.learning_rate,
                "betas": list(trainer.betas),
                "eps": trainer.eps,
                "weight_decay": trainer.weight_decay,
                "torch_adam": True,
            },
        },
        "zero_optimization": {
            "stage": trainer.zero_stage,
            "reduce_bucket_size": REDUCE_BUCKET_ELEMENTS,
        },
    }
    if dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
        if trainer.zero_stage >= 2:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


def load_scorer(
    model_path: str, *, dtype: str, temperature: float, device: torch.device
) -> TokenScorer:
    """The model of a Hugging Face folder, in evaluation mode.

    Without dropout the same weights give the same probabilities twice, on which the ratio of
    current to proximal policy rests.
    """
    # A bar's frames would stand in the log where a rank's last words are looked for.
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        model_path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    return TokenScorer(model, temperature=temperature).to(device).eval()


class TrainingEngine:
    """A model under ZeRO.

    Args:
        scorer: On its device already.
        dtype: torch's name of the weights' type; ``zero_stage`` 0 takes ``"float32"`` only.
    """

    def __init__(
        self, scorer: TokenScorer, trainer: TrainerConfig, *, dtype: str, device: torch.device
    ) -> None:
        self._stage = trainer.zero_stage
        self._device = device
        self.deepspeed, *_ = deepspeed.initialize(
            model=scorer,
            model_parameters=list(scorer.parameters()),
            config=deepspeed_config(trainer, dtype=dtype),
            dist_init_required=False,
        )
        self.deepspeed.eval()
        self.resident = True

    def score(
        self, batch: MicroBatch, *, with_entropy: bool, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """As ``TokenScorer.forward``. All ranks must call it together."""
        logprobs, entropy = self.deepspeed(
            batch, with_entropy=with_entropy, entropy_grad=entropy_grad
        )
        return logprobs, entropy

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Adds the loss's gradient. ``last`` marks the last micro-batch before ``step``.

        DeepSpeed averages gradients over ranks. Without the mark, ZeRO 1 and 2 would keep the
        gradient of the last backward pass only.
        """
        self.deepspeed.set_gradient_accumulation_boundary(last)
        self.deepspeed.backward(loss, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        """Takes an optimizer step; returns the norm of the gradient before clipping.

        Raises:
            FloatingPointError: where that norm is not finite. The weights may be spoilt.
        """
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = learning_rate
        norm = self._plain_grad_norm() if self._stage == 0 else None
        self.deepspeed.step()
        if norm is None:
            norm = float(self.deepspeed.get_global_grad_norm())
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"the gradient's norm is {norm}: the loss or the weights overflowed; lower "
                f"trainer.learning_rate, or train in float32"
            )
        return norm

    def _plain_grad_norm(self) -> float:
        gradients = [p.grad for p in self.deepspeed.module.parameters() if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by their Hugging Face names; tied ones once."""
        return iter(self.deepspeed.module.model.named_parameters())

    def full_parameter(self, parameter: nn.Parameter) -> Tensor:
        """A parameter's whole value, on the rank's device. All ranks must call it together.

        Under ZeRO 3 the shards are gathered here and not by ``GatheredParameters``: this works
        as well while the shards are offloaded, and leaves no parameter resident.
        """
        if self._stage < 3:
            return parameter.detach().to(self._device)
        partitioned: Any = parameter
        shard = partitioned.ds_tensor.detach().to(self._device)
        world_size = torch.distributed.get_world_size()
        flat = torch.empty(shard.numel() * world_size, dtype=shard.dtype, device=self._device)
        torch.distributed.all_gather_into_tensor(flat, shard)
        whole: Tensor = flat[: partitioned.ds_numel].view(partitioned.ds_shape)
        return whole

    def offload(self) -> None:
        """Moves parameters, gradients and optimizer state to the host."""
        if not self.resident:
            return
        pin = self._device.type == "cuda"
        if self._stage == 0:
            self.deepspeed.module.to("cpu")
            self._move_optimizer_state(torch.device("cpu"))
        elif self._stage == 3:
            others = [s for s in OffloadStateTypeEnum if s not in _OPTIMIZER_STATES]
            self.deepspeed.offload_states(include=others, pin_memory=pin)
            self._move_stage3_optimizer(torch.device("cpu"))
        else:
            self.deepspeed.offload_states(pin_memory=pin)
        self.resident = False

    def load(self) -> None:
        """Undoes ``offload``."""
        if self.resident:
            return
        if self._stage == 0:
            self.deepspeed.module.to(self._device)
            self._move_optimizer_state(self._device)
        else:
            self.deepspeed.reload_states()
            if self._stage == 3:
                self._move_stage3_optimizer(self._device)
        self.resident = True

    def _move_stage3_optimizer(self, device: torch.device) -> None:
        """DeepSpeed moves these itself only for its fused Adam."""
        for master in self.deepspeed.optimizer.fp32_partitioned_groups_flat:
            master.data = master.data.to(device)
        self._move_optimizer_state(device)

    def _move_optimizer_state(self, device: torch.device) -> None:
        for state in self.deepspeed.basic_optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() > 0:
                    state[name] = value.to(device)


def release_caches() -> None:
    """Gives memory that allocators keep back to the device, and to the machine."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
