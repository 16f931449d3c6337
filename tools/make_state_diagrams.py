"""Draws state diagrams and tables of the documents from the tables that the core runs on.

With ``--check`` it writes nothing, and exits with 1 where the document is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from colocate.core import phases, trajectory
from colocate.core.memory import EVICTED
from colocate.core.phases import Cause, Phase
from colocate.core.remedies import LADDER

DOCS = Path(__file__).resolve().parents[1] / "docs"
_BLOCK = "<!-- begin {name}: written by tools/make_state_diagrams.py -->\n{body}<!-- end {name} -->"


_OF_MOST_PHASES = {
    Cause.CLOSE: "can be left for closing",
    Cause.FAULT: "can fail",
    Cause.ENGINE_LOST: f"is left for {Phase.STARTING} where the engine is lost",
    Cause.TRAINER_LOST: f"is left for {Phase.STARTING} where the trainer is lost",
}
"""Causes that would make a thicket of the diagram."""


def phase_diagram() -> str:
    """Mermaid, of the phases; what every phase can do is said once, in a note."""
    edges = [
        (str(a), str(b), str(cause))
        for (a, cause), b in phases.TRANSITIONS.items()
        if cause not in _OF_MOST_PHASES
    ]
    notes = (
        f"every phase but {_others(_sources(cause))} {words}"
        for cause, words in _OF_MOST_PHASES.items()
    )
    note = "; ".join(notes)
    lines = [f"    [*] --> {Phase.STARTING}", *_edges(edges)]
    lines += [f"    {end} --> [*]" for end in sorted(phases.ENDS)]
    lines += [f"    note right of {Phase.CLOSING}", f"        {note}", "    end note"]
    return _mermaid(lines)


def trajectory_diagram() -> str:
    """Mermaid, of one trajectory's states."""
    edges = [(a.name, b.name, str(t)) for (a, t), b in trajectory.TRANSITIONS.items()]
    first = trajectory.State.ACTING.name
    return _mermaid([f"    [*] --> {first}", *_edges(edges), "    ENDED --> [*]"])


def ladder_table() -> str:
    """Markdown: the remedies of each phase that waits for memory, in their order."""
    rows = [f"| {phase.upper()} | {', then '.join(rungs)} |" for phase, rungs in LADDER.items()]
    return "\n".join(["| phase | tried, one after the other |", "|---|---|", *rows, ""])


def mode_table() -> str:
    """Markdown: what each sleep mode takes from the engine."""
    rows = [
        f"| `{mode}` | {', '.join(sorted(parts)) or 'nothing'} |" for mode, parts in EVICTED.items()
    ]
    return "\n".join(["| `inference.sleep` | leaves the device |", "|---|---|", *rows, ""])


BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "architecture.md": {"phases": phase_diagram, "trajectory": trajectory_diagram},
    "swap.md": {"phases": phase_diagram, "ladder": ladder_table, "modes": mode_table},
}
"""The generated blocks of each document."""


def _sources(cause: Cause) -> set[Phase]:
    return {phase for phase, c in phases.TRANSITIONS if c is cause}


def _others(sources: set[Phase]) -> str:
    return ", ".join(sorted(set(Phase) - sources))


def _edges(edges: Iterable[tuple[str, str, str]]) -> list[str]:
    return [f"    {a} --> {b}: {label}" for a, b, label in edges]


def _mermaid(lines: Iterable[str]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def updated(name: str, text: str) -> str:
    """A document with its generated blocks as they are now.

    Raises:
        ValueError: where it lacks a block's markers.
    """
    for block, make in BLOCKS[name].items():
        pattern = re.compile(rf"<!-- begin {block}:.*?<!-- end {block} -->", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{name} has no markers of the block {block!r}")
        written = _BLOCK.format(name=block, body=make())
        text = pattern.sub(lambda _, written=written: written, text)
    return text


def main(arguments: list[str]) -> int:
    stale = []
    for name in BLOCKS:
        document = DOCS / name
        text = document.read_text()
        new = updated(name, text)
        if new == text:
            continue
        stale.append(name)
        if arguments != ["--check"]:
            document.write_text(new)
    if stale and arguments == ["--check"]:
        print(f"out of date: {', '.join(stale)}; run tools/make_state_diagrams.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
