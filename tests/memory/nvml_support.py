"""The NVML probe through NVIDIA's real binding, over a driver library that plays a scene."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from colocate.adapters.memory.errors import MemoryProbeError
from colocate.core.types import MemorySample

GIB = 2**30
HERE = Path(__file__).parent


class NvmlProcess:
    """A ``colocate.ports.MemoryProbe``: the real one, in a process of its own.

    Time, for scenes that count it in seconds, is 0 until ``advance_to`` is called.

    Attributes:
        uuids: Devices that the probe reads, in CUDA's order.
    """

    provider = "nvml"

    def __init__(
        self, folder: Path, environment: Mapping[str, str], options: Mapping[str, Any]
    ) -> None:
        self._scene, self._clock, self._log = (
            folder / name for name in ("scene", "clock", "probe.log")
        )
        self.advance_to(0.0)
        self.uuids: tuple[str, ...] = ()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "nvml_server.py"), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=HERE.parents[1],
                env={
                    **environment,
                    "PYTHONPATH": str(HERE.parents[1]),
                    "NVML_STUB_SCENE": str(self._scene),
                    "NVML_STUB_CLOCK": str(self._clock),
                },
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """What the probe has logged."""
        return self._log.read_text()

    def play(self, *lines: str) -> None:
        """Another scene from now on; ``nvml_stub.c`` tells the language."""
        _replace(self._scene, "\n".join(lines) + "\n")

    def advance_to(self, seconds: float) -> None:
        _replace(self._clock, str(seconds))

    def open(self) -> NvmlProcess:
        self.uuids = tuple(self._ask("open")["uuids"])
        return self

    def sample(self) -> MemorySample:
        return MemorySample(**self._ask("sample"))

    def telemetry(self) -> dict[str, float]:
        values: dict[str, float] = self._ask("telemetry")
        return values

    def release(self) -> None:
        self._ask("release")

    def end(self) -> None:
        self._process.communicate(timeout=300)

    def _ask(self, command: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if isinstance(answer, dict) and "error" in answer:
            raise MemoryProbeError(answer["error"])
        return answer


def read_scene(name: str, pids: Mapping[str, int]) -> list[str]:
    """Lines of ``scenes/NAME.scene``, with the processes' ids in place of their names."""
    text = (HERE / "scenes" / f"{name}.scene").read_text()
    return Template(text).substitute(pids).splitlines()


def plain_environment() -> dict[str, str]:
    """This process's, without a choice of GPUs or libraries."""
    own = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH")
    return {name: value for name, value in os.environ.items() if name not in own}


def _replace(path: Path, text: str) -> None:
    written = path.with_name(path.name + ".new")
    written.write_text(text)
    written.replace(path)
