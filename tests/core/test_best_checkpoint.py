"""A checkpoint is rated by the rewards of the steps that it alone has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colocate.core.best_checkpoint import rate_by_reward
from colocate.core.books import Books
from colocate.core.replay_buffer import Replay
from colocate.core.reward_book import NUM_KEPT, RewardBook
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


def test_the_book_keeps_the_last_steps_and_what_was_first_and_best() -> None:
    book = RewardBook()
    for step in range(3 * NUM_KEPT):
        book.enter(Version(step), 5.0 if step == 1 else step / 1000)
    last = 3 * NUM_KEPT
    assert (book.first, book.best, book.last) == (0.0, 5.0, (last - 1) / 1000)
    assert book.between(Version(last - 2), Version(last)) == [(last - 2) / 1000, (last - 1) / 1000]
    assert len(book.between(Version(0), Version(last))) == NUM_KEPT
    assert book.recent(2) == [(last - 2) / 1000, (last - 1) / 1000]
