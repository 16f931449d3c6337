"""A tracker that breaks, hangs or ends the process: the run and the other trackers go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import pytest

from colocate.loggers.group import LoggerGroup


class Kept:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, dict[str, float]]] = []
        self.succeeded: bool | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.entries.append((step, dict(values)))

    def close(self, *, succeeded: bool) -> None:
        self.succeeded = succeeded


class Breaking(Kept):
    def __init__(self, error: BaseException, *, at_step: int) -> None:
        super().__init__()
        self._error = error
        self._at_step = at_step

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self._at_step:
            raise self._error
        super().log(step, values)


def test_every_entry_comes_in_order_and_the_end_last() -> None:
    one, other = Kept(), Kept()
    group = LoggerGroup({"one": lambda: one, "other": lambda: other})
    for step in range(100):
        group.log(step, {"train/loss": float(step)})
    group.close(succeeded=True)
    expected = [(step, {"train/loss": float(step)}) for step in range(100)]
    assert one.entries == other.entries == expected
    assert one.succeeded is other.succeeded is True
    assert group.summary()["one"] == {"logged": 100, "failed": 0, "error": None}
    assert group.warnings == ()


@pytest.mark.parametrize("error", [OSError("disk full"), SystemExit(1), KeyboardInterrupt()])
def test_one_that_breaks_is_counted_and_warned_of_once(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    broken, whole = Breaking(error, at_step=2), Kept()
    group = LoggerGroup({"broken": lambda: broken, "whole": lambda: whole})
    with caplog.at_level(logging.WARNING, logger="colocate"):
        for step in range(5):
            group.log(step, {"train/loss": 0.0})
        group.close(succeeded=False)
    assert len(whole.entries) == 5
    assert broken.succeeded is whole.succeeded is False
    summary = group.summary()["broken"]
    assert (summary["logged"], summary["failed"]) == (2, 3)
    assert summary["error"].startswith(type(error).__name__)
    assert len(caplog.records) == len(group.warnings) == 1
    assert "broken has failed, and the run goes on" in group.warnings[0]


def test_one_that_cannot_be_opened_fails_each_entry() -> None:
    def refuse() -> Kept:
        raise ConnectionError("no server")

    group = LoggerGroup({"away": refuse})
    group.log(1, {"train/loss": 0.0})
    group.close(succeeded=True)
    assert group.summary()["away"] == {
        "logged": 0,
        "failed": 2,
        "error": "ConnectionError: no server",
    }


def test_one_that_cannot_be_closed_is_counted() -> None:
    class Clinging(Kept):
        def close(self, *, succeeded: bool) -> None:
            raise TimeoutError("upload")

    group = LoggerGroup({"clinging": Clinging})
    group.log(1, {})
    group.close(succeeded=True)
    assert group.summary()["clinging"] == {
        "logged": 1,
        "failed": 1,
        "error": "TimeoutError: upload",
    }


def test_one_that_hangs_holds_nothing_up_beyond_its_time() -> None:
    go_on = threading.Event()

    class Hanging(Kept):
        def log(self, step: int, values: Mapping[str, float]) -> None:
            go_on.wait()

    whole = Kept()
    group = LoggerGroup({"hanging": Hanging, "whole": lambda: whole})
    group.log(1, {"train/loss": 0.0})
    group.close(succeeded=True, patience_s=0.05)
    assert whole.entries
    assert "did not finish within 0.05 s" in group.warnings[0]
    go_on.set()


def test_what_is_logged_is_what_it_was_when_it_was_logged() -> None:
    kept = Kept()
    group = LoggerGroup({"kept": lambda: kept})
    values = {"train/loss": 1.0}
    group.log(1, values)
    values["train/loss"] = 2.0
    group.close(succeeded=True)
    assert kept.entries == [(1, {"train/loss": 1.0})]
