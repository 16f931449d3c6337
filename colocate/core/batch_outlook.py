"""How many batches will be full: the distribution, from the chances of the groups that are not.

Groups are taken to end independently of each other, so that the number of those that do is
Poisson-binomial. Its distribution is convolved group by group, which is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

CERTAIN = 1e-3
"""Chances nearer to 0 or 1 than this are taken to be 0 or 1."""


def chances_of_batches(
    num_complete: int, chances: Sequence[float], groups_per_step: int, *, stride: int = 1
) -> dict[int, float]:
    """Probability of each number of full batches.

    Args:
        num_complete: Groups that are complete now.
        chances: Of each group that is not, to be complete by then.
        stride: How many groups each of ``chances`` stands for.
    """
    open_chances = []
    for chance in chances:
        if chance > 1 - CERTAIN:
            num_complete += stride
        elif chance > CERTAIN:
            open_chances.append(chance)
    ended = [1.0]  # probability by number of those that end
    for chance in open_chances:
        ended = [
            stay * (1 - chance) + come * chance
            for stay, come in zip([*ended, 0.0], [0.0, *ended], strict=True)
        ]
    batches: dict[int, float] = {}
    for number, probability in enumerate(ended):
        full = (num_complete + number * stride) // groups_per_step
        batches[full] = batches.get(full, 0.0) + probability
    return batches
