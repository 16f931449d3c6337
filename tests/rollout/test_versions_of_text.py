"""Characters have the version of the weights that sampled their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from colocate.core.types import Span, Version
from colocate.rollout.content import Content
from colocate.rollout.versions_of_text import versions_of_turns


def decode(token_ids: Sequence[int]) -> str:
    """Tokens are bytes of UTF-8; 0 is an end token."""
    return bytes(token_ids).replace(b"\0", b"<end>").decode(errors="replace")


def content(*turns: tuple[str, bytes, str, tuple[tuple[int, int], ...]]) -> Content:
    made = Content()
    for speaker, tokens, text, spans in turns:
        if speaker == "agent":
            made.append_sampled(
                list(tokens),
                [-1.0] * len(tokens),
                [Span(version=Version(version), length=length) for version, length in spans],
            )
        else:
            made.append_observed(list(tokens))
        made.say(speaker, text)  # type: ignore[arg-type]
    return made


def test_a_turn_that_crossed_swaps_is_told_by_version() -> None:
    made = content(
        ("prompt", b"0-9?", "0-9?", ()),
        ("agent", b"ab", "ab", ((3, 2),)),
        ("environment", b"low", "low", ()),
        ("agent", b"cdefg", "cdefg", ((3, 1), (4, 3), (6, 1))),
    )
    assert versions_of_turns(made, decode) == [(), ((3, 2),), (), ((3, 1), (4, 3), (6, 1))]


def test_the_end_token_that_an_environment_does_not_see_belongs_to_nobody() -> None:
    made = content(("prompt", b"?", "?", ()), ("agent", b"ab\0", "ab", ((1, 2), (2, 1))))
    assert versions_of_turns(made, decode)[1] == ((1, 2),)


def test_a_character_cut_by_a_swap_is_the_later_versions() -> None:
    euro = "€".encode()
    made = content(("agent", b"a" + euro + b"b", "a€b", ((1, 2), (2, 3))))
    assert versions_of_turns(made, decode) == [((1, 1), (2, 2))]


def test_an_empty_turn_has_no_stretch() -> None:
    assert versions_of_turns(content(("agent", b"\0", "", ((1, 1),))), decode) == [()]


def test_stretches_are_the_whole_text_also_with_a_last_word_of_the_environment() -> None:
    made = content(("agent", b"abc", "abc", ((1, 1), (2, 2))))
    made.say("environment", "right")
    told = versions_of_turns(made, decode)
    assert told == [((1, 1), (2, 2)), ()]
    assert sum(number for _, number in told[0]) == len("abc")
