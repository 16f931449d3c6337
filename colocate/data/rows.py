"""A row of a data set as a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from colocate.config import DataConfig
from colocate.ports import MESSAGES, Message, Prompt

_ROLES = get_type_hints(Message)["role"].__args__


class UnfitRowError(ValueError):
    """A row that makes no prompt; the message says why, as what comes after "row 3"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Makes prompts of rows.

    Attributes:
        prompt_column: Holds a text, or a list of messages whose last is the user's.
        columns: Of the prompt, by name: the data set's column; empty for all of them.
    """

    prompt_column: str
    columns: Mapping[str, str]

    @classmethod
    def of(cls, config: DataConfig) -> RowReader:
        return cls(prompt_column=config.prompt_column, columns=config.columns)

    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        """
        Raises:
            UnfitRowError: the row has no prompt, or not in a form that can be used.
        """
        named = self.columns.items() if self.columns else ((name, name) for name in row)
        columns = {name: row.get(column) for name, column in named}
        given = row.get(self.prompt_column)
        if isinstance(given, str):
            if not given.strip():
                raise UnfitRowError(f"has an empty `{self.prompt_column}`")
            return Prompt(text=given, columns=columns)
        if given is None:
            raise UnfitRowError(f"has no `{self.prompt_column}`")
        if not isinstance(given, Sequence):
            raise UnfitRowError(
                f"has a `{self.prompt_column}` of type {type(given).__name__}, which is neither a "
                "text nor a list of messages"
            )
        messages = [self._message(each) for each in given]
        if not messages or messages[-1]["role"] != "user":
            raise UnfitRowError(f"has a `{self.prompt_column}` that does not end with the user's")
        return Prompt(
            text=messages[-1]["content"],
            history=messages[:-1],
            columns={**columns, MESSAGES: messages},
        )

    def _message(self, given: Any) -> Message:
        if not isinstance(given, Mapping) or not {"role", "content"} <= given.keys():
            raise UnfitRowError(
                f"has a `{self.prompt_column}` with something that is no message: a message has "
                "`role` and `content`"
            )
        role, content = given["role"], given["content"]
        if role not in _ROLES:
            raise UnfitRowError(f"has a message of role {role!r}, not of {', '.join(_ROLES)}")
        if not isinstance(content, str) or (role == "user" and not content.strip()):
            raise UnfitRowError(f"has a message of role {role!r} without text")
        return Message(role=role, content=content)
