"""Prompts that are read while the run goes on."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from colocate.core.types import GroupId
from colocate.data.rows import RowReader, UnfitRowError
from colocate.ports import Prompt

AHEAD = 256
"""Prompts read before they are asked for, by a thread, so that the event loop does not wait."""

KEPT = 4096
"""Prompts kept for who asks for an earlier position; earlier ones are read again from the start."""


class StreamedPrompts:
    """A stream's prompts by position, epoch after epoch.

    Args:
        rows: A ``datasets.IterableDataset``.
        reader: Makes prompts of its rows.
        fits: Whether a prompt is short enough.
        seed: Of the order in which rows come.
        buffer: Rows among which the next one is drawn; None: rows come as they lie.
    """

    def __init__(
        self,
        rows: Any,
        reader: RowReader,
        fits: Callable[[Prompt], bool],
        *,
        seed: int,
        buffer: int | None,
    ) -> None:
        self._rows = rows if buffer is None else rows.shuffle(seed=seed, buffer_size=buffer)
        self._reader = reader
        self._fits = fits
        self._changed = threading.Condition()
        self._life = 0
        self._window: deque[Prompt] = deque()
        self._begin = 0
        self._wanted = -1
        self._error: Exception | None = None
        self.num_too_long = 0

    def prompt(self, position: GroupId) -> Prompt:
        """Waits where the position has not been read yet: at the start, and after a resume.

        Raises:
            UnfitRowError: a row before it makes no prompt, or a whole epoch holds none that fits.
            Exception: what reading the data set raised.
        """
        with self._changed:
            if self._life == 0 or position < self._begin:
                self._rewind()
            self._wanted = max(self._wanted, position)
            self._changed.notify_all()
            while position >= self._begin + len(self._window):
                if self._error is not None:
                    raise self._error
                self._changed.wait()
            return self._window[position - self._begin]

    def _rewind(self) -> None:
        self._life += 1
        self._window.clear()
        self._begin, self._wanted, self._error, self.num_too_long = 0, -1, None, 0
        threading.Thread(
            target=self._read, args=(self._life,), daemon=True, name="colocate-data"
        ).start()

    def _read(self, life: int) -> None:
        try:
            for prompt in self._prompts(life):
                with self._changed:
                    if life != self._life:
                        return
                    self._window.append(prompt)
                    # What is asked for is never among what is dropped.
                    while len(self._window) > KEPT and self._begin < self._wanted:
                        self._window.popleft()
                        self._begin += 1
                    self._changed.notify_all()
                    while self._begin + len(self._window) > self._wanted + AHEAD:
                        self._changed.wait()
                        if life != self._life:
                            return
        except Exception as error:
            with self._changed:
                if life == self._life:
                    self._error = error
                    self._changed.notify_all()

    def _prompts(self, life: int) -> Iterator[Prompt]:
        for epoch in itertools.count():
            self._rows.set_epoch(epoch)
            num_fitting = 0
            for number, row in enumerate(self._rows):
                try:
                    prompt = self._reader.prompt(row)
                except UnfitRowError as error:
                    raise UnfitRowError(f"row {number} of epoch {epoch} {error}") from error
                if self._fits(prompt):
                    num_fitting += 1
                    yield prompt
                elif life == self._life:
                    self.num_too_long += 1
            if not num_fitting:
                raise UnfitRowError("the data set has no prompt that is short enough")
