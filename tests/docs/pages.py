"""Reads the documentation's Markdown: links, anchors, code spans, code blocks, navigation."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
_COMMAND = re.compile(
    r"^(?:exec )?(?:\S*/)?(?:colocate (?P<name>train|simulate)|launch/quickstart\.sh)"
    r"(?P<rest>(?: .*)?)$"
)
_SHELL_VARIABLE = re.compile(r"\$\{?[A-Z_]+\}?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line of ``colocate train`` or ``simulate``; ``name`` is one of the two."""

    page: str
    name: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {self.name} {' '.join(self.arguments)}"


def prose(text: str) -> str:
    """A page without its code blocks and comments."""
    return _COMMENT.sub("", _FENCE.sub("", text))


def code_spans(text: str) -> list[str]:
    return _SPAN.findall(prose(text))


def code_blocks(text: str, language: str) -> list[str]:
    return [body for kind, body in _FENCE.findall(text) if kind == language]


def links(text: str) -> list[str]:
    """Targets of links and of pictures."""
    return _LINK.findall(_SPAN.sub("", prose(text)))


def pictures(page: Path) -> list[tuple[str, Path]]:
    """What each picture of a page shows, for those who cannot see it, and its file."""
    found = _PICTURE.findall(prose(page.read_text(encoding="utf-8")))
    return [(says, (page.parent / name).resolve()) for says, name in found]


def anchors(text: str) -> set[str]:
    """What a link into the page may name, as GitHub and the site make it of each heading."""
    return {_slug(title) for title in _HEADING.findall(prose(text))}


def _slug(title: str) -> str:
    plain = _LINK.sub(lambda link: link[0][1 : link[0].index("]")], title).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def commands(page: Path) -> list[Command]:
    """Command lines in the page's blocks of bash; a shell variable stands for the number 1."""
    found = []
    for block in code_blocks(page.read_text(encoding="utf-8"), "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            match = _COMMAND.match(line.strip())
            if match is None:
                continue
            rest = shlex.split(_SHELL_VARIABLE.sub("1", match["rest"]), comments=True)
            if match["name"] is None:
                rest = ["+experiment=quickstart", *rest]
            name = match["name"] or "train"
            found.append(Command(page=page.name, name=name, arguments=tuple(rest)))
    return found


def modules(page: Path) -> dict[str, str]:
    """Source by module name: blocks of Python that begin with a comment like ``# my_task.py``."""
    named = {}
    for block in code_blocks(page.read_text(encoding="utf-8"), "python"):
        match = re.match(r"# (\w+)\.py\b", block)
        if match is not None:
            named[match[1]] = block
    return named


class _Loader(yaml.SafeLoader):
    """Takes the tags that only MkDocs understands for nothing."""


_Loader.add_multi_constructor("", lambda loader, tag, node: None)


def navigation() -> list[str]:
    """The pages in the site's navigation, in its order."""
    tree = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_Loader)
    return _leaves(tree["nav"])


def _leaves(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    children = node.values() if isinstance(node, dict) else node
    return [leaf for child in children for leaf in _leaves(child)]
