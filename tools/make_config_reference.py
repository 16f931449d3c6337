"""Writes docs/configuration.md from the schema and the shipped configuration tree.

With ``--check`` it writes nothing, and exits with 1 where the file is out of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from colocate.config import RunConfig, Section
from colocate.schema import SchemaField, known_paths, section_of

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "configuration.md"
CONF = ROOT / "conf"

HEADER = """\
# Configuration

<!-- Written by tools/make_config_reference.py from colocate/config/ and conf/; do not edit. -->

A run is configured by key: `colocate train +experiment=quickstart steps=20 trainer=zero2`.
`GROUP=CHOICE` picks a file of a group, `KEY=VALUE` sets one value, `+experiment=NAME` adds a
prepared experiment, `-m KEY=A,B` runs one job for each value. `--config-dir FOLDER` adds groups and
experiments of your own, and `colocate train --cfg job ...` prints what a command line amounts to.

Everything is validated before anything starts: unknown keys, wrong types and impossible
combinations are reported together, with exit status 2, and nothing is written.
"""


def reference() -> str:
    """The whole file."""
    lines = [HEADER, "## The run itself", "", *_table(RunConfig, "")]
    for name, info in RunConfig.model_fields.items():
        section = section_of(info.annotation)
        if section is not None:
            lines += ["", f"## `{name}`", "", *_choices(name), *_sections(section, f"{name}.")]
    lines += ["", "## Experiments", "", *_choices("experiment", prefix="+")]
    return "\n".join(lines).rstrip() + "\n"


def _sections(section: type[Section], prefix: str) -> Iterator[str]:
    yield from _table(section, prefix)
    for name, info in section.model_fields.items():
        inner = section_of(info.annotation)
        if inner is not None:
            about = info.description or (inner.__doc__ or "").strip()
            yield from ("", f"### `{prefix}{name}`", "", about, "")
            yield from _sections(inner, f"{prefix}{name}.")


def _table(section: type[Section], prefix: str) -> Iterator[str]:
    fields = known_paths()
    properties = section.model_json_schema()["properties"]
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, info in section.model_fields.items():
        if section_of(info.annotation) is None:
            cells = (
                f"`{prefix}{name}`",
                _values(properties[name]),
                _default(fields[f"{prefix}{name}"]),
                info.description or "",
            )
            escaped = [cell.replace("|", r"\|") for cell in cells]
            yield f"| {' | '.join(escaped)} |"


def _values(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_values(option) for option in schema["anyOf"])
    if "enum" in schema:
        words = [value if isinstance(value, str) else json.dumps(value) for value in schema["enum"]]
        return ", ".join(f"`{word}`" for word in words)
    kind = schema.get("type", "any")
    words = {"null": "`null`", "string": "text", "object": "mapping", "array": "list"}
    bounds = [
        f"{sign} {schema[key]:g}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema
    ]
    return " ".join([words.get(kind, kind), *bounds])


def _default(field: SchemaField) -> str:
    if field.required:
        return "required"
    value = field.default
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _choices(group: str, prefix: str = "") -> Iterator[str]:
    """The files of a group, each with the comment that it begins with."""
    folder = CONF / group
    if not folder.is_dir():
        return
    for path in sorted(folder.glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        comments = [line[1:].strip() for line in lines if line.startswith("#")]
        about = " ".join(line for line in comments if not line.startswith("@package"))
        yield f"- `{prefix}{group}={path.stem}`{': ' + about if about else ''}"
    yield ""


def main() -> int:
    text = reference()
    if "--check" in sys.argv[1:]:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        if current != text:
            print("docs/configuration.md is out of date: run tools/make_config_reference.py")
            return 1
        return 0
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
