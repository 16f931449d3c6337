"""Rules of what becomes of groups without variance: replay, or dynamic sampling."""

from __future__ import annotations

from collections.abc import Iterator

from colocate.preflight.table import rule
from colocate.problems import Problem


@rule("buffer.replay_groups", "algorithm.dynamic_sampling")
def _flat_groups_are_replaced_in_one_way(
    replay_groups: int, dynamic_sampling: bool
) -> Iterator[Problem]:
    if replay_groups and dynamic_sampling:
        yield Problem(
            field="buffer.replay_groups",
            value=replay_groups,
            rule="must be 0 with algorithm.dynamic_sampling=true, which leaves no group of equal "
            "rewards to be replaced by a replayed one",
            remedy="set buffer.replay_groups=0 or algorithm.dynamic_sampling=false",
        )


@rule("buffer.replay_groups", "algorithm.correction.mode")
def _replayed_tokens_are_corrected(replay_groups: int, mode: str) -> Iterator[Problem]:
    if replay_groups and mode == "none":
        yield Problem(
            field="buffer.replay_groups",
            value=replay_groups,
            rule="must be 0 with algorithm.correction.mode=none: replayed tokens are of older "
            "policies, and have to be weighed as such",
            remedy="set algorithm.correction.mode=truncate or mask, or buffer.replay_groups=0",
        )


@rule("algorithm.advantage", "buffer.replay_groups", "algorithm.dynamic_sampling")
def _equal_rewards_in_a_group_teach_nothing(
    advantage: str, replay_groups: int, dynamic_sampling: bool
) -> Iterator[Problem]:
    if advantage != "batch_norm":
        return
    rule = (
        "with algorithm.advantage=batch_norm, which compares with the whole batch: a group of "
        "equal rewards teaches something there, and must not give way to another"
    )
    if replay_groups:
        yield Problem(
            field="buffer.replay_groups",
            value=replay_groups,
            rule=f"must be 0 {rule}",
            remedy="set buffer.replay_groups=0, or another algorithm.advantage",
        )
    if dynamic_sampling:
        yield Problem(
            field="algorithm.dynamic_sampling",
            value=dynamic_sampling,
            rule=f"must be false {rule}",
            remedy="set algorithm.dynamic_sampling=false, or another algorithm.advantage",
        )
