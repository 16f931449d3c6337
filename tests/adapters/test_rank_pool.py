"""Ranks end with those who wait for their end."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil

from colocate.adapters.deepspeed.processes import RankPool
from tests.patience import patient
from tests.processes import running


async def test_a_closing_that_is_given_up_leaves_no_rank(tmp_path: Path) -> None:
    pool = RankPool(num_ranks=2, run_id="given-up", device="cpu", folder=tmp_path, log_dir=tmp_path)
    starting = asyncio.create_task(pool.start())
    async with asyncio.timeout(patient(30)):
        while len(pool.process_ids()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    ranks = [psutil.Process(pid) for pid in pool.process_ids()]
    for rank in ranks:
        rank.send_signal(signal.SIGSTOP)  # it will not follow an order
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0.05)
    assert len(running(ranks, 0)) == 2
    closing.cancel()
    starting.cancel()
    await asyncio.gather(closing, starting, return_exceptions=True)
    assert await asyncio.to_thread(running, ranks, patient(10)) == []
