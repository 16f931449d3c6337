"""Draws the state diagrams of docs/architecture.md from the transition tables of the core.

With ``--check`` it writes nothing, and exits with 1 where the document is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from colocate.core import phases, trajectory
from colocate.core.phases import Cause, Phase

TARGET = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
_BLOCK = "<!-- begin {name}: written by tools/make_state_diagrams.py -->\n{body}<!-- end {name} -->"


def phase_diagram() -> str:
    """Mermaid, of the phases; what every phase can do is said once, in a note."""
    edges = [
        (str(a), str(b), str(cause))
        for (a, cause), b in phases.TRANSITIONS.items()
        if cause not in (Cause.CLOSE, Cause.FAULT)
    ]
    left = {cause: _sources(cause) for cause in (Cause.CLOSE, Cause.FAULT)}
    note = (
        f"every phase but {_others(left[Cause.CLOSE])} can be left for closing; "
        f"every phase but {_others(left[Cause.FAULT])} can fail"
    )
    lines = [f"    [*] --> {Phase.STARTING}", *_edges(edges)]
    lines += [f"    {end} --> [*]" for end in sorted(phases.ENDS)]
    lines += [f"    note right of {Phase.CLOSING}", f"        {note}", "    end note"]
    return _mermaid(lines)


def trajectory_diagram() -> str:
    """Mermaid, of one trajectory's states."""
    edges = [(a.name, b.name, str(t)) for (a, t), b in trajectory.TRANSITIONS.items()]
    first = trajectory.State.ACTING.name
    return _mermaid([f"    [*] --> {first}", *_edges(edges), "    ENDED --> [*]"])


def _sources(cause: Cause) -> set[Phase]:
    return {phase for phase, c in phases.TRANSITIONS if c is cause}


def _others(sources: set[Phase]) -> str:
    return ", ".join(sorted(set(Phase) - sources))


def _edges(edges: Iterable[tuple[str, str, str]]) -> list[str]:
    return [f"    {a} --> {b}: {label}" for a, b, label in edges]


def _mermaid(lines: Iterable[str]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def updated(text: str) -> str:
    """The document with both diagrams as they are now.

    Raises:
        ValueError: where it lacks a diagram's markers.
    """
    for name, body in (("phases", phase_diagram()), ("trajectory", trajectory_diagram())):
        pattern = re.compile(rf"<!-- begin {name}:.*?<!-- end {name} -->", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{TARGET} has no markers of the diagram {name!r}")
        block = _BLOCK.format(name=name, body=body)
        text = pattern.sub(lambda _, block=block: block, text)
    return text


def main(arguments: list[str]) -> int:
    text = TARGET.read_text()
    if arguments == ["--check"]:
        if updated(text) == text:
            return 0
        print(f"{TARGET} is out of date: run tools/make_state_diagrams.py", file=sys.stderr)
        return 1
    TARGET.write_text(updated(text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
