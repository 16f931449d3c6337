"""An answer is spelt out as it comes, whole characters only, and once."""

from __future__ import annotations

from collections.abc import Sequence

from colocate.chat.spelling import Spelling


def decode(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def test_characters_are_written_once_they_are_whole() -> None:
    written: list[str] = []
    spelling = Spelling(decode, written.append)
    for byte in "a€b".encode():
        spelling.add([byte])
    assert written == ["a", "€", "b"]
    spelling.end("a€b")
    assert "".join(written) == "a€b"


def test_what_was_not_written_yet_comes_at_the_end_and_the_next_answer_begins_anew() -> None:
    written: list[str] = []
    spelling = Spelling(decode, written.append)
    spelling.add(b"one")
    spelling.end("one two")
    spelling.end("three")
    assert written == ["one", " two", "three"]


def test_an_answer_that_was_stopped_is_forgotten() -> None:
    written: list[str] = []
    spelling = Spelling(decode, written.append)
    spelling.add(b"one")
    spelling.end("")
    spelling.add(b"two")
    assert written == ["one", "two"]
