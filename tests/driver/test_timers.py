"""Timers of a driver: what fires, and what is held."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from colocate.core.actions import SetTimer
from colocate.core.events import TimerFired
from colocate.driver.context import Context
from colocate.driver.timers import Timers


def _run() -> Context:
    nothing = cast(Any, None)
    return Context(scheduler=nothing, ports=nothing, journal=nothing, observers=())


def _fired(run: Context) -> list[str]:
    events = [run.events.get_nowait() for _ in range(run.events.qsize())]
    return [event.timer for event in events if isinstance(event, TimerFired)]


async def test_a_timer_fires_at_its_time_and_not_before() -> None:
    run = _run()
    timers = Timers(run)
    run.origin_s = asyncio.get_running_loop().time() - 100
    timers.set(SetTimer(timer="swap", at_s=100.05))
    event = await asyncio.wait_for(run.events.get(), timeout=60)
    assert isinstance(event, TimerFired)
    assert event.timer == "swap"
    assert event.time_s >= 100.05


async def test_one_of_each_kind_is_held_however_many_phases_there_were() -> None:
    run = _run()
    timers = Timers(run)
    run.origin_s = asyncio.get_running_loop().time()
    for number in range(2000):
        timers.set(SetTimer(timer=f"deadline:{number}", at_s=3600.0))
    timers.set(SetTimer(timer="idle:2000", at_s=0.0))
    timers.set(SetTimer(timer="deadline:2001", at_s=0.0))
    timers.set(SetTimer(timer="swap", at_s=0.0))
    await asyncio.sleep(0.1)
    assert sorted(_fired(run)) == ["deadline:2001", "idle:2000", "swap"]
    scheduled = cast(Any, asyncio.get_running_loop())._scheduled
    assert sum(not handle.cancelled() for handle in scheduled) == 0


async def test_one_that_fired_may_be_set_again_and_none_fires_once_they_are_cancelled() -> None:
    run = _run()
    timers = Timers(run)
    run.origin_s = asyncio.get_running_loop().time()
    for _ in range(2):
        timers.set(SetTimer(timer="evaluation:3", at_s=0.0))
        await asyncio.sleep(0.05)
    assert _fired(run) == ["evaluation:3", "evaluation:3"]
    timers.set(SetTimer(timer="evaluation:3", at_s=0.01))
    timers.cancel()
    await asyncio.sleep(0.05)
    assert _fired(run) == []
