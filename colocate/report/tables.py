"""Tables that are shown on a page, and written as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A column; numbers stand to the right."""

    title: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text, ready to be shown; every row has one cell a column."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in {len(self.columns)} columns: {row}")

    def cells(self, row: Sequence[str]) -> Iterator[tuple[Column, str]]:
        return zip(self.columns, row, strict=True)

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.title for column in self.columns])
        writer.writerows(self.rows)
        return text.getvalue()

    def to_markdown(self) -> str:
        def line(cells: Sequence[str]) -> str:
            safe = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
            return f"| {' | '.join(safe)} |"

        rule = ["---:" if column.is_number else "---" for column in self.columns]
        titles = [column.title for column in self.columns]
        return "\n".join([line(titles), line(rule), *map(line, self.rows)]) + "\n"
