"""Latencies of which some were cut short, against what is known of them."""

from __future__ import annotations

import numpy as np
import pytest

from colocate.config import DistributionConfig
from colocate.sim.latency_fit import MAX_VALUES, empirical


def test_without_cuts_the_values_are_those_that_were_measured() -> None:
    assert empirical([3.0, 1.0, 2.0, 2.0]).values == (1.0, 2.0, 2.0, 3.0)


def test_a_cut_moves_its_share_to_what_took_longer() -> None:
    """Product-limit by hand: a quarter at 1; of the rest, one of two at 3 and one at 4."""
    assert empirical([1.0, 3.0, 4.0], [2.0]).values == (1.0, 3.0, 3.0, 4.0)


def test_what_outlasted_every_answer_takes_as_long_as_anybody_waited() -> None:
    assert empirical([1.0, 2.0], [5.0, 6.0]).values == (1.0, 2.0, 6.0, 6.0)


def test_nothing_answered_takes_no_time() -> None:
    assert empirical([], [4.0]) == DistributionConfig(scale=0.0)


def test_the_tail_that_a_bound_cuts_comes_back() -> None:
    random = np.random.default_rng(5)
    truth = random.lognormal(0.0, 1.5, 60_000)
    limit = random.exponential(4.0, truth.size)
    answered, cut = truth[truth <= limit], limit[truth > limit]
    fitted = np.array(empirical(answered.tolist(), cut.tolist()).values)
    assert len(fitted) == MAX_VALUES
    for seconds in (0.5, 2.0, 8.0, 15.0):
        beyond = np.mean(truth > seconds)
        assert np.mean(fitted > seconds) == pytest.approx(beyond, rel=0.1)
        assert seconds < 8 or np.mean(answered > seconds) < 0.6 * beyond
