"""vLLM sleeps, receives weights and wakes beside a trainer; log-probabilities agree after each.

On CUDA never run where it was written, which has no GPU.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.adapters.vllm.engine import VllmInference
from colocate.adapters.weights import StreamedTransfer
from colocate.config import InferenceConfig
from colocate.core.memory import EVICTED
from colocate.core.types import TRAINER_PARTS, Part, SleepMode
from colocate.ports import MemoryProbe
from tools.gpu_checks.checks import Checks, mib
from tools.gpu_checks.tenants import (
    MAX_MODEL_LEN,
    Place,
    guarded_place,
    make_batch,
    make_trainer,
    probe_of,
)

KV_BYTES = {"cuda": 2 * 2**30, "cpu": 128 * 2**20}
RELEASED_SHARE = 0.9
MODES = (SleepMode.KV, SleepMode.LEVEL_1, SleepMode.LEVEL_2)


def run(checks: Checks, device: str, folder: Path) -> None:
    with guarded_place(device, folder) as place:
        asyncio.run(_swap(checks, place))


async def _swap(checks: Checks, place: Place) -> None:
    trainer = make_trainer(place, zero_stage=1)
    inference = VllmInference(
        place.model,
        InferenceConfig(
            kv_cache_memory_bytes=KV_BYTES[place.device],
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=16,
            enforce_eager=True,
        ),
        dtype=place.dtype,
        device="cuda" if place.device == "cuda" else "cpu",
        seed=0,
        log_file=place.folder / "vllm.log",
        run_id=place.run_id,
    )
    transfer = StreamedTransfer(trainer, inference, max_model_len=MAX_MODEL_LEN)
    probe = probe_of(place, {"engine": inference.process_ids, "trainer": trainer.process_ids})
    try:
        await trainer.start()
        await trainer.offload(TRAINER_PARTS)
        await inference.start()
        for step, mode in enumerate(MODES):
            await _sleep_and_publish(checks, trainer, inference, transfer, probe, mode, step)
    finally:
        try:
            await inference.close()
        finally:
            await trainer.close()
            probe.release()


async def _sleep_and_publish(
    checks: Checks,
    trainer: DeepSpeedTrainer,
    inference: VllmInference,
    transfer: StreamedTransfer,
    probe: MemoryProbe,
    mode: SleepMode,
    step: int,
) -> None:
    name = f"sleep {mode.value}"
    await inference.park()
    awake, used = await inference.residency(), probe.sample().tenants.get("engine")
    await inference.sleep(mode)
    asleep, now = await inference.residency(), probe.sample().tenants.get("engine")
    # On CPU level 1 keeps the weights where they are: the host is the device.
    kept = mode is SleepMode.LEVEL_1 and probe.provider != "nvml"
    gone = EVICTED[mode] - ({Part.WEIGHTS} if kept else set())
    left = sum(awake[part] - asleep[part] for part in gone)
    told = f"{mib(left)} reported gone"
    checks.check(f"{name}, residency", all(asleep[part] == 0 for part in gone), told)
    if used is None or now is None:
        checks.skip(f"{name}, {probe.provider}", "the driver tells no process's bytes here")
    else:
        checks.check(
            f"{name}, {probe.provider}",
            used - now >= RELEASED_SHARE * left,
            f"the engine's processes fell from {mib(used)} to {mib(now)}",
        )
    await trainer.load()
    report = await trainer.train(make_batch(step, await trainer.vocabulary_size()))
    await transfer.expect()
    await trainer.offload(TRAINER_PARTS - {Part.PARAMETERS})
    if Part.WEIGHTS in EVICTED[mode]:
        await inference.wake("weights")
    publication = await transfer.publish(report.version)
    await trainer.offload({Part.PARAMETERS})
    await inference.wake("kv_cache")
    took = ", ".join(f"{part} {1000 * s:.0f} ms" for part, s in publication.seconds.items())
    checks.check(f"{name}, publish", True, f"{mib(publication.num_bytes)}: {took}")
    try:
        await transfer.verify()
    except RuntimeError as error:
        checks.check(f"{name}, log-probabilities", False, str(error)[:200])
    else:
        checks.check(f"{name}, log-probabilities", True, "engine and trainer agree")
    back = await inference.residency()
    checks.check(f"{name}, awake again", back == awake, mib(sum(back.values())))
