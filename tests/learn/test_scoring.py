"""The scorer against a plain Hugging Face forward pass, position by position."""

import copy

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from colocate.learn.batches import collate, make_rows
from colocate.learn.scoring import TokenScorer
from colocate.learn.token_scores import Wanted, score_logits_in_chunks
from colocate.ports import TrainingSample

CPU = torch.device("cpu")
TEMPERATURE = 0.7


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=23,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=64,
            tie_word_embeddings=request.param,
            initializer_range=0.3,
        )
    ).eval()


def a_row(length: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(23, (length,), generator=generator).tolist()
    mask = [0, *torch.randint(2, (length - 1,), generator=generator).tolist()]
    mask[-1] = 1
    (row,) = make_rows(
        [
            TrainingSample(
                trajectory=seed,
                group=0,
                token_ids=ids,
                loss_mask=mask,
                logprobs=[0.0] * length,
                versions=[0] * length,
                reward=0.0,
            )
        ],
        [1.0],
    )
    return row


def expected_scores(model, row) -> tuple[torch.Tensor, torch.Tensor]:
    """By the whole softmax, one row alone, in float64."""
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        logits = exact(torch.from_numpy(row.token_ids)[None]).logits[0] / TEMPERATURE
    logprobs, entropies = [], []
    for token in range(1, row.length):
        if token - 1 not in row.positions:
            continue
        distribution = torch.distributions.Categorical(logits=logits[token - 1])
        logprobs.append(distribution.log_prob(torch.tensor(row.token_ids[token])))
        entropies.append(distribution.entropy())
    return torch.stack(logprobs), torch.stack(entropies)


def test_each_sampled_token_gets_the_log_probability_that_its_prefix_gave_it(model):
    rows = [a_row(17, seed=1), a_row(5, seed=2), a_row(11, seed=3)]
    scorer = TokenScorer(copy.deepcopy(model), temperature=TEMPERATURE)
    logprobs, entropy = scorer(collate(rows, device=CPU), with_entropy=True)
    expected = [expected_scores(model, row) for row in rows]
    torch.testing.assert_close(
        logprobs.double(), torch.cat([e[0] for e in expected]), rtol=0, atol=2e-5
    )
    torch.testing.assert_close(
        entropy.double(), torch.cat([e[1] for e in expected]), rtol=0, atol=2e-5
    )


def test_company_and_padding_change_no_log_probability(model):
    rows = [a_row(23, seed=4), a_row(6, seed=5), a_row(9, seed=6)]
    scorer = TokenScorer(copy.deepcopy(model), temperature=TEMPERATURE)
    together, _ = scorer(collate(rows, device=CPU), with_entropy=False)
    alone = torch.cat([scorer(collate([r], device=CPU), with_entropy=False)[0] for r in rows])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_the_output_head_sees_only_the_wanted_positions(model):
    scorer = TokenScorer(copy.deepcopy(model), temperature=TEMPERATURE)
    row = a_row(30, seed=7)
    seen = []
    scorer.model.lm_head.register_forward_hook(lambda head, args, out: seen.append(args[0].shape))
    scorer(collate([row], device=CPU), with_entropy=False)
    assert seen == [(1, row.num_tokens, 32)]
    assert row.num_tokens < row.length


def rounded_to_bfloat16(model) -> Qwen3ForCausalLM:
    return copy.deepcopy(model).to(torch.bfloat16)


def test_a_float32_head_scores_as_float64_does_from_the_same_hidden_states(model):
    half = rounded_to_bfloat16(model)
    scorer = TokenScorer(half, temperature=TEMPERATURE, fp32_head=True)
    row = a_row(30, seed=8)
    hidden = []
    half.lm_head.register_forward_hook(lambda head, args, out: hidden.append(args[0]))
    found, _ = scorer(collate([row], device=CPU), with_entropy=False)
    logits = hidden[0][0].double() @ half.lm_head.weight.double().T / TEMPERATURE
    expected = logits.log_softmax(-1).gather(1, torch.from_numpy(row.targets)[:, None])[:, 0]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    rounded, _ = TokenScorer(rounded_to_bfloat16(model), temperature=TEMPERATURE)(
        collate([row], device=CPU), with_entropy=False
    )
    assert (rounded.double() - expected).abs().max() > 1e-3


def test_a_float32_head_gives_its_bfloat16_weights_their_gradient(model):
    """As near to the float64 gradient as its rounding to bfloat16 allows."""
    batch = collate([a_row(20, seed=9)], device=CPU)
    half = rounded_to_bfloat16(model)
    exact = copy.deepcopy(half).double()  # before the scorer replaces how its head computes
    scorer = TokenScorer(half, temperature=TEMPERATURE, fp32_head=True)
    scorer(batch, with_entropy=False)[0].sum().backward()
    TokenScorer(exact, temperature=TEMPERATURE)(batch, with_entropy=False)[0].sum().backward()
    found, expected = half.lm_head.weight.grad, exact.lm_head.weight.grad
    assert found.dtype == torch.bfloat16
    difference = (found.double() - expected).norm() / expected.norm()
    assert difference < 0.05


def test_a_head_that_is_no_linear_layer_is_refused_by_name():
    class Other(torch.nn.Module):
        def get_output_embeddings(self):
            return torch.nn.Embedding(3, 4)

    with pytest.raises(TypeError, match="is Embedding; set inference"):
        TokenScorer(Other(), temperature=1.0, fp32_head=True)


def test_what_follows_the_last_sampled_token_gets_no_gradient(model):
    """The last token is only ever a target, and tokens after a position are unseen by it."""
    scorer = TokenScorer(copy.deepcopy(model), temperature=TEMPERATURE)
    inner = scorer.model.get_input_embeddings()
    seen = []
    inner.register_forward_hook(lambda m, a, out: (out.retain_grad(), seen.append(out))[0] and None)
    (row,) = make_rows(
        [
            TrainingSample(
                trajectory=0,
                group=0,
                token_ids=[1, 2, 3, 4, 5],
                loss_mask=[0, 1, 0, 0, 0],
                logprobs=[0.0] * 5,
                versions=[0] * 5,
                reward=0.0,
            )
        ],
        [1.0],
    )
    logprobs, _ = scorer(collate([row], device=CPU), with_entropy=False)
    logprobs.sum().backward()
    touched = seen[0].grad[0].abs().sum(dim=-1) > 0
    assert touched.tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_change_neither_scores_nor_gradients(dtype):
    torch.manual_seed(0)
    logits = torch.randn(37, 11).to(dtype)
    targets = torch.randint(11, (37,))

    wanted = Wanted(targets=targets, temperature=TEMPERATURE, with_entropy=True, entropy_grad=True)

    def scored(max_elements: int):
        leaf = logits.clone().requires_grad_()
        logprobs, entropy = score_logits_in_chunks(leaf, wanted, max_elements=max_elements)
        (logprobs.sum() + 0.3 * entropy.sum()).backward()
        return logprobs, entropy, leaf.grad

    whole, chunked = scored(10**6), scored(50)
    assert whole[0].dtype == torch.float32
    torch.testing.assert_close(chunked, whole, rtol=0, atol=0)
