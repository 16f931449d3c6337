"""A checkpoint is rated by the rewards of the steps that it alone has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colocate.core.best_checkpoint import rate_by_reward
from colocate.core.books import Books
from colocate.core.replay_buffer import Replay
from colocate.core.types import BatchId, GroupId, ReplayId, ReplayLease, Version
from tests.core.test_recovery import BASE

KEEPS_BEST = replace(BASE, keep_best=True, eval_every_steps=0)


def test_a_step_of_replays_alone_does_not_lend_it_the_reward_of_an_older_step() -> None:
    books = Books(bound=1)
    lease = ReplayLease(replay=ReplayId(0), origin=BatchId(0), group=GroupId(0), trajectories=())
    books.train(Version(0), [], [[1.0, 0.6]], [])
    books.train(Version(1), [], [], [Replay(lease=lease, members=(), replaced=(0.5, 0.5))])
    books.train(Version(2), [], [[0.25]], [])
    (rated,) = rate_by_reward(KEEPS_BEST, books, Version(1), Version(3))
    assert (rated.version, rated.value) == (3, 0.25)
    (rated,) = rate_by_reward(KEEPS_BEST, books, Version(0), Version(3))
    assert rated.value == pytest.approx((0.8 + 0.25) / 2)
    assert rate_by_reward(KEEPS_BEST, books, Version(1), Version(2)) == []
    assert list(books.summary(0)["reward"].values()) == pytest.approx([0.8, 0.25, 0.8])
