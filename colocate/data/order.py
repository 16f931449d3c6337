"""Which row is at a position of the stream: a pure function of seed and position."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

_HELD_OUT = 0x5EED


class EpochOrder:
    """Epoch after epoch of all rows, each shuffled anew, so that the cursor is a number.

    The order is drawn by MT19937 from a seed sequence of run seed and epoch, through NumPy's
    ``RandomState``, whose results are frozen over NumPy's versions: a resumed run goes on in the
    same order.

    Args:
        num_rows: At least 1.
        seed: The run's.
        shuffle: False: rows come as they lie.
    """

    def __init__(self, num_rows: int, *, seed: int, shuffle: bool) -> None:
        if num_rows < 1:
            raise ValueError("a stream of prompts needs at least one row")
        self._num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        # Positions near the end of an epoch are asked for again after the next one has begun.
        self._permutation = functools.lru_cache(maxsize=2)(self._draw)

    def row(self, position: int) -> int:
        """The row at a position of the stream, both from 0."""
        epoch, index = divmod(position, self._num_rows)
        return int(self._permutation(epoch)[index]) if self._shuffle else index

    def _draw(self, epoch: int) -> npt.NDArray[np.int64]:
        return _permutation(self._num_rows, self._seed, epoch)


def hold_out(num_rows: int, fraction: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows to train on and rows held out, both in the order in which they lie.

    The choice depends on the number of rows and the fraction alone: runs with other seeds are
    evaluated on the same rows.
    """
    drawn = _permutation(num_rows, _HELD_OUT, 0)
    num_held_out = round(num_rows * fraction)
    return np.sort(drawn[num_held_out:]), np.sort(drawn[:num_held_out])


def _permutation(num_rows: int, *seeds: int) -> npt.NDArray[np.int64]:
    bits = np.random.MT19937(np.random.SeedSequence(seeds))
    return np.random.RandomState(bits).permutation(num_rows)
