"""The GPU check says what it cannot do and goes on; only what failed makes it fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "gpu_check.sh"
PARTS = ("nvml", "checksum", "offload", "ipc", "engine", "bench")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with nothing installed."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return str(folder / "bin" / "python")


def check(out: Path, *options: str, python: str = sys.executable, path: Path | None = None):
    environment = {**os.environ, "COLOCATE_PYTHON": python}
    environment.pop("PYTHONPATH", None)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [str(SCRIPT), f"--out={out}", *options],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def table(output: str) -> dict[str, tuple[str, str]]:
    """Result and figure of each row, lines of one figure joined."""
    rows: dict[str, tuple[str, str]] = {}
    header, _, *lines = output[output.index("check ") :].splitlines()
    width, start = header.index("result"), header.index("figure")
    name = ""
    for line in lines:
        if not line:
            break
        name = line[:width].strip() or name
        before = rows.get(name, (line[width:start].strip(), ""))
        rows[name] = (before[0], f"{before[1]} {line[start:].strip()}".strip())
    return rows


def test_without_any_package_each_part_says_what_is_missing_and_none_fails(tmp_path, bare_python):
    done = check(tmp_path, python=bare_python)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = table(done.stdout)
    assert tuple(rows) == PARTS
    for result, reason in rows.values():
        assert result == "skipped"
        assert "torch is not installed" in reason
    assert "nvidia-ml-py" in rows["nvml"][1]
    assert "deepspeed" in rows["offload"][1]
    assert "not installed: vllm" in rows["engine"][1]


def test_a_part_that_can_run_does_while_another_says_why_it_cannot(tmp_path):
    done = check(tmp_path, "--device=cpu", "--only=nvml,checksum")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = table(done.stdout)
    assert rows["nvml"] == ("skipped", "needs a GPU")
    assert rows["checksum: equal to CPU"] == ("ok", "90 of 90 tensors")
    assert {result for name, (result, _) in rows.items() if name != "nvml"} == {"ok"}


def test_a_part_that_breaks_fails_the_whole_and_is_named_with_its_cause(tmp_path, bare_python):
    modules = tmp_path / "modules"
    modules.mkdir()
    for name in ("torch", "numpy"):
        (modules / f"{name}.py").write_text("")
    done = check(
        tmp_path / "out", "--device=cpu", "--only=checksum", python=bare_python, path=modules
    )
    assert done.returncode == 1
    result, cause = table(done.stdout)["checksum"]
    assert result == "FAILED"
    assert "has no attribute" in cause


def test_a_part_whose_process_is_killed_is_told_by_the_signal(tmp_path, bare_python):
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "numpy.py").write_text("")
    (modules / "torch.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    done = check(
        tmp_path / "out", "--device=cpu", "--only=checksum", python=bare_python, path=modules
    )
    assert done.returncode == 1
    result, cause = table(done.stdout)["checksum"]
    assert result == "FAILED"
    assert "killed by SIGKILL" in cause


def test_a_part_that_there_is_not_is_refused(tmp_path):
    done = check(tmp_path, "--only=nvml,cuda")
    assert done.returncode == 2
    assert "no part cuda" in done.stderr
