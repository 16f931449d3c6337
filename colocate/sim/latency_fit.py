"""The distribution of latencies of which some were cut short."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import CensoredData, ecdf

from colocate.config import DistributionConfig

MAX_VALUES = 20_000
"""Of an empirical distribution; more are thinned by rank."""


def empirical(
    answered_s: Sequence[float], unanswered_s: Sequence[float] = ()
) -> DistributionConfig:
    """The product-limit estimate (Kaplan and Meier 1958), as values that are equally likely each.

    Args:
        answered_s: Seconds that an answer took.
        unanswered_s: Seconds after which one was not waited for any longer.

    What the estimate leaves beyond the longest answer takes as long as anybody waited.
    """
    if not answered_s:
        return DistributionConfig(scale=0.0)
    ended = np.maximum(answered_s, 0.0)
    cut = np.maximum(np.asarray(unanswered_s, dtype=float), 0.0)
    curve = ecdf(CensoredData(uncensored=ended, right=cut)).cdf
    num_values = min(MAX_VALUES, len(ended) + len(cut))
    ranks = (np.arange(num_values) + 0.5) / num_values
    # Sums of shares miss 1 by their rounding.
    places = np.searchsorted(curve.probabilities, ranks - 1e-12)
    seconds = np.append(curve.quantiles, np.concatenate([ended, cut]).max())
    return DistributionConfig(kind="empirical", values=tuple(seconds[places].tolist()))
