"""What may import what, where import-linter cannot see it: at run time, and among unknown names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import colocate

PACKAGE = Path(colocate.__file__).parent
HEAVY = ("torch", "vllm", "deepspeed", "transformers", "datasets")


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("core/*.py")), ids=lambda path: path.stem)
def test_the_core_imports_the_standard_library_and_itself_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            allowed = name.split(".")[0] in sys.stdlib_module_names
            assert allowed or name.startswith("colocate.core"), f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "code",
    [
        "import colocate",
        "import colocate.core, colocate.ports, colocate.config",
        "import colocate.rollout, colocate.driver, colocate.journal, colocate.sim",
        "from colocate.cli.main import main; main(['--help'])",
        "from colocate.cli.main import main; main(['doctor'])",
        "from colocate.cli.main import main; main(['train', '+experiment=quickstart', 'seed=-1'])",
    ],
)
def test_the_light_parts_import_nothing_heavy(code: str, tmp_path: Path) -> None:
    check = f"import sys; print(sorted(set({HEAVY}) & set(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[-1] == "[]"
