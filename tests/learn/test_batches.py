import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colocate.learn.batches import Row, collate, make_rows, plan_minibatches
from colocate.ports import TrainingSample

CPU = torch.device("cpu")


def a_sample(**changes) -> TrainingSample:
    fields = {
        "trajectory": 3,
        "group": 0,
        "token_ids": [10, 11, 12, 13, 14, 15],
        "loss_mask": [0, 0, 1, 0, 1, 1],
        "logprobs": [0.0, 0.0, -0.2, 0.0, -0.4, -0.5],
        "versions": [-1, -1, 4, -1, 4, 5],
        "reward": 1.0,
    }
    return TrainingSample(**(fields | changes))


def row_of(length: int, num_tokens: int = 1) -> Row:
    positions = np.arange(length - 1 - num_tokens, length - 1)
    return Row(
        token_ids=np.arange(length) + 100 * length,
        positions=positions,
        targets=np.arange(num_tokens),
        behaviour_logprobs=np.zeros(num_tokens, dtype=np.float32),
        versions=np.zeros(num_tokens, dtype=np.int64),
        advantage=1.0,
    )


def test_each_sampled_token_is_predicted_from_the_position_before_it():
    (row,) = make_rows([a_sample()], [2.0])
    assert row.targets.tolist() == [12, 14, 15]
    assert row.positions.tolist() == [1, 3, 4]
    assert row.behaviour_logprobs.tolist() == pytest.approx([-0.2, -0.4, -0.5])
    assert row.versions.tolist() == [4, 4, 5]


def test_masked_trajectories_and_those_that_sampled_nothing_have_no_row():
    samples = [a_sample(masked=True), a_sample(loss_mask=[0] * 6), a_sample()]
    assert len(make_rows(samples, [1.0, 1.0, 1.0])) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"versions": [-1, 0]}, r"trajectory 3: .* must have one length, but have \[6, 6, 6, 2\]"),
        ({"loss_mask": [1, 0, 0, 0, 0, 0]}, "trajectory 3: its first token is marked as sampled"),
        (
            {"logprobs": [0.0, 0.0, -0.2, 0.0, float("-inf"), -0.5]},
            "trajectory 3: .* position 4 must be finite, but is -inf",
        ),
    ],
)
def test_a_malformed_sample_is_refused_with_its_fault_named(changes, message):
    with pytest.raises(ValueError, match=message):
        make_rows([a_sample(**changes)], [1.0])


def test_padding_is_on_the_right_and_never_pointed_at():
    rows = make_rows(
        [
            a_sample(),
            a_sample(token_ids=[7, 8], loss_mask=[0, 1], logprobs=[0.0, -0.9], versions=[-1, 2]),
        ],
        [2.0, -1.0],
    )
    batch = collate(rows, device=CPU)
    assert batch.token_ids.tolist() == [[10, 11, 12, 13, 14, 15], [7, 8, 0, 0, 0, 0]]
    assert batch.batch_index.tolist() == [0, 0, 0, 1]
    assert batch.positions.tolist() == [1, 3, 4, 0]
    following = batch.token_ids[batch.batch_index, batch.positions + 1]
    assert torch.equal(following, batch.targets)
    assert batch.advantages.tolist() == [2.0, 2.0, 2.0, -1.0]
    assert batch.weights.tolist() == [1.0] * 4


def test_packed_rows_lie_end_to_end_with_positions_that_begin_anew():
    short = {"loss_mask": [0, 1], "logprobs": [0.0, -0.9], "versions": [-1, 2]}
    rows = make_rows(
        [a_sample(), a_sample(token_ids=[7, 8], **short), a_sample(token_ids=[9, 6], **short)],
        [2.0, -1.0, 0.5],
    )
    batch = collate(rows, device=CPU, packed=True)
    assert batch.token_ids.tolist() == [[10, 11, 12, 13, 14, 15, 7, 8, 9, 6]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 0, 1]]
    assert batch.runs == ((1, 6), (2, 2))
    following = batch.token_ids[batch.batch_index, batch.positions + 1]
    assert torch.equal(following, batch.targets)
    assert batch.targets.tolist() == [12, 14, 15, 8, 6]
    assert batch.sequence_index.tolist() == [0, 0, 0, 1, 2]
    assert batch.sequence_tokens.tolist() == [3, 1, 1]
    assert batch.advantages.tolist() == [2.0, 2.0, 2.0, -1.0, 0.5]
    assert rows[1].positions.tolist() == [0]


def test_packed_micro_batches_count_no_padding():
    rows = [row_of(length) for length in (10, 2, 2, 2)]
    (minibatch,) = plan_minibatches(
        rows, num_minibatches=1, num_ranks=1, micro_batch_tokens=16, seed=0, packed=True
    )
    assert [len(chosen) for chosen in minibatch.ranks[0]] == [4]


def test_a_dummy_has_one_token_and_it_weighs_nothing():
    dummy = collate([], device=CPU)
    assert dummy.weights.tolist() == [0.0]
    assert dummy.versions.tolist() == [-1]


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=40),
    num_minibatches=st.integers(1, 5),
    num_ranks=st.integers(1, 4),
    budget=st.integers(1, 200),
    seed=st.integers(0, 5),
    packed=st.booleans(),
)
def test_a_plan_trains_each_row_once_within_budget_and_keeps_ranks_in_step(
    lengths, num_minibatches, num_ranks, budget, seed, packed
):
    rows = [row_of(length) for length in lengths]
    plan = plan_minibatches(
        rows,
        num_minibatches=num_minibatches,
        num_ranks=num_ranks,
        micro_batch_tokens=budget,
        seed=seed,
        packed=packed,
    )
    assert len(plan) == min(num_minibatches, len(rows))
    trained = []
    for minibatch in plan:
        assert len(minibatch.ranks) == num_ranks
        assert len({len(share) for share in minibatch.ranks}) == 1
        chosen = [row for share in minibatch.ranks for micro in share for row in micro]
        assert minibatch.num_tokens == sum(rows[row].num_tokens for row in chosen) > 0
        trained += chosen
        for micro in (micro for share in minibatch.ranks for micro in share):
            batch = collate([rows[row] for row in micro], device=CPU, packed=packed)
            assert batch.token_ids.numel() <= budget or len(micro) <= 1
    assert sorted(trained) == list(range(len(rows)))


def test_what_a_minibatch_holds_depends_on_the_seed_but_not_on_the_ranks():
    rows = [row_of(length) for length in range(2, 40)]

    def composition(num_ranks: int, seed: int) -> list[set[int]]:
        plan = plan_minibatches(
            rows, num_minibatches=3, num_ranks=num_ranks, micro_batch_tokens=64, seed=seed
        )
        return [{row for share in m.ranks for micro in share for row in micro} for m in plan]

    assert composition(1, seed=0) == composition(3, seed=0)
    assert composition(1, seed=0) != composition(1, seed=1)


def test_neighbours_in_length_share_a_micro_batch_so_that_little_is_padding():
    lengths = [4] * 50 + [40] * 5
    rows = [row_of(length) for length in lengths]
    (minibatch,) = plan_minibatches(
        rows, num_minibatches=1, num_ranks=1, micro_batch_tokens=200, seed=0
    )
    padded = sum(len(m) * max(lengths[row] for row in m) for m in minibatch.ranks[0])
    assert padded == sum(lengths)
