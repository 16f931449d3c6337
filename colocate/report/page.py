"""One HTML file that holds all it shows: opens anywhere, needs no network."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).with_name("templates")


def write_page(path: Path, template: str, context: Mapping[str, Any]) -> Path:
    """Renders ``templates/NAME``; a reader sees the old page or the new one, whole."""
    text = render(template, context)
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.write_text(text, encoding="utf-8")
    return written.replace(path)


def render(template: str, context: Mapping[str, Any]) -> str:
    """``templates/NAME`` as text.

    What runs wrote (transcripts, errors) is escaped: it may hold anything.
    """
    return _environment().get_template(template).render(context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline_image"] = _inline_image
    return environment


def _inline_image(image: Path | bytes) -> str:
    data = image if isinstance(image, bytes) else image.read_bytes()
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
