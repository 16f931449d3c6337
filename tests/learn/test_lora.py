"""Adapters against the formula, and against PEFT's own merge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from torch import Tensor, nn
from torch.func import functional_call

from colocate.config import LoraConfig
from colocate.learn.batches import collate
from colocate.learn.lora import (
    adaptable_layers,
    add_adapters,
    by_base_name,
    merged_pieces,
    merged_state,
    without_adapters,
)
from colocate.learn.recomputation import recompute_layers
from colocate.learn.scoring import TokenScorer
from tests.learn.models import random_row, small_model

CPU = torch.device("cpu")
BATCH = collate([random_row(9, seed=1), random_row(14, seed=2)], device=CPU)
WEIGHTS = torch.linspace(-1.0, 2.0, len(BATCH.targets))

CONFIGS = {
    "plain": LoraConfig(rank=3, alpha=7.0),
    "rank-stabilized": LoraConfig(rank=5, alpha=4.0, rank_stabilized=True),
    "some": LoraConfig(rank=2, alpha=3.0, target_modules=("q_proj", "layers.1.mlp.down_proj")),
}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def lora(request) -> LoraConfig:
    return request.param


def make_model() -> nn.Module:
    return small_model("qwen3", tie_word_embeddings=True)


def adapted_model(lora: LoraConfig, *, trained: bool = True) -> nn.Module:
    model = make_model()
    add_adapters(model, lora, seed=4)
    if trained:
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.2)
    return model


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in model.named_parameters()}


def loss_of(model: nn.Module) -> Tensor:
    scorer = model if isinstance(model, TokenScorer) else TokenScorer(model, temperature=0.7)
    logprobs, _ = scorer(BATCH, with_entropy=False)
    return (logprobs * WEIGHTS).sum()


def test_merged_weights_are_those_of_pefts_own_merge(lora: LoraConfig) -> None:
    model = adapted_model(lora)
    other = get_peft_model(
        make_model(),
        PeftConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            use_rslora=lora.rank_stabilized,
            target_modules=adaptable_layers(make_model())
            if lora.target_modules == "all-linear"
            else list(lora.target_modules),
        ),
        autocast_adapter_dtype=False,
    )
    other.base_model.model.load_state_dict(model.state_dict())
    expected = weights_of(other.merge_and_unload())

    found = merged_state(weights_of(model), scale=lora.scale)

    assert found.keys() == expected.keys() == weights_of(make_model()).keys()
    changed = 0
    for name, value in found.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-6, atol=1e-6)
        changed += not torch.equal(expected[name], weights_of(make_model())[name])
    assert changed == sum(weight.factors is not None for weight in by_base_name_of(model))


def by_base_name_of(model: nn.Module) -> list[Any]:
    return list(by_base_name(model.named_parameters()).values())


def test_a_model_with_fresh_adapters_is_the_model_that_it_was(lora: LoraConfig) -> None:
    model = adapted_model(lora, trained=False)
    before = weights_of(make_model())
    after = merged_state(weights_of(model), scale=lora.scale)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name].float()) for name in before)
    assert torch.equal(loss_of(model), loss_of(make_model()))


def test_only_adapters_get_a_gradient_and_it_is_that_of_the_formula(lora: LoraConfig) -> None:
    model = adapted_model(lora)
    loss = loss_of(model)
    loss.backward()

    weights = by_base_name(model.named_parameters())
    factors = {
        name: tuple(each.detach().clone().requires_grad_() for each in weight.factors)
        for name, weight in weights.items()
        if weight.factors is not None
    }
    scale = lora.alpha / (lora.rank**0.5 if lora.rank_stabilized else lora.rank)
    merged = {
        name: weights[name].base.detach() + scale * (up @ down)
        for name, (down, up) in factors.items()
    }
    plain = TokenScorer(make_model().requires_grad_(False), temperature=0.7)
    logprobs, _ = functional_call(
        plain, {f"model.{n}": w for n, w in merged.items()}, (BATCH,), {"with_entropy": False}
    )
    expected = (logprobs * WEIGHTS).sum()
    expected.backward()

    torch.testing.assert_close(loss, expected)
    for name, weight in weights.items():
        assert weight.base.grad is None
        assert not weight.base.requires_grad
        for ours, theirs in zip(weight.factors or (), factors.get(name, ()), strict=True):
            assert float(theirs.grad.norm()) > 0
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


def test_layers_computed_again_the_first_among_them_give_the_same_gradient() -> None:
    models = [adapted_model(CONFIGS["plain"]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    first = models[1].model.layers[0].self_attn
    runs = []
    first.register_forward_pre_hook(lambda module, inputs: runs.append(torch.is_grad_enabled()))
    recompute_layers(models[1])
    models[1].enable_input_require_grads()

    for model in models:
        loss_of(model).backward()

    # TokenScorer tries the head once; then each layer runs without a graph, and again with one.
    assert runs == [False, False, True]
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_without_its_adapters_a_model_is_the_first_one_and_trains_on_with_them() -> None:
    scorer = TokenScorer(adapted_model(CONFIGS["plain"]), temperature=0.7)
    first = loss_of(make_model())
    with torch.no_grad(), without_adapters(scorer):
        assert torch.equal(loss_of(scorer), first)
    loss = loss_of(scorer)
    assert not torch.allclose(loss, first)
    loss.backward()
    trained = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 7 * 2
    assert all(parameter.grad is not None for parameter in trained)


@pytest.mark.parametrize("max_elements", [1, 20, 10**6])
def test_a_weight_is_merged_alike_whichever_run_of_it_is_asked_for(max_elements: int) -> None:
    torch.manual_seed(0)
    base, down, up = (torch.randn(size, dtype=torch.float64) for size in ((5, 7), (3, 7), (5, 3)))
    expected = (base + 0.5 * up @ down).reshape(-1)
    flat = base.reshape(-1)
    for start in range(len(flat) + 1):
        for stop in range(start, len(flat) + 1):
            pieces = list(
                merged_pieces(
                    flat[start:stop], (down, up), scale=0.5, start=start, max_elements=max_elements
                )
            )
            places = [place for place, _ in pieces]
            found = torch.cat([torch.empty(0), *(piece for _, piece in pieces)])
            assert places == [sum(len(p) for _, p in pieces[:n]) for n in range(len(pieces))]
            assert all(len(piece) <= max(7, max_elements) for _, piece in pieces)
            torch.testing.assert_close(found.double(), expected[start:stop], rtol=0, atol=1e-6)


def test_the_first_factors_depend_on_the_seed_alone() -> None:
    found = []
    for seed, state in ((4, 0), (4, 1), (5, 0)):
        model = make_model()
        torch.manual_seed(state)
        drawn = torch.random.get_rng_state()
        add_adapters(model, CONFIGS["plain"], seed=seed)
        assert torch.equal(torch.random.get_rng_state(), drawn)
        found.append([w.factors[0] for w in by_base_name_of(model) if w.factors is not None])
    assert all(map(torch.equal, found[0], found[1]))
    assert not any(map(torch.equal, found[0], found[2]))


@pytest.mark.parametrize("kind", ["llama", "mixtral", "gemma2"])
def test_adapters_go_beside_every_linear_layer_but_the_head(kind: str) -> None:
    model = small_model(kind, **({"num_local_experts": 2} if kind == "mixtral" else {}))
    add_adapters(model, LoraConfig(rank=2), seed=0)
    with_adapter = {
        name.removesuffix(".weight")
        for name, weight in by_base_name(model.named_parameters()).items()
        if weight.factors is not None
    }
    assert {name.rpartition(".")[2] for name in with_adapter} >= {"q_proj", "o_proj"}
    assert not any("lm_head" in name or "embed" in name for name in with_adapter)


@pytest.mark.parametrize("target", ["w_proj", "proj", "lm_head", "embed_tokens", "input_layernorm"])
def test_a_target_that_can_have_no_adapter_is_refused_with_those_that_can(target: str) -> None:
    lora = LoraConfig(target_modules=("q_proj", target))
    with pytest.raises(ValueError, match=rf"names {target}, which is no layer .* down_proj, gate"):
        add_adapters(make_model(), lora, seed=0)


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="GPT2LMHeadModel, which has no linear layer"):
        add_adapters(small_model("gpt2"), LoraConfig(), seed=0)
