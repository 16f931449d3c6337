"""How long tests wait for real processes: longer where the machine is slower."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time

IMPORT_TORCH_S = 3.0
"""In a fresh process, with files cached, on the machines that the tests' waits were chosen on."""

MOST = 30.0

RESERVE = 3.0
"""A machine that is slow now, because others use it too, may be slower in a while."""


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
    slowness = (time.monotonic() - began) / IMPORT_TORCH_S
    factor = 1.0 if slowness < 1.5 else min(slowness * RESERVE, MOST)
    os.environ["COLOCATE_TEST_PATIENCE"] = f"{factor:.2f}"
    return factor


def patient(seconds: float) -> float:
    """A wait of ``seconds`` on a quick machine, in seconds on this one."""
    return seconds * patience()
