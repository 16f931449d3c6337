"""Every loss against its formula written out token by token in float64, and finite differences."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colocate.config import AlgorithmConfig, CorrectionConfig, KlConfig
from tests.learn.written import (
    Trajectory,
    assert_is_the_written_formula,
    found_loss,
    found_terms,
    make_trajectories,
    written_loss,
)

NEAR, FAR, EXTREME = 0.1, 1.0, 7.0
"""Nats a token between two policies; the last gives ratios of e^20 and products of e^100."""

SURROGATES = {
    "clip": {"surrogate": "clip"},
    "clip-higher": {"surrogate": "clip", "clip_low": 0.1, "clip_high": 0.5},
    "dual-clip": {"surrogate": "clip", "dual_clip": 1.5},
    "cispo": {"surrogate": "cispo", "clip_low": 0.6, "clip_high": 1.5},
    "reinforce": {"surrogate": "reinforce"},
}
LOSSES = [
    pytest.param({"ratio": ratio, "aggregation": aggregation, **fields}, id="-".join(names))
    for names in itertools.product(
        ("token", "sequence"), SURROGATES, ("token_mean", "sequence_mean", "fixed_length")
    )
    for ratio, fields, aggregation in [(names[0], SURROGATES[names[1]], names[2])]
    if (ratio, names[1]) != ("sequence", "reinforce")
]


def algorithm(**changes) -> AlgorithmConfig:
    return AlgorithmConfig(group_size=4, groups_per_step=2, length_budget=6, **changes)


@pytest.mark.parametrize("spread", [NEAR, FAR, EXTREME])
@pytest.mark.parametrize("fields", LOSSES)
def test_value_and_gradient_of_every_loss_are_those_of_the_written_formula(fields, spread):
    assert_is_the_written_formula(make_trajectories(seed=1, spread=spread), algorithm(**fields))


@pytest.mark.parametrize("spread", [NEAR, FAR, EXTREME])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_the_kl_penalty_and_the_entropy_bonus_are_those_of_the_written_formula(
    spread, estimator, placement, aggregation
):
    kl = KlConfig(coef=0.3, estimator=estimator, placement=placement)
    chosen = algorithm(kl=kl, aggregation=aggregation, entropy_coef=0.2)
    assert_is_the_written_formula(make_trajectories(seed=2, spread=spread), chosen)


CORRECTIONS = [
    pytest.param(
        CorrectionConfig(
            objective=objective, level=level, mode=mode, cap=1.5, floor=floor, **rejection
        ),
        id="-".join([objective, level, mode + ("-floor" if floor else ""), *rejection]),
    )
    for objective, level, (mode, floor), rejection in itertools.product(
        ("decoupled", "plain"),
        ("token", "sequence", "geometric"),
        (("truncate", None), ("mask", None), ("mask", 0.5), ("none", None)),
        ({}, {"band_low": 0.6, "band_high": 1.5}, {"veto": 0.05}),
    )
]


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_every_correction_of_every_surrogate_is_that_of_the_written_formula(correction):
    counted_twice = correction.objective == "plain" and correction.mode == "truncate"
    # Refused before anything starts but for `reinforce`, whose objective has no ratio.
    surrogates = ["reinforce"] if counted_twice else ["reinforce", "clip", "cispo"]
    for surrogate, spread in itertools.product(surrogates, (0.4, EXTREME)):
        chosen = algorithm(
            surrogate=surrogate,
            correction=correction,
            kl=KlConfig(coef=0.1),
            entropy_coef=0.1,
            aggregation="token_mean",
        )
        made = make_trajectories(seed=3, spread=spread, lengths=(1, 4, 6, 2))
        assert_is_the_written_formula(made, chosen)


LOG_RATIO = st.floats(-30, 30, allow_nan=False)


@st.composite
def trajectories(draw) -> Trajectory:
    length = draw(st.integers(1, 6))

    def apart(log_ratio: st.SearchStrategy[float] = LOG_RATIO) -> torch.Tensor:
        shifts = draw(st.lists(log_ratio, min_size=length, max_size=length))
        return torch.tensor(shifts, dtype=torch.float64)

    proximal = apart(st.floats(-20, 0))
    return Trajectory(
        current=(proximal + apart()).requires_grad_(),
        proximal=proximal,
        behaviour=proximal + apart(),
        reference=proximal + apart(st.floats(-15, 15)),
        entropy=apart(st.floats(0, 5)).requires_grad_(),
        advantage=draw(st.floats(-3, 3)),
    )


@st.composite
def algorithms(draw) -> AlgorithmConfig:
    def optional(values: st.SearchStrategy[float]) -> float | None:
        return draw(st.none() | values)

    surrogate = draw(st.sampled_from(["clip", "cispo", "reinforce"]))
    mode = draw(st.sampled_from(["truncate", "mask", "none"]))
    plain = draw(st.booleans()) and not (mode == "truncate" and surrogate != "reinforce")
    return algorithm(
        surrogate=surrogate,
        ratio="token" if surrogate == "reinforce" else draw(st.sampled_from(["token", "sequence"])),
        clip_low=draw(st.floats(0, 1)),
        clip_high=draw(st.floats(0, 5)),
        dual_clip=optional(st.floats(1.1, 10)) if surrogate == "clip" else None,
        aggregation=draw(st.sampled_from(["token_mean", "sequence_mean", "fixed_length"])),
        entropy_coef=draw(st.sampled_from([0.0, 0.1])),
        kl=KlConfig(
            coef=draw(st.sampled_from([0.0, 0.2])),
            estimator=draw(st.sampled_from(["k1", "k2", "k3"])),
            placement=draw(st.sampled_from(["loss", "reward"])),
        ),
        correction=CorrectionConfig(
            objective="plain" if plain else "decoupled",
            level=draw(st.sampled_from(["token", "sequence", "geometric"])),
            mode=mode,
            cap=draw(st.floats(1.01, 50)),
            floor=optional(st.floats(0.01, 0.99)) if mode == "mask" else None,
            band_low=optional(st.floats(0.01, 0.99)),
            band_high=optional(st.floats(1.01, 50)),
            veto=optional(st.floats(1e-9, 0.5)),
        ),
    )


@given(st.lists(trajectories(), min_size=1, max_size=4), algorithms())
def test_any_combination_on_any_data_is_that_of_the_written_formula(data, chosen):
    assert_is_the_written_formula(data, chosen)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
def test_the_gradient_is_what_finite_differences_of_the_value_give(ratio, kl):
    """Where no gradient is stopped: PPO's clip, KL and entropy, decoupled."""
    made = make_trajectories(seed=4, spread=0.3, lengths=(2, 5, 3))
    chosen = algorithm(
        ratio=ratio, dual_clip=1.3, kl=KlConfig(coef=0.2, estimator=kl), entropy_coef=0.1
    )

    def value(*leaves: torch.Tensor) -> torch.Tensor:
        halves = zip(leaves[: len(made)], leaves[len(made) :], strict=True)
        moved = [
            replace(each, current=current, entropy=entropy)
            for each, (current, entropy) in zip(made, halves, strict=True)
        ]
        return found_loss(moved, chosen)

    leaves = [each.current for each in made] + [each.entropy for each in made]
    assert torch.autograd.gradcheck(value, leaves, eps=1e-6, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("surrogate", ["cispo", "reinforce"])
@pytest.mark.parametrize("objective", ["decoupled", "plain"])
def test_a_stopped_gradient_is_that_of_the_value_with_its_coefficient_held(surrogate, objective):
    made = make_trajectories(seed=5, spread=0.5, lengths=(2, 5, 3))
    mode = "none" if (surrogate, objective) == ("cispo", "plain") else "truncate"
    correction = CorrectionConfig(objective=objective, mode=mode)
    chosen = algorithm(surrogate=surrogate, clip_high=0.3, correction=correction)
    gradient = torch.autograd.grad(found_loss(made, chosen), [each.current for each in made])
    for each, of_tokens in zip(made, gradient, strict=True):
        current = each.current.detach()
        anchor = each.behaviour if objective == "plain" else each.proximal
        judged = current if objective == "plain" else each.proximal
        held = torch.ones(len(current), dtype=torch.float64)
        if surrogate == "cispo":
            held = (current - anchor).exp().clamp(0.8, 1.3)
        if mode == "truncate":
            held = held * (judged - each.behaviour).exp().clamp(max=2.0)

        def value(of: torch.Tensor, held=held, each=each) -> torch.Tensor:
            return -held * each.advantage * of / (len(made) * len(held))

        step = 1e-6
        slope = (value(current + step) - value(current - step)) / (2 * step)
        torch.testing.assert_close(of_tokens, slope, rtol=1e-6, atol=0)


def three_tokens(ratios: list[float], advantages: list[float]) -> list[Trajectory]:
    """A trajectory of one token for each ratio of current over proximal, on-policy data."""
    zero = torch.zeros(1, dtype=torch.float64)
    return [
        Trajectory(
            current=torch.tensor([ratio], dtype=torch.float64).log().requires_grad_(),
            proximal=zero,
            behaviour=zero,
            reference=zero,
            entropy=zero.clone().requires_grad_(),
            advantage=advantage,
        )
        for ratio, advantage in zip(ratios, advantages, strict=True)
    ]


def test_a_clipped_token_bears_no_gradient_and_is_counted_on_its_side():
    made = three_tokens([0.5, 0.5, 1.5, 1.5, 4.0, 1.0], [1.0, -1.0, 1.0, -1.0, -1.0, 1.0])
    terms, _ = found_terms(made, algorithm(dual_clip=3.0))
    gradient = torch.cat(torch.autograd.grad(terms.loss.sum(), [each.current for each in made]))
    assert terms.clipped_low.tolist() == [False, True, False, False, False, False]
    assert terms.clipped_high.tolist() == [False, False, True, False, False, False]
    assert terms.clipped_dual.tolist() == [False, False, False, False, True, False]
    assert (gradient == 0).tolist() == [False, True, True, False, True, False]


def test_cispo_never_takes_a_tokens_gradient_but_bounds_its_size():
    made = three_tokens([0.01, 1.0, 100.0], [1.0, 1.0, 1.0])
    chosen = algorithm(surrogate="cispo", clip_low=1.0, clip_high=4.0, aggregation="token_mean")
    terms, _ = found_terms(made, chosen)
    gradient = torch.cat(torch.autograd.grad(terms.loss.sum(), [each.current for each in made]))
    assert gradient.tolist() == pytest.approx([-0.01, -1.0, -5.0])
    assert terms.clipped_low.tolist() == [False, False, False]
    assert terms.clipped_high.tolist() == [False, False, True]


def test_data_of_an_older_policy_does_not_pass_for_the_current_ones():
    """The ratio is not 1 by construction: the proximal policy is not the current one, detached."""
    made = make_trajectories(seed=6, spread=0.5)
    terms, _ = found_terms(made, algorithm())
    assert (terms.ratio - 1).abs().max() > 0.1
    assert (terms.clipped_low | terms.clipped_high).any()
    assert (terms.correction.weight - 1).abs().max() > 0.1


@pytest.mark.parametrize("fields", LOSSES)
def test_hopeless_log_ratios_overflow_nothing_in_float32(fields):
    made = [
        Trajectory(
            current=torch.tensor([300.0, -300.0], requires_grad=True),
            proximal=torch.zeros(2),
            behaviour=torch.tensor([-300.0, 300.0]),
            reference=torch.tensor([600.0, -600.0]),
            entropy=torch.zeros(2),
            advantage=-1.0,
        )
    ]
    for level in ("token", "sequence", "geometric"):
        chosen = algorithm(
            kl=KlConfig(coef=0.1), correction=CorrectionConfig(level=level, mode="mask"), **fields
        )
        terms, _ = found_terms(made, chosen)
        (gradient,) = torch.autograd.grad(terms.loss.sum(), made[0].current)
        assert torch.isfinite(terms.loss).all()
        assert torch.isfinite(gradient).all()


def test_a_minibatch_with_nothing_but_rejected_tokens_has_loss_and_gradient_zero():
    made = make_trajectories(seed=7, spread=FAR)
    chosen = algorithm(
        correction=CorrectionConfig(band_low=0.999999, band_high=1.000001),
        kl=KlConfig(coef=0.1),
        entropy_coef=0.1,
    )
    assert written_loss(made, chosen).item() == 0.0
    loss = found_loss(made, chosen)
    gradient = torch.autograd.grad(loss, [each.current for each in made])
    assert loss.item() == 0.0
    assert all((each == 0).all() for each in gradient)
