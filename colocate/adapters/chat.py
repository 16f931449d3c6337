"""From the configuration to the turns of a conversation."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colocate.adapters.tokenizer import HuggingFaceTokenizer
from colocate.ports import Role
from colocate.rollout.chat import ChatTurns
from colocate.rollout.chat_probes import examine
from colocate.rollout.quoting import Quoting
from colocate.rollout.turns import PlainTurns, Turns

logger = logging.getLogger(__name__)

REMEDY = (
    "name a file with a template that leaves earlier messages as they are (model.chat_template="
    "FILE.jinja), use the plain text (model.chat_template=none), or have one turn only "
    "(rollout.max_turns=1)"
)
OTHER_ROLE = "set environment.observation_role={other}, or "


class ChatTemplateError(ValueError):
    """A template that a run cannot follow. Tells the rule that is broken, and the remedy."""

    def __init__(self, rule: str, remedy: str) -> None:
        super().__init__(f"model.chat_template: {rule}. Remedy: {remedy}")
        self.rule = rule
        self.remedy = remedy


def make_turns(
    tokenizer: HuggingFaceTokenizer,
    choice: str,
    variables: Mapping[str, Any],
    role: Role,
    *,
    max_turns: int,
) -> Turns:
    """How conversations with a model become tokens: by its template, or as plain text.

    Arguments and errors are those of ``make_chat``.
    """
    chat = make_chat(tokenizer, choice, variables, role, max_turns=max_turns)
    return chat or PlainTurns(
        tokenizer.encode, tokenizer.decode, stop_tokens=frozenset(tokenizer.end_tokens())
    )


def make_chat(
    tokenizer: HuggingFaceTokenizer,
    choice: str,
    variables: Mapping[str, Any],
    role: Role,
    *,
    max_turns: int,
) -> ChatTurns | None:
    """The conversation of a model; None where it is plain text.

    Args:
        tokenizer: The model's.
        choice: ``model.chat_template``.
        variables: ``model.chat_template_options``.
        role: ``environment.observation_role``.
        max_turns: ``rollout.max_turns``: with one turn no template has to be followed.

    Raises:
        ChatTemplateError: the template cannot be read, cannot write a question, or cannot be
            followed over several turns.
    """
    if choice == "none" or (choice == "auto" and not tokenizer.has_template):
        return None
    render = tokenizer.renderer(_read(choice), variables)
    try:
        render([{"role": "user", "content": "?"}])
    except Exception as error:
        raise ChatTemplateError(
            f"the template cannot write a conversation of one question: {error}",
            "set model.chat_template=none, or name a file with another template",
        ) from error
    facts = examine(render, tokenizer.encode, tokenizer.added_tokens())
    if max_turns > 1 and role in facts.refused:
        other = "user" if role == "tool" else "tool"
        hint = "" if other in facts.refused else OTHER_ROLE.format(other=other)
        raise ChatTemplateError(
            "must be a template that can be followed turn by turn, where observations are messages "
            f"of role {role!r}; {facts.refused[role]}",
            hint + REMEDY,
        )
    if facts.trims and max_turns > 1:
        logger.info(
            "the chat template trims white space off the ends of turns; what the model samples is "
            "kept as it is"
        )
    ends = () if facts.end_token is None else (facts.end_token,)
    return ChatTurns(
        render=render,
        quoting=Quoting(tokenizer.encode, tokenizer.encode_plain, tokenizer.special_tokens()),
        decode=tokenizer.decode,
        role=role,
        end_token=facts.end_token,
        stop_tokens=frozenset((*ends, *tokenizer.end_tokens())),
        refused=facts.refused if max_turns > 1 else {},
    )


def _read(choice: str) -> str | None:
    if choice == "auto":
        return None
    try:
        return Path(choice).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatTemplateError(
            f"must be `auto`, `none`, or a file that holds a template; {error}",
            "check the path, or leave model.chat_template out",
        ) from error
