"""Tool calls in what a model wrote.

Two grammars: ``fenced``, a block of code as in Markdown, which any model that has seen Markdown can
write; and ``json``, the ``<tool_call>`` of Hermes and Qwen.

    ```python                         <tool_call>
    print(6 * 7)                      {"name": "python", "arguments": {"code": "print(6 * 7)"}}
    ```                               </tool_call>

A turn is a call where it holds one; its first counts. What looks like a call and is none is told to
the model, which may try again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal, get_args

Grammar = Literal["fenced", "json"]

_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[ \t]*\n(.*?)(?:^[ \t]*```|(\Z))", re.M | re.S)
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What a model may call.

    Attributes:
        name: In a JSON call.
        argument: The name of its only argument, a text.
        languages: In a fenced call, in lower case; ``""`` admits a block that names none.
    """

    name: str
    argument: str
    languages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    text: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """``reason`` is for the model to read."""

    reason: str


def find_call(turn: str, tool: Tool, grammar: Grammar) -> Call | Malformed | None:
    """The first call in a turn; None where it holds none."""
    return _find_fenced(turn, tool) if grammar == "fenced" else _find_json(turn, tool)


def instructions(tool: Tool, grammar: Grammar, example: str) -> str:
    """How to call the tool, for a prompt."""
    if grammar == "fenced":
        return f"```{tool.languages[0]}\n{example}\n```"
    call = json.dumps({"name": tool.name, "arguments": {tool.argument: example}})
    return f"{_OPEN}\n{call}\n{_CLOSE}"


def check_grammar(grammar: str) -> None:
    """
    Raises:
        ValueError: it is none.
    """
    if grammar not in get_args(Grammar):
        raise ValueError(
            f"environment.options.grammar is {grammar!r}; it must be one of "
            f"{', '.join(get_args(Grammar))}"
        )


def _find_fenced(turn: str, tool: Tool) -> Call | Malformed | None:
    for match in _FENCE.finditer(turn):
        language, text, unclosed = match[1].lower(), match[2], match[3] is not None
        if language not in tool.languages:
            continue
        if unclosed:
            return Malformed("the block of code has no end; close it with ``` on a line of its own")
        if not text.strip():
            return Malformed("the block of code is empty")
        return Call(text)
    return None


def _find_json(turn: str, tool: Tool) -> Call | Malformed | None:
    _, found, rest = turn.partition(_OPEN)
    if not found:
        return None
    body, closed, _ = rest.partition(_CLOSE)
    if not closed:
        return Malformed(f"the call has no end; close it with {_CLOSE}")
    try:
        call = json.loads(body)
    except ValueError as error:
        return Malformed(f"the call is no JSON: {error}")
    if not isinstance(call, dict) or call.get("name") != tool.name:
        name = call.get("name") if isinstance(call, dict) else None
        return Malformed(f"there is no tool {name!r}; the only one is {tool.name!r}")
    arguments = call.get("arguments")
    text = arguments.get(tool.argument) if isinstance(arguments, dict) else None
    if not isinstance(text, str) or not text.strip():
        return Malformed(f'"arguments" must be an object with a text "{tool.argument}"')
    return Call(text)
