"""How long tests wait for real processes: longer where the machine is slower."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time

IMPORT_TORCH_S = 3.0
"""In a fresh process, with files cached, on the machines that the tests' waits were chosen on."""

LONGEST = 20.0


@functools.cache
def patience() -> float:
    """Factor of at least 1 on every wait: ``COLOCATE_TEST_PATIENCE``, or measured once.

    The measure is what a fresh process takes to import torch, since processes that start are most
    of what these tests wait for.
    """
    given = os.environ.get("COLOCATE_TEST_PATIENCE")
    if given:
        return max(1.0, float(given))
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    measured = min(max(1.0, (time.monotonic() - began) / IMPORT_TORCH_S), LONGEST)
    os.environ["COLOCATE_TEST_PATIENCE"] = f"{measured:.2f}"
    return measured


def patient(seconds: float) -> float:
    """A wait of ``seconds`` on a quick machine, in seconds on this one."""
    return seconds * patience()
