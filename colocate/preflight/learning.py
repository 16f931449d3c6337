"""Rules of what is learnt: staleness and swaps, groups and batches, lengths."""

from __future__ import annotations

from collections.abc import Iterator

from colocate.preflight.table import rule
from colocate.problems import Problem

# Staleness and swaps


@rule("scheduler.swap_interval", "buffer.max_staleness")
def _swap_interval_within_bound(k: int, bound: int) -> Iterator[Problem]:
    if k > bound + 1:
        yield Problem(
            field="scheduler.swap_interval",
            value=k,
            rule=f"must be at most buffer.max_staleness + 1 = {bound + 1}: the last of {k} "
            f"batches trained between two publications would be {k - 1} versions late",
            remedy=f"set scheduler.swap_interval={bound + 1} or buffer.max_staleness={k - 1}",
        )


@rule("scheduler.policy", "scheduler.period_s")
def _period_goes_with_timed(policy: str, period_s: float | None) -> Iterator[Problem]:
    if policy == "timed" and period_s is None:
        yield Problem(
            field="scheduler.period_s",
            value=None,
            rule="is required by scheduler.policy=timed",
            remedy="give the seconds of rollout between swaps, as scheduler.period_s=60",
        )


@rule(
    "buffer.max_inflight",
    "buffer.max_staleness",
    "algorithm.group_size",
    "algorithm.groups_per_step",
)
def _max_inflight_within_admission(
    max_inflight: int | None, bound: int, group_size: int, groups_per_step: int
) -> Iterator[Problem]:
    admitted = (bound + 1) * group_size * groups_per_step
    if max_inflight is not None and max_inflight > admitted:
        yield Problem(
            field="buffer.max_inflight",
            value=max_inflight,
            rule=f"must be at most {admitted} = (buffer.max_staleness + 1) x group_size x "
            "groups_per_step: no more trajectories are ever admitted",
            remedy=f"set buffer.max_inflight={admitted}, or null for the formula's own",
        )


# Groups and batches


@rule("algorithm.group_size", "algorithm.normalise_std")
def _groups_can_be_compared(group_size: int, normalise_std: bool) -> Iterator[Problem]:
    if group_size < 2:
        deviation = " and no deviation" if normalise_std else ""
        yield Problem(
            field="algorithm.group_size",
            value=group_size,
            rule=f"must be at least 2: a group of one has no advantage{deviation}",
            remedy="set algorithm.group_size to 2 or more (8 is common)",
        )


@rule("rollout.temperature", "algorithm.group_size")
def _groups_vary(temperature: float, group_size: int) -> Iterator[Problem]:
    if temperature == 0 and group_size > 1:
        yield Problem(
            field="rollout.temperature",
            value=temperature,
            rule=f"must be above 0: greedy sampling makes the {group_size} members of a group "
            "equal, so that nothing can be learnt from comparing them",
            remedy="set rollout.temperature=1.0",
        )


@rule("rollout.top_p", "rollout.top_k", "rollout.min_p")
def _trainer_knows_what_was_sampled_from(
    top_p: float, top_k: int | None, min_p: float
) -> Iterator[Problem]:
    for name, value, off in (("top_p", top_p, 1.0), ("top_k", top_k, None), ("min_p", min_p, 0.0)):
        if value != off:
            shown = "null" if off is None else off
            yield Problem(
                field=f"rollout.{name}",
                value=value,
                rule=f"must be {shown}: {name} sampling without a mask in the trainer makes its "
                "probabilities, over the whole vocabulary, others than those sampled from",
                remedy=f"set rollout.{name}={shown}; rollout.temperature is known to both",
            )


@rule("trainer.num_minibatches", "algorithm.group_size", "algorithm.groups_per_step")
def _minibatches_divide_the_batch(
    num_minibatches: int, group_size: int, groups_per_step: int
) -> Iterator[Problem]:
    num_trajectories = group_size * groups_per_step
    if num_trajectories % num_minibatches:
        yield Problem(
            field="trainer.num_minibatches",
            value=num_minibatches,
            rule=f"must divide group_size x groups_per_step = {num_trajectories}, so that each "
            "optimizer step takes as many trajectories",
            remedy=f"choose one of {_divisors(num_trajectories)}",
        )


@rule(
    "trainer.num_ranks",
    "trainer.num_minibatches",
    "algorithm.group_size",
    "algorithm.groups_per_step",
)
def _every_rank_has_work(
    num_ranks: int, num_minibatches: int, group_size: int, groups_per_step: int
) -> Iterator[Problem]:
    per_minibatch = group_size * groups_per_step // num_minibatches
    if 0 < per_minibatch < num_ranks:
        yield Problem(
            field="trainer.num_ranks",
            value=num_ranks,
            rule=f"must be at most {per_minibatch}, the trajectories of one optimizer step",
            remedy=f"set trainer.num_ranks={per_minibatch}, or fewer trainer.num_minibatches",
        )


def _divisors(number: int) -> str:
    divisors = [candidate for candidate in range(1, number + 1) if number % candidate == 0]
    return ", ".join(map(str, divisors[:12])) + (", ..." if len(divisors) > 12 else "")


# Lengths


@rule("rollout.max_new_tokens", "inference.max_model_len")
def _a_turn_fits_the_context(max_new_tokens: int, max_model_len: int) -> Iterator[Problem]:
    if max_new_tokens >= max_model_len:
        yield Problem(
            field="rollout.max_new_tokens",
            value=max_new_tokens,
            rule=f"must be below inference.max_model_len = {max_model_len}, which holds the "
            "prompt and every turn",
            remedy="raise inference.max_model_len or lower rollout.max_new_tokens",
        )
