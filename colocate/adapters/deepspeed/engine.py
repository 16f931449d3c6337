"""One rank's DeepSpeed engine: forward, backward, optimizer step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import transformers.utils.logging
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from colocate.adapters.deepspeed.moves import ZeroState
from colocate.adapters.deepspeed.options import merged
from colocate.config import LoraConfig, TrainerConfig
from colocate.learn.batches import MicroBatch
from colocate.learn.lora import Weight, add_adapters, by_base_name, without_adapters
from colocate.learn.packed_attention import PACKED_ATTENTION
from colocate.learn.packing import decide_packing
from colocate.learn.recomputation import recompute_layers
from colocate.learn.scoring import TokenScorer

REDUCE_BUCKET_ELEMENTS = 2**26
"""Gradients reduced at a time, at most. DeepSpeed's default, 5e8, takes 2 GB in float32."""


def deepspeed_config(trainer: TrainerConfig, *, dtype: str, num_elements: int) -> dict[str, Any]:
    """The configuration of DeepSpeed for one rank.

    Accumulation steps are 1 because the number of micro-batches varies: the boundary is set by
    hand, and the loss is normalised before DeepSpeed sees it. The optimizer is torch's AdamW,
    which, unlike DeepSpeed's own, needs no compiler on the machine, be its state on the device
    or on the host. Fused, it makes no copies of that state's size, and is many times faster on CPU.

    In bfloat16, stages 2 and 3 accumulate gradients over micro-batches in float32. Stage 1 does
    so in bfloat16: in float32 DeepSpeed would take another optimizer wrapper there, which cannot
    be offloaded.

    Args:
        num_elements: Of all parameters that are trained; a bucket for gradients need not be larger.
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
                "fused": True,
            },
        },
        "zero_optimization": {
            "stage": trainer.zero_stage,
            "reduce_bucket_size": min(REDUCE_BUCKET_ELEMENTS, num_elements),
        },
    }
    if dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
        if trainer.zero_stage >= 2:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    return merged(config, trainer.deepspeed)


def load_scorer(
    model_path: str,
    trainer: TrainerConfig,
    *,
    dtype: str,
    temperature: float,
    fp32_head: bool = False,
    lora: LoraConfig | None = None,
    seed: int = 0,
    device: torch.device,
) -> TokenScorer:
    """The model of a Hugging Face folder, in evaluation mode, with adapters where asked for.

    Without dropout the same weights give the same probabilities twice, on which the ratio of
    current to proximal policy rests.

    Args:
        seed: Of the adapters' first values.

    Raises:
        ValueError: the trainer is to do what cannot be done with this model.
    """
    # A bar's frames would stand in the log where a rank's last words are looked for.
    transformers.utils.logging.disable_progress_bar()
    settings = AutoConfig.from_pretrained(model_path)
    packed = decide_packing(trainer.packing, settings.to_dict())
    model = AutoModelForCausalLM.from_pretrained(
        model_path,
        dtype=getattr(torch, dtype),
        attn_implementation=PACKED_ATTENTION if packed else "sdpa",
    )
    if lora is not None:
        add_adapters(model, lora, seed=seed)
    if trainer.gradient_checkpointing:
        recompute_layers(model)
        if lora is not None:
            # Else no gradient would reach the first layer's input, and the layer keep everything.
            model.enable_input_require_grads()
    return TokenScorer(
        model.to(device).eval(), temperature=temperature, packed=packed, fp32_head=fp32_head
    )


class TrainingEngine:
    """A model under ZeRO.

    Attributes:
        state: Its parameters, gradients and optimizer state, which can leave the device.
        adapter_scale: Of the product of an adapter's factors; 0 in a model without adapters.

    Args:
        scorer: On its device already. Parameters that need no gradient stay as they are.
        dtype: torch's name of the weights' type; ``zero_stage`` 0 takes ``"float32"`` only.
    """

    def __init__(
        self,
        scorer: TokenScorer,
        trainer: TrainerConfig,
        *,
        dtype: str,
        lora: LoraConfig | None = None,
        device: torch.device,
    ) -> None:
        self.adapter_scale = 0.0 if lora is None else lora.scale
        self._stage = trainer.zero_stage
        self._device = device
        parameters = [each for each in scorer.parameters() if each.requires_grad]
        num_elements = sum(parameter.numel() for parameter in parameters)
        self.deepspeed, *_ = deepspeed.initialize(
            model=scorer,
            model_parameters=parameters,
            config=deepspeed_config(trainer, dtype=dtype, num_elements=num_elements),
            dist_init_required=False,
        )
        self.deepspeed.eval()
        self.state = ZeroState(self.deepspeed, stage=self._stage, device=device)

    @property
    def packed(self) -> bool:
        """Whether the rows of a micro-batch may lie end to end."""
        return bool(self.deepspeed.module.packed)

    def score(
        self, batch: MicroBatch, *, with_entropy: bool, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """As ``TokenScorer.forward``. All ranks must call it together."""
        logprobs, entropy = self.deepspeed(
            batch, with_entropy=with_entropy, entropy_grad=entropy_grad
        )
        return logprobs, entropy

    def score_without_adapters(
        self, batch: MicroBatch, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As ``score``, of the model that the adapters were added to. Outside of any graph."""
        with torch.no_grad(), without_adapters(self.deepspeed.module):
            return self.score(batch, with_entropy=with_entropy)

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
        """Parameters by their names in the model, adapters' included; tied ones once."""
        return iter(self.deepspeed.module.model.named_parameters())

    def weights(self) -> dict[str, Weight[nn.Parameter]]:
        """What an engine is to serve, by its Hugging Face names; tied ones once."""
        if not self.adapter_scale:
            return {name: Weight(parameter) for name, parameter in self.named_parameters()}
        return by_base_name(self.named_parameters())

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that the model has an embedding for."""
        config = self.deepspeed.module.model.config.get_text_config()
        return int(config.vocab_size)

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
