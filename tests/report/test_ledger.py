"""The ledger as a person reads it at the end of a run that failed."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from colocate.core.memory import MemoryLedger
from colocate.core.types import TRAINER_PARTS, MemorySample, Part, SleepMode
from colocate.report.ledger import render_ledger

MIB = 2**20


def rendered(ledger: MemoryLedger) -> str:
    console = Console(file=StringIO(), width=100)
    console.print(render_ledger(ledger.table()))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(" ".join(line.split()) for line in str(text).splitlines())


def test_who_holds_what_is_said_in_one_table() -> None:
    ledger = MemoryLedger(margin_bytes=64 * MIB)
    ledger.report({Part.KV_CACHE: 512 * MIB, Part.WEIGHTS: 100 * MIB})
    awake = MemorySample(
        used=1000 * MIB,
        total=1900 * MIB,
        tenants={"engine": 700 * MIB, "trainer": 200 * MIB},
        host_used=1500 * MIB,
        host_free=3000 * MIB,
    )
    ledger.observe(awake)
    ledger.engine_is_awake(awake)
    ledger.engine_woke(awake)
    ledger.trainer_rested(TRAINER_PARTS, awake)
    asleep = MemorySample(used=400 * MIB, total=1900 * MIB, tenants={"engine": 100 * MIB})
    ledger.report({Part.KV_CACHE: 0})
    ledger.engine_slept(SleepMode.KV, asleep)
    text = rendered(ledger)
    assert "device in all 1.9 GiB" in text
    assert "of which engine 700 MiB" in text
    assert "of which strangers 100 MiB" in text
    assert "kept free (memory.margin_bytes) 64 MiB" in text
    assert "engine awake 700 MiB" in text
    assert "engine without its KV cache 100 MiB" in text
    assert "trainer at rest without gradients, optimizer, parameters, reference 200 MiB" in text
    assert "part kv_cache: when on the device 512 MiB" in text
    assert "kv_cache: now 0 MiB" in text
    assert "host RAM held by the run 1.5 GiB" in text


def test_a_run_without_a_probe_has_a_table_all_the_same() -> None:
    assert "Memory ledger" in rendered(MemoryLedger())
