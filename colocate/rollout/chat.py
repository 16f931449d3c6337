"""Conversations by a chat template, token in and token out.

    opening        what the template writes for the prompt, up to where the model begins
    turn           what the model sampled: kept as it is, never written again
    observation    what the template writes from the end of a turn to where the next one begins
    turn           ...

An observation's text is found by having the template write a short conversation with it after an
answer that is known, and taking what follows that answer. Whether this gives what the template
writes for whole conversations is found out before a run begins (``chat_probes``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from colocate.ports import Message, Prompt, Role
from colocate.rollout.quoting import Quoting
from colocate.rollout.turns import Decode

Render = Callable[[Sequence[Message]], str]
"""The template's text of a conversation, up to where the model's next turn begins."""

ASKED = "Which word did they choose?"
ANSWERED = "Colocate-Probe-Answer"


class AnswerNotKeptError(ValueError):
    """A template does not write what the model wrote as it is."""


def continuation(render: Render, role: Role, text: str) -> str:
    """What the template writes after an answer for a message that follows it.

    Raises:
        AnswerNotKeptError: the answer is not in the template's text.
    """
    whole = render(
        [
            Message(role="user", content=ASKED),
            Message(role="assistant", content=ANSWERED),
            Message(role=role, content=text),
        ]
    )
    _, found, after = whole.partition(ANSWERED)
    if not found:
        raise AnswerNotKeptError("it does not keep what the model wrote as it is")
    return after


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurns:
    """A model's chat template at work.

    What it quotes, prompts too, gives plain text only: special tokens are the template's own.

    Attributes:
        role: Of observations whose environment does not say.
        end_token: With it the template ends the model's turns; None where it is not known, which
            only single-turn runs may have.
        stop_tokens: All that end a turn, that one included. They are no part of an action.
        refused: Roles, and ``"system"``, that the template cannot go on with, and why.
    """

    render: Render
    quoting: Quoting
    decode: Decode
    role: Role
    end_token: int | None
    stop_tokens: frozenset[int]
    refused: Mapping[str, str]

    def opening(self, prompt: Prompt, appended: str) -> list[int]:
        said = [*prompt.history, Message(role="user", content=prompt.text + appended)]
        for message in prompt.history:
            self._check(message["role"])
        quoted = [
            Message(role=message["role"], content=self.quoting.quote(message["content"]))
            for message in said
        ]
        contents = "".join(message["content"] for message in quoted)
        return self.quoting.encode(self.render(quoted), contents)

    def observation(self, text: str, role: Role | None, last_token: int) -> list[int]:
        """A turn that did not end with the template's token (no room, a stop string) gets it here,
        as a token that was not sampled."""
        role = role or self.role
        self._check(role)
        quoted = self.quoting.quote(text)
        tokens = self.quoting.encode(continuation(self.render, role, quoted), quoted)
        return tokens[1:] if last_token == self.end_token else tokens

    def action(self, token_ids: Sequence[int]) -> str:
        ended = len(token_ids) > 0 and token_ids[-1] in self.stop_tokens
        return self.decode(token_ids[:-1] if ended else token_ids)

    def _check(self, role: str) -> None:
        if role in self.refused:
            raise ValueError(
                f"the chat template cannot go on with messages of role {role!r}: "
                f"{self.refused[role]}"
            )
