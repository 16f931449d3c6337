"""Names that a class of an installed package takes, read from its source.

To import vLLM or DeepSpeed takes seconds and starts threads; to read one file takes 60 ms.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path


class UnknownSignatureError(Exception):
    """The package is not installed, or its source does not define the class where it should."""


@functools.cache
def field_names(package: str, file: str, classes: tuple[str, ...]) -> frozenset[str]:
    """The annotated fields of classes of one file, private ones left out; and pydantic's aliases.

    Args:
        package: Top-level package, which is found but not imported.
        file: Below the package's folder.
        classes: All of them must be defined there; inherited fields are those of classes named.

    Raises:
        UnknownSignatureError: with the reason.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UnknownSignatureError(f"{package} is not installed")
    path = Path(spec.submodule_search_locations[0]) / file
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError) as error:
        raise UnknownSignatureError(f"{path} cannot be read: {error}") from error
    defined = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if missing := [name for name in classes if name not in defined]:
        raise UnknownSignatureError(f"{path} defines no {', '.join(missing)}")
    return frozenset(name for each in classes for name in _fields(defined[each]))


def _fields(definition: ast.ClassDef) -> Iterator[str]:
    for statement in definition.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if not statement.target.id.startswith("_"):
            yield statement.target.id
        if isinstance(statement.value, ast.Call):
            for keyword in statement.value.keywords:
                if keyword.arg == "alias" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value)
