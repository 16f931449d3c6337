"""DeepSpeed's state leaves the device part by part, and comes back with every byte.

On CUDA never run where it was written, which has no GPU.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch

from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.core.types import TRAINER_PARTS, Part
from tools.gpu_checks.checks import Checks, mib
from tools.gpu_checks.tenants import (
    Place,
    checksums,
    guarded_place,
    make_batch,
    make_trainer,
    probe_of,
)

RESIDUE = 2**20
RELEASED_SHARE = 0.8
"""Of the bytes that left, how many NVML must see gone: allocators keep parts of segments."""

ORDER = (Part.GRADIENTS, Part.OPTIMIZER, Part.REFERENCE, Part.PARAMETERS)


def run(checks: Checks, device: str, folder: Path) -> None:
    with guarded_place(device, folder) as place:
        stages: tuple[Literal[1, 2, 3], ...] = (1, 2, 3)
        for zero_stage in stages:
            asyncio.run(_cycle(checks, place, zero_stage))


async def _cycle(checks: Checks, place: Place, zero_stage: Literal[1, 2, 3]) -> None:
    name = f"ZeRO {zero_stage}"
    folder = place.folder / f"zero{zero_stage}"
    trainer = make_trainer(place, zero_stage=zero_stage, kl_coef=0.1)
    probe = probe_of(place, {"trainer": trainer.process_ids})
    try:
        await trainer.start()
        vocabulary = await trainer.vocabulary_size()
        await trainer.train(make_batch(0, vocabulary))
        await trainer.save(folder / "before")
        await trainer.collect()
        before, weights = await trainer.residency(), await checksums(trainer)
        used = probe.sample().tenants.get("trainer")
        began = time.perf_counter()
        seen = [await _offload(trainer, part, before, device=place.device) for part in ORDER]
        offload_s = time.perf_counter() - began
        note = "" if place.device == "cuda" else "; from the host only gradients can leave"
        checks.check(
            f"{name}, parts leave",
            all(right for right, _ in seen),
            ", ".join(figure for _, figure in seen) + f"; {offload_s:.2f} s{note}",
        )
        if place.device == "cuda":
            now = probe.sample().tenants.get("trainer")
            _compare(checks, name, used, now, sum(before.values()))
        checks.check(
            f"{name}, weights while offloaded",
            await checksums(trainer) == weights,
            f"{len(weights)} tensors can be published all the same",
        )
        began = time.perf_counter()
        await trainer.load()
        load_s = time.perf_counter() - began
        after = await trainer.residency()
        checks.check(
            f"{name}, parts come back",
            all(abs(after[part] - before[part]) <= RESIDUE for part in TRAINER_PARTS)
            and await checksums(trainer) == weights,
            f"{mib(sum(after.values()))} on the device; {load_s:.2f} s",
        )
        await trainer.save(folder / "after")
        states = [list(_state_tensors(folder / when)) for when in ("before", "after")]
        same = len(states[0]) == len(states[1]) and all(map(torch.equal, *states))
        num_bytes = sum(tensor.nbytes for tensor in states[0])
        shutil.rmtree(folder)
        checks.check(
            f"{name}, bytes",
            same and num_bytes > 0,
            f"{mib(num_bytes)} of saved state as before: {len(states[0])} tensors, master weights "
            "and moments among them",
        )
        report = await trainer.train(make_batch(1, vocabulary))
        checks.check(
            f"{name}, trains on", report.version == 2, f"loss {report.metrics['loss']:.4f}"
        )
    finally:
        await trainer.close()
        probe.release()


async def _offload(
    trainer: DeepSpeedTrainer, part: Part, before: Mapping[Part, int], *, device: str
) -> tuple[bool, str]:
    """Whether what should leave has left, and the figures."""
    await trainer.offload({part})
    held = (await trainer.residency())[part]
    # On CPU the device is the host: only gradients, which nobody needs, can leave.
    leaves = device == "cuda" or part is Part.GRADIENTS
    right = held <= RESIDUE if leaves else held == before[part]
    return right, f"{part} {mib(before[part])} to {mib(held)}"


def _state_tensors(folder: Path) -> Iterator[torch.Tensor]:
    """All tensors in DeepSpeed's checkpoint files, in a fixed order."""
    for path in sorted(folder.rglob("*_states.pt")):
        # Written by the trainer of this very part.
        yield from _tensors(torch.load(path, map_location="cpu", weights_only=False))


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _compare(checks: Checks, name: str, used: int | None, now: int | None, left: int) -> None:
    if used is None or now is None:
        checks.skip(f"{name}, NVML", "the driver tells no process's bytes here")
        return
    checks.check(
        f"{name}, NVML",
        used - now >= RELEASED_SHARE * left,
        f"{mib(left)} have left; the process fell from {mib(used)} to {mib(now)}",
    )
