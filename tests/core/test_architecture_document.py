"""The architecture document shows the tables that the code runs on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_state_diagrams_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_state_diagrams.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_pure_core_imports_without_torch_or_vllm() -> None:
    code = (
        "import sys, colocate, colocate.core.scheduler, colocate.core.audit;"
        "print(sorted({m.split('.')[0] for m in sys.modules} & "
        "{'torch', 'vllm', 'deepspeed', 'transformers', 'numpy', 'pydantic', 'msgspec'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
