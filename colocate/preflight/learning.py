"""Rules of what is learnt: staleness and swaps, groups and batches, the loss, lengths."""

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


@rule("scheduler.policy", "scheduler.swap_interval")
def _adaptive_chooses_its_own_batches(policy: str, k: int) -> Iterator[Problem]:
    if policy == "adaptive" and k != 1:
        yield Problem(
            field="scheduler.swap_interval",
            value=k,
            rule="must be 1 with scheduler.policy=adaptive, which decides at each swap how many "
            "batches it trains",
            remedy="leave scheduler.swap_interval out, or set scheduler.policy=interval",
        )


@rule(
    "buffer.max_inflight",
    "buffer.max_staleness",
    "algorithm.group_size",
    "algorithm.groups_per_step",
    "rollout.redundant_per_group",
    "rollout.redundant_groups",
)
def _max_inflight_within_admission(
    max_inflight: int | None,
    bound: int,
    group_size: int,
    groups_per_step: int,
    redundant_per_group: int,
    redundant_groups: int,
) -> Iterator[Problem]:
    num_groups = (bound + 1) * groups_per_step + redundant_groups
    admitted = num_groups * (group_size + redundant_per_group)
    if max_inflight is not None and max_inflight > admitted:
        yield Problem(
            field="buffer.max_inflight",
            value=max_inflight,
            rule=f"must be at most {admitted} = ((buffer.max_staleness + 1) x groups_per_step + "
            "redundant_groups) x (group_size + redundant_per_group): no more trajectories are "
            "ever admitted",
            remedy=f"set buffer.max_inflight={admitted}, or null for the formula's own",
        )


@rule(
    "rollout.spare_groups",
    "rollout.redundant_groups",
    "buffer.max_staleness",
    "scheduler.swap_interval",
)
def _spares_that_are_carried_can_be_trained(
    spare_groups: str, redundant_groups: int, bound: int, k: int
) -> Iterator[Problem]:
    if spare_groups == "carry" and redundant_groups and bound < k:
        yield Problem(
            field="rollout.spare_groups",
            value=spare_groups,
            rule=f"needs buffer.max_staleness of at least scheduler.swap_interval = {k}: what is "
            f"carried over a swap is {k} versions old afterwards",
            remedy=f"set rollout.spare_groups=cancel or buffer.max_staleness={k}",
        )


# Groups and batches


@rule("algorithm.group_size", "algorithm.advantage")
def _groups_can_be_compared(group_size: int, advantage: str) -> Iterator[Problem]:
    if group_size < 2 and advantage != "batch_norm":
        yield Problem(
            field="algorithm.group_size",
            value=group_size,
            rule=f"must be at least 2: algorithm.advantage={advantage} compares the members of a "
            "group, and a group of one has no advantage",
            remedy="set algorithm.group_size to 2 or more (8 is common), or "
            "algorithm.advantage=batch_norm",
        )


@rule("algorithm.group_size", "algorithm.groups_per_step", "algorithm.advantage")
def _batches_can_be_compared(
    group_size: int, groups_per_step: int, advantage: str
) -> Iterator[Problem]:
    if advantage == "batch_norm" and group_size * groups_per_step < 2:
        yield Problem(
            field="algorithm.groups_per_step",
            value=groups_per_step,
            rule="must be at least 2 with groups of one: a batch of one trajectory has no "
            "advantage",
            remedy="set algorithm.groups_per_step or algorithm.group_size to 2 or more",
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


# The loss


@rule(
    "algorithm.aggregation",
    "algorithm.length_budget",
    "rollout.max_new_tokens",
    "rollout.max_turns",
)
def _fixed_length_has_its_length(
    aggregation: str, length_budget: int | None, max_new_tokens: int, max_turns: int
) -> Iterator[Problem]:
    if aggregation == "fixed_length" and length_budget is None:
        yield Problem(
            field="algorithm.length_budget",
            value=None,
            rule="is required by algorithm.aggregation=fixed_length",
            remedy=f"set algorithm.length_budget={max_new_tokens * max_turns}, the most that a "
            "trajectory can sample (rollout.max_new_tokens x rollout.max_turns), or 1 for the sum "
            "over each sequence",
        )


@rule("algorithm.surrogate", "algorithm.dual_clip")
def _dual_clip_goes_with_clip(surrogate: str, dual_clip: float | None) -> Iterator[Problem]:
    if dual_clip is not None and surrogate != "clip":
        yield Problem(
            field="algorithm.dual_clip",
            value=dual_clip,
            rule=f"must be null: it would bound nothing with algorithm.surrogate={surrogate}",
            remedy="set algorithm.dual_clip=null or algorithm.surrogate=clip",
        )


@rule("algorithm.surrogate", "algorithm.ratio")
def _a_ratio_needs_a_surrogate_that_has_one(surrogate: str, ratio: str) -> Iterator[Problem]:
    if surrogate == "reinforce" and ratio == "sequence":
        yield Problem(
            field="algorithm.ratio",
            value=ratio,
            rule="must be `token` with algorithm.surrogate=reinforce, whose objective has no ratio",
            remedy="set algorithm.ratio=token; algorithm.correction.level=sequence or geometric "
            "weighs whole sequences",
        )


@rule("algorithm.correction.mode", "algorithm.correction.floor")
def _a_floor_needs_a_mask(mode: str, floor: float | None) -> Iterator[Problem]:
    if floor is not None and mode != "mask":
        yield Problem(
            field="algorithm.correction.floor",
            value=floor,
            rule=f"must be null: nothing is rejected by its weight with mode={mode}",
            remedy="set algorithm.correction.floor=null or algorithm.correction.mode=mask",
        )


@rule("algorithm.correction.objective", "algorithm.correction.mode", "algorithm.surrogate")
def _no_weight_is_counted_twice(objective: str, mode: str, surrogate: str) -> Iterator[Problem]:
    if objective == "plain" and mode == "truncate" and surrogate != "reinforce":
        yield Problem(
            field="algorithm.correction.mode",
            value=mode,
            rule="must be `none` or `mask` with objective=plain: the ratio, over the behaviour "
            f"policy, is the weight already, and surrogate={surrogate} bounds it",
            remedy="set algorithm.correction.mode=none, or objective=decoupled",
        )


# Lengths


@rule("algorithm.overlong.mode", "algorithm.overlong.max_length", "algorithm.overlong.cache_length")
def _a_shape_has_its_lengths(
    mode: str, max_length: int | None, cache_length: int | None
) -> Iterator[Problem]:
    if mode != "shape":
        return
    if max_length is None:
        yield Problem(
            field="algorithm.overlong.max_length",
            value=None,
            rule="is required by algorithm.overlong.mode=shape",
            remedy="give the sampled tokens at which the penalty is whole, as "
            "algorithm.overlong.max_length='${mul:rollout.max_new_tokens,rollout.max_turns}'",
        )
    elif cache_length is not None and cache_length > max_length:
        yield Problem(
            field="algorithm.overlong.cache_length",
            value=cache_length,
            rule=f"must be at most algorithm.overlong.max_length = {max_length}: the penalty "
            "cannot begin before the first token",
            remedy=f"set algorithm.overlong.cache_length={max(1, max_length // 5)} (the paper's "
            "share), or null",
        )


@rule(
    "algorithm.overlong.mode",
    "algorithm.overlong.max_length",
    "algorithm.overlong.cache_length",
    "rollout.max_new_tokens",
    "rollout.max_turns",
)
def _a_penalty_can_be_reached(
    mode: str,
    max_length: int | None,
    cache_length: int | None,
    max_new_tokens: int,
    max_turns: int,
) -> Iterator[Problem]:
    if mode != "shape" or max_length is None:
        return
    longest = max_new_tokens * max_turns
    begins_after = max_length - (cache_length or max(1, max_length // 5))
    if begins_after >= longest:
        yield Problem(
            field="algorithm.overlong.max_length",
            value=max_length,
            rule=f"must let the penalty begin below {longest} = rollout.max_new_tokens x "
            f"rollout.max_turns, the most that a trajectory can sample; it begins after "
            f"{begins_after}",
            remedy=f"set algorithm.overlong.max_length={longest}",
        )


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
