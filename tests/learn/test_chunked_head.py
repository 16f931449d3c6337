"""Scores from the output head, chunk by chunk, and when they are not to be had there."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from colocate.learn.batches import collate
from colocate.learn.chunked_head import head_scores
from colocate.learn.recomputation import recompute_layers
from colocate.learn.scoring import TokenScorer
from colocate.learn.token_scores import Wanted
from tests.learn.models import random_row, small_model

CPU = torch.device("cpu")
BATCH = collate([random_row(length, seed) for seed, length in enumerate([19, 12, 7])], device=CPU)
VOCABULARY, WIDTH, POSITIONS = 1000, 12, 64


def a_head(dtype: torch.dtype, *, bias: bool, frozen: bool = False) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=dtype).requires_grad_(not frozen)


def of_head(
    head: nn.Linear, *, max_elements: int, with_entropy: bool = True, entropy_grad: bool = True
) -> tuple[Tensor, list[Tensor | None]]:
    """Scores, and gradients of a weighted sum of them."""
    torch.manual_seed(2)
    hidden = torch.randn(POSITIONS, WIDTH, dtype=head.weight.dtype, requires_grad=True)
    wanted = Wanted(
        targets=torch.randint(VOCABULARY, (POSITIONS,)),
        temperature=0.7,
        with_entropy=with_entropy,
        entropy_grad=entropy_grad,
    )
    scores = head_scores(head, hidden, wanted, max_elements=max_elements)
    head.zero_grad()
    (scores * torch.randn_like(scores)).sum().backward()
    return scores.detach(), [
        hidden.grad,
        head.weight.grad,
        *(p.grad for p in [head.bias] if p is not None),
    ]


@pytest.mark.parametrize("max_elements", [1, 3 * VOCABULARY, 63 * VOCABULARY])
@pytest.mark.parametrize("entropy", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("bias", "frozen"), [(False, False), (True, False), (False, True)])
def test_chunks_change_neither_scores_nor_gradients(max_elements, entropy, bias, frozen):
    head = a_head(torch.float64, bias=bias, frozen=frozen)
    options = {"with_entropy": entropy[0], "entropy_grad": entropy[1]}
    whole = of_head(head, max_elements=10**9, **options)
    chunked = of_head(head, max_elements=max_elements, **options)
    assert (chunked[1][1] is None) == frozen
    # Softmax is in float32, whatever the head's type.
    torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-6)


def test_in_bfloat16_chunks_cost_the_weights_gradient_its_rounding_only():
    head = a_head(torch.bfloat16, bias=False)
    whole = of_head(head, max_elements=10**9)[1][1]
    chunked = of_head(head, max_elements=16 * VOCABULARY)[1][1]
    assert float((chunked - whole).norm()) < 0.01 * float(whole.norm())


class LargestTensor(TorchDispatchMode):
    """The most elements of any tensor that an operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *made])
        return result


def test_no_tensor_is_larger_than_a_chunk_or_the_weight_forward_or_backward():
    head = a_head(torch.float32, bias=False)
    with LargestTensor() as whole:
        of_head(head, max_elements=10**9)
    with LargestTensor() as chunked:
        of_head(head, max_elements=4 * VOCABULARY)
    assert whole.elements == POSITIONS * VOCABULARY
    assert chunked.elements == WIDTH * VOCABULARY


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_has_the_same_gradient_whole_chunked_and_with_layers_computed_again(
    tied, recompute
):
    model = small_model("qwen3", tie_word_embeddings=tied)

    def gradient(max_elements: int, *, recompute: bool) -> list[Tensor]:
        copied = copy.deepcopy(model)
        if recompute:
            recompute_layers(copied)
        scorer = TokenScorer(copied, temperature=0.9)
        assert scorer.chunks_head
        scorer.max_chunk_elements = max_elements
        logprobs, entropy = scorer(BATCH, with_entropy=True, entropy_grad=True)
        (logprobs.square().sum() + entropy.sum()).backward()
        return [parameter.grad for parameter in copied.parameters()]

    whole, found = gradient(10**9, recompute=False), gradient(50, recompute=recompute)
    for expected, actual in zip(whole, found, strict=True):
        assert float((actual - expected).norm()) <= 1e-5 * float(expected.norm())


def test_layers_are_computed_again_only_where_a_gradient_is_wanted():
    model = small_model("qwen3")
    calls = []
    model.model.layers[0].mlp.register_forward_hook(
        lambda *_: calls.append(torch.is_grad_enabled())
    )
    recompute_layers(model)
    scorer = TokenScorer(model, temperature=1.0)
    calls.clear()
    with torch.no_grad():
        scorer(BATCH, with_entropy=False)
    assert len(calls) == 1
    logprobs, _ = scorer(BATCH, with_entropy=False)
    assert len(calls) == 2
    logprobs.sum().backward()
    assert len(calls) == 3


def test_a_model_without_marked_layers_cannot_be_recomputed():
    with pytest.raises(ValueError, match=r"trainer\.gradient_checkpointing=true does not go"):
        recompute_layers(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("kind", "settings", "chunked"),
    [
        ("llama", {}, True),
        ("qwen3", {}, True),
        ("cohere", {"logit_scale": 0.25}, False),
        ("granite", {"logits_scaling": 8.0}, False),
        ("gemma2", {"final_logit_softcapping": 2.0}, False),
    ],
)
def test_a_model_that_does_something_to_its_logits_keeps_them(kind, settings, chunked):
    model = small_model(kind, **settings)
    with torch.no_grad():
        logits = model(BATCH.token_ids).logits[BATCH.batch_index, BATCH.positions]
    expected = torch.log_softmax(logits / 0.9, dim=-1).gather(-1, BATCH.targets[:, None])[:, 0]
    scorer = TokenScorer(model, temperature=0.9)
    scorer.max_chunk_elements = 50
    assert scorer.chunks_head == chunked
    found, _ = scorer(BATCH, with_entropy=False)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
