"""Finds out whether a chat template can be followed turn by turn.

A run appends to what it has, while a template writes whole conversations. The two agree where the
template lets earlier messages be; some do not: they take thinking out of earlier turns, or move the
system's message to the last user's. A model trained on one would be asked the other later on, so
that is refused before a run begins. White space that a template trims off the ends of messages is
let pass: what was sampled stays as it was sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import get_args

from colocate.ports import Message, Role
from colocate.rollout.chat import ANSWERED, ASKED, AnswerNotKeptError, Render, continuation
from colocate.rollout.turns import Encode

NUM_TURNS = 5

PROBES = {
    "plain text": "It is the third one, I think.",
    "a block of code": "I compute it.\n\n```python\nx = {'a': 1}\nprint(x)\n```",
    "a tool call": '<tool_call>\n{"name": "python", "arguments": {"code": "1 + 1"}}\n</tool_call>',
    "white space inside": "one  two\n\n\n  three\tfour",
    "thinking": "<think>\nLet me see.\n</think>\n\nIt is the third one.",
}
"""Kinds of answers, and one of each. None has white space at its ends."""


class _RefusedError(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFacts:
    """What was found out.

    Attributes:
        end_token: As in ``ChatTurns``.
        refused: Likewise.
        trims: Whether white space at the ends of the model's turns is trimmed.
    """

    end_token: int | None
    refused: dict[str, str]
    trims: bool


def examine(render: Render, encode: Encode, added_tokens: Collection[int]) -> TemplateFacts:
    """Has the template write probe conversations.

    Args:
        render: The template; may raise anything for what it does not know.
        encode: The tokenizer's.
        added_tokens: Tokens that are found in a text before it is cut into others.
    """
    refused: dict[str, str] = {}
    ends: dict[Role, int] = {}
    for role in get_args(Role):
        try:
            ends[role] = _end_token(render, encode, added_tokens, role)
            _check_conversations(render, role, [])
            _check_tokens(render, encode, role)
        except _RefusedError as error:
            refused[role] = str(error)
    sound = [role for role in ends if role not in refused]
    system = Message(role="system", content="You are brief.")
    try:
        _check_conversations(render, sound[0] if sound else "user", [system])
    except _RefusedError as error:
        refused["system"] = str(error)
    known = [*(ends[role] for role in sound), *ends.values()]
    return TemplateFacts(
        end_token=known[0] if known else None,
        refused=refused,
        trims=bool(sound) and not _agrees(render, sound[0], [], "\n two words \n"),
    )


def _end_token(render: Render, encode: Encode, added_tokens: Collection[int], role: Role) -> int:
    after = _continuation(render, role, ASKED)
    if ASKED not in after:
        raise _RefusedError("it leaves such messages out")
    first = encode(after)[0]
    if first not in added_tokens:
        raise _RefusedError(
            f"it ends the model's turns with {after[:12]!r}, which does not begin with a special "
            "token, so that the end of a turn cannot be told from its text"
        )
    return first


def _check_conversations(render: Render, role: Role, before: Sequence[Message]) -> None:
    for kind, answer in PROBES.items():
        if not _agrees(render, role, before, answer):
            raise _RefusedError(
                f"it writes an earlier part of a conversation, with {kind} in the model's turns, "
                "differently once further messages follow"
            )


def _agrees(render: Render, role: Role, before: Sequence[Message], answer: str) -> bool:
    """Whether what the template writes at once is what is written turn by turn."""
    messages = [*before, Message(role="user", content=ASKED)]
    text = _rendered(render, messages)
    lead = _lead(render, role, messages, text)
    for turn in range(NUM_TURNS):
        said = f"Answer {turn} is noted."
        text += lead + answer + _continuation(render, role, said)
        messages += [Message(role="assistant", content=answer), Message(role=role, content=said)]
    return text == _rendered(render, messages)


def _lead(render: Render, role: Role, messages: Sequence[Message], opening: str) -> str:
    """White space before an answer, which the template writes and a model has to sample."""
    later = [
        Message(role="assistant", content=ANSWERED),
        Message(role=role, content=ASKED),
    ]
    whole = _rendered(render, [*messages, *later])
    if not whole.startswith(opening):
        raise _RefusedError(
            "it writes what comes before the model's first turn differently once turns follow"
        )
    lead = whole[len(opening) :].partition(ANSWERED)[0]
    if lead.strip():
        raise _RefusedError(
            f"it has earlier turns of the model begin with {lead[:40]!r}, and the next turn not"
        )
    return lead


def _check_tokens(render: Render, encode: Encode, role: Role) -> None:
    """What follows an answer must be the same tokens alone as in its place."""
    after = _continuation(render, role, ASKED)
    alone = encode(after)
    opening = _rendered(render, [Message(role="user", content=ASKED)])
    if encode(opening + ANSWERED + after)[-len(alone) :] != alone:
        raise _RefusedError("the tokens of a message depend on what comes before it")


def _continuation(render: Render, role: Role, text: str) -> str:
    try:
        return continuation(render, role, text)
    except AnswerNotKeptError as error:
        raise _RefusedError(str(error)) from error
    except Exception as error:
        raise _RefusedError(_of(error)) from error


def _rendered(render: Render, messages: Sequence[Message]) -> str:
    try:
        return render(messages)
    except Exception as error:
        raise _RefusedError(_of(error)) from error


def _of(error: Exception) -> str:
    return f"it says {str(error).strip()!r}"
