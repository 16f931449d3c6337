"""Tasks for the terminal, from "say what the file says" to "make the failing test pass"."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from colocate.core.types import GroupId
from colocate.environments.faulty_functions import FAULTS, failing_arguments, shown_test
from colocate.ports import Prompt

_TEXT = """\
amber basil cedar delta ember fable grove hazel inlet jolly karma lemon maple noble ocean panda
quilt raven solar tulip umbra vivid waltz xenon yodel zebra"""
WORDS = tuple(_TEXT.split())

Task = tuple[str, dict[str, str], dict[str, Any]]
"""What is asked, the folder, and the check."""


def _read(draw: Random) -> Task:
    name, word = draw.sample(WORDS, k=2)
    question = f"What does the file {name}.txt say?"
    return question, {f"{name}.txt": f"{word}\n"}, {"kind": "answer", "wanted": word}


def _search(draw: Random) -> Task:
    *names, word = draw.sample(WORDS, k=9)
    others = [each for each in WORDS if each != word]
    files = {f"notes/{name}.txt": " ".join(draw.choices(others, k=20)) + "\n" for name in names}
    where = draw.choice(names)
    text = draw.choices(others, k=20)
    text[draw.randrange(20)] = word
    files[f"notes/{where}.txt"] = " ".join(text) + "\n"
    question = f'Which file in the folder notes has the word "{word}"? Answer with its name.'
    return question, files, {"kind": "answer", "wanted": f"{where}.txt"}


def _count(draw: Random) -> Task:
    levels = ("INFO", "WARNING", "ERROR")
    lines = [f"{draw.choice(levels)} {draw.choice(WORDS)} {i}" for i in range(draw.randint(30, 90))]
    wanted = sum(line.startswith("ERROR") for line in lines)
    question = "How many lines of run.log begin with ERROR?"
    check = {"kind": "answer", "wanted": str(wanted)}
    return question, {"run.log": "\n".join(lines) + "\n"}, check


def _write(draw: Random) -> Task:
    name, folder, *words = draw.sample(WORDS, k=4)
    text = " ".join(words)
    question = f"Make a file {folder}/{name}.txt that holds the text: {text}"
    return question, {}, {"kind": "files", "wanted": {f"{folder}/{name}.txt": text}}


def _sort(draw: Random) -> Task:
    words = draw.sample(WORDS, k=12)
    question = "Sort the lines of words.txt alphabetically into a new file sorted.txt."
    wanted = {"sorted.txt": "\n".join(sorted(words)), "words.txt": "\n".join(words)}
    return question, {"words.txt": "\n".join(words) + "\n"}, {"kind": "files", "wanted": wanted}


def _fix(draw: Random) -> Task:
    fault = draw.choice(FAULTS)
    hidden = [failing_arguments(fault, draw), *(fault.arguments(draw) for _ in range(7))]
    check = {
        "kind": "calls",
        "module": fault.module,
        "function": fault.function,
        "calls": hidden,
        # As it comes back from the program that calls it.
        "wanted": json.loads(json.dumps([fault.right(*call) for call in hidden])),
    }
    files = {
        f"{fault.module}.py": fault.source,
        f"test_{fault.module}.py": shown_test(fault, failing_arguments(fault, draw)),
    }
    question = (
        f"`python3 test_{fault.module}.py` fails. Find the fault in {fault.module}.py and mend it."
    )
    return question, files, check


KINDS: dict[str, Callable[[Random], Task]] = {
    "read": _read,
    "search": _search,
    "count": _count,
    "write": _write,
    "sort": _sort,
    "fix": _fix,
}


class TerminalPrompts:
    """A stream without end: kinds in turn, each position a task of its own.

    Args:
        seed: Another seed, other tasks.
        kinds: Of ``KINDS``; all by default.

    Raises:
        ValueError: an unknown kind, or none.
    """

    def __init__(self, seed: int = 0, kinds: Sequence[str] | None = None) -> None:
        self._seed = seed
        self._kinds = tuple(KINDS if kinds is None else kinds)
        unknown = [kind for kind in self._kinds if kind not in KINDS]
        if unknown or not self._kinds:
            raise ValueError(
                f"data.options.kinds is {list(self._kinds)}; it must be some of {', '.join(KINDS)}"
            )

    def prompt(self, position: GroupId) -> Prompt:
        kind = self._kinds[position % len(self._kinds)]
        question, files, check = KINDS[kind](Random(f"{self._seed}/{position}"))
        return Prompt(text=question, columns={"files": files, "check": check, "kind": kind})
