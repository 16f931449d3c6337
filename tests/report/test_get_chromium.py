"""``tools/get_chromium.sh``: takes the browser that is there; where it gets none it says why."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "get_chromium.sh"
NEEDED = ("bash", "mktemp", "rm", "tail", "timeout")


def run(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """The script where these programs, given as their shell code, are all that can be found."""
    for name in NEEDED:
        (folder / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name}"))
    for name, code in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!{shutil.which('bash')}\n{code}\n")
        program.chmod(0o755)
    return subprocess.run(
        [str(folder / "bash"), str(SCRIPT)],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_browser_that_is_there_is_taken(tmp_path: Path) -> None:
    done = run(tmp_path, chromium="exit 1", apt_get="echo asked; exit 1")
    assert (done.returncode, done.stdout) == (0, "get_chromium: ready (chromium)\n")


def test_a_machine_without_apt_is_told_so(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "no Chromium: none is installed, and there is no apt-get" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")
def test_what_apt_said_is_shown_where_it_fails(tmp_path: Path) -> None:
    done = run(tmp_path, apt_get="echo 'E: Unable to locate package chromium'; exit 100")
    assert done.returncode == 1
    assert "E: Unable to locate package chromium\nget_chromium: no Chromium" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may install packages")
def test_who_is_not_root_is_told_what_root_is_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, apt_get="exit 0")
    assert done.returncode == 1
    assert "only root can: apt-get install chromium" in done.stderr
