"""Prompts of a data set that is held as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from colocate.core.types import GroupId
from colocate.data.order import EpochOrder
from colocate.data.rows import RowReader, UnfitRowError
from colocate.ports import Prompt

_BATCH = 1000

CountTokens = Callable[[Prompt], int]


class Prompts(Sequence[Prompt]):
    """Some rows of a data set as prompts, made when they are asked for."""

    def __init__(self, rows: Any, numbers: Sequence[int], reader: RowReader) -> None:
        self._rows = rows
        self._numbers = numbers
        self._reader = reader

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...

    @overload
    def __getitem__(self, index: slice) -> Prompts: ...

    def __getitem__(self, index: int | slice) -> Prompt | Prompts:
        if isinstance(index, slice):
            return Prompts(self._rows, self._numbers[index], self._reader)
        return self._reader.prompt(self._rows[int(self._numbers[index])])


class DataSetPrompts:
    """A stream of prompts: epoch after epoch, by position."""

    def __init__(self, prompts: Prompts, *, seed: int, shuffle: bool) -> None:
        self._prompts = prompts
        self._order = EpochOrder(len(prompts), seed=seed, shuffle=shuffle)

    def __len__(self) -> int:
        """Of one epoch."""
        return len(self._prompts)

    def prompt(self, position: GroupId) -> Prompt:
        return self._prompts[self._order.row(position)]


def all_prompts(rows: Any, reader: RowReader) -> Iterator[tuple[int, Prompt]]:
    """Every row, by number.

    Raises:
        UnfitRowError: a row makes no prompt; tells its number, and how many more there are like it.
    """
    first: tuple[int, UnfitRowError] | None = None
    num_unfit = 0
    number = -1
    for batch in rows.iter(batch_size=_BATCH):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            number += 1
            try:
                prompt = reader.prompt(dict(zip(names, values, strict=True)))
            except UnfitRowError as error:
                first = first or (number, error)
                num_unfit += 1
                continue
            if first is None:
                yield number, prompt
    if first is not None:
        others = f"; so have {num_unfit - 1} other rows" if num_unfit > 1 else ""
        raise UnfitRowError(f"row {first[0]} {first[1]}{others}")


def fitting(
    rows: Any, reader: RowReader, count: CountTokens, limit: int
) -> tuple[list[int], list[int]]:
    """Numbers of the rows whose prompt has at most ``limit`` tokens, and lengths of the others."""
    kept: list[int] = []
    too_long: list[int] = []
    for number, prompt in all_prompts(rows, reader):
        num_tokens = count(prompt)
        if num_tokens <= limit:
            kept.append(number)
        else:
            too_long.append(num_tokens)
    return kept, too_long
