"""A swap on a device of known size: who is on it, when, and what is done where memory stays."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.eviction import MIN_PEAKS
from colocate.core.phases import Phase
from colocate.core.remedies import Remedy
from colocate.core.settings import Settings
from colocate.core.types import TRAINER_PARTS, Part, SleepMode
from tests.core.test_scheduler import small, until
from tests.core.world import Device, World

MODES = st.sampled_from(["auto", "0", "kv", "1", "2"])


@st.composite
def devices(draw: st.DrawFn) -> Device:
    size = st.integers(0, 40)
    parts = {part: draw(size) for part in Part}
    parts[Part.KV_CACHE] = draw(st.integers(1, 60))
    parts[Part.WEIGHTS] = draw(st.integers(1, 40))
    device = Device(
        parts=parts,
        engine_rest=draw(st.integers(0, 10)),
        trainer_rest=draw(st.integers(0, 10)),
        activations=draw(st.integers(1, 40)),
        generation=draw(st.integers(0, 20)),
        strangers=draw(st.integers(0, 10)),
        tells_tenants=draw(st.booleans()),
    )
    alone = next(
        total for total in range(1, 400) if dataclasses.replace(device, total=total).can_take_turns
    )
    return dataclasses.replace(device, total=alone + draw(st.integers(0, 120)))


def started(settings: Settings, device: Device | None = None) -> World:
    world = World(settings, device=device)
    world._end_operation(0)
    assert world.scheduler.phase is Phase.ROLLOUT
    return world


def fire_deadline(world: World) -> str:
    world.fire_deadline()
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status == "failed"
    return str(outcome.error)


def actions_of(world: World, kind: type[act.Action]) -> list[act.Action]:
    return [a for _, line in world.lines for a in line if isinstance(a, kind)]


# What must hold on any device


@given(devices(), st.integers(0, 2))
def test_where_each_side_fits_alone_the_device_is_never_overdrawn_and_the_run_completes(
    device: Device, margin: int
) -> None:
    device = dataclasses.replace(device, total=device.total + margin)
    world = started(small(steps=5, max_staleness=2, margin_bytes=margin), device)
    world.finish_fairly()
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status == "completed", outcome.error
    assert world.peak_used <= device.total
    assert world.auditor.violations == []


@given(devices(), MODES)
def test_engine_and_trainer_are_on_the_device_together_only_where_the_plan_says_both_fit(
    device: Device, sleep: str
) -> None:
    world = started(small(steps=4, sleep=sleep, remedy_after_s=0.5), device)
    plan: act.AdoptPlan | None = None
    for _ in range(5000):
        if world.is_over:
            break
        if world._operation is None and not world._wants_memory:
            world._progress_one()
            continue
        if world._operation is not None:
            world._end_operation(0)
        else:
            world._sample_memory(0)
        for action in world.lines[-1][1]:
            if isinstance(action, act.AdoptPlan):
                plan = action
            if isinstance(action, act.WakeKv) and plan is not None:
                gone = {*plan.offload, *plan.offload_after_push}
                assert gone <= world.trainer_gone
            knows_peak = world.scheduler.swapper.trainer_version > 0
            if isinstance(action, act.Train) and not world.engine_gone and knows_peak:
                memory = world.memory()
                assert memory.used + device.activations <= memory.total
        if world.scheduler.phase is Phase.SLEEPING and world.time_s > 500:
            break  # what was asked for does not fit, and the deadline will say so


@given(devices())
def test_the_plan_evicts_nothing_where_everything_fits_at_once(device: Device) -> None:
    everything = device.size(frozenset(Part)) + device.engine_rest + device.trainer_rest
    total = 2 * (everything + device.activations + device.strangers)
    world = started(small(steps=6, max_staleness=2), dataclasses.replace(device, total=total))
    world.finish_fairly()
    plans = actions_of(world, act.AdoptPlan)
    last = plans[-1]
    assert isinstance(last, act.AdoptPlan)
    assert last.mode is SleepMode.PAUSE
    assert last.offload == last.offload_after_push == ()
    sleeps = actions_of(world, act.Sleep)
    assert len(sleeps) == MIN_PEAKS, "what training needs is known after some steps only"


# Escalation, from a device that holds all to one that holds little


@pytest.mark.parametrize(
    ("total", "mode"),
    [(1000, SleepMode.PAUSE), (115, SleepMode.KV), (85, SleepMode.LEVEL_2)],
)
def test_the_plan_goes_as_deep_as_it_must_and_no_deeper(total: int, mode: SleepMode) -> None:
    """Engine 10 + 40 + 10, trainer 50 and 10 of activations."""
    world = started(small(steps=6, max_staleness=2), Device(total=total))
    world.finish_fairly()
    plan = actions_of(world, act.AdoptPlan)[-1]
    assert isinstance(plan, act.AdoptPlan)
    assert plan.mode is mode


@pytest.mark.parametrize("tells_tenants", [True, False])
def test_a_pause_is_planned_on_what_a_rollout_leaves_and_not_on_what_a_wake_brings(
    tells_tenants: bool,
) -> None:
    """Engine 60 as it wakes, 75 as it parks, trainer 60: of 126 units only the first would fit."""
    device = Device(total=140, generation=15, tells_tenants=tells_tenants)
    world = started(small(steps=9, max_staleness=2), device)
    world.finish_fairly()
    modes = [p.mode for p in actions_of(world, act.AdoptPlan) if isinstance(p, act.AdoptPlan)]
    assert set(modes[1:]) == {SleepMode.KV}


def test_what_was_measured_to_restore_fast_is_evicted_before_what_is_small() -> None:
    """The optimizer is large and, by its measured cost, cheap; the gradients are slow."""
    world = started(small(steps=9, max_staleness=2), Device(total=115))
    residency = world.scheduler.swapper.residency
    for parts, seconds in (({Part.GRADIENTS}, 9.0), ({Part.OPTIMIZER}, 1.0)):
        residency._planner.learn(frozenset(parts), seconds)
    residency._planner.learn(frozenset({Part.PARAMETERS}), 9.0)
    until(world, Phase.TRAINING)
    until(world, Phase.ROLLOUT)
    until(world, Phase.TRAINING)
    plan = actions_of(world, act.AdoptPlan)[-1]
    assert isinstance(plan, act.AdoptPlan)
    assert {*plan.offload, *plan.offload_after_push} == {Part.OPTIMIZER}


# Memory that does not come free


def stuck_asleep(**changes: object) -> World:
    world = started(small(steps=5, phase_timeout_s=500.0, remedy_after_s=3.0, **changes))
    until(world, Phase.SLEEPING)
    world.engine_leak = 45
    world._end_operation(0)
    assert world.scheduler.phase is Phase.SLEEPING
    return world


def wait(world: World, seconds: float) -> list[act.Action]:
    """Reads memory as often as it is asked for, until so much time has passed."""
    until_s = world.time_s + seconds
    actions: list[act.Action] = []
    while world.time_s < until_s and world._operation is None:
        world._sample_memory(0)
        actions = world.lines[-1][1]
    return actions


def test_memory_that_falls_two_seconds_late_is_waited_for_and_nothing_else_is_done() -> None:
    world = stuck_asleep()
    wait(world, 2.0)
    world.engine_leak = 0
    world._sample_memory(0)
    assert world.scheduler.phase is Phase.TRAINER_WAKING
    assert actions_of(world, act.Relieve) == []


def test_memory_that_stays_is_collected_and_then_the_sleep_is_made_deeper() -> None:
    world = stuck_asleep(sleep="kv")
    wait(world, 10.0)
    assert world._operation == act.Relieve(remedy=Remedy.COLLECT)
    world.ineffective.add(act.Relieve)
    world._end_operation(0)
    wait(world, 10.0)
    world.ineffective.clear()
    world.engine_leak = 30
    assert world._operation == act.Relieve(remedy=Remedy.SLEEP_DEEPER, mode=SleepMode.LEVEL_2)
    world._end_operation(0)
    assert world.scheduler.phase is Phase.SLEEPING, "less is held, but still too much"
    world.engine_leak = 0
    world._sample_memory(0)
    assert world.scheduler.phase is Phase.TRAINER_WAKING
    world.finish_fairly()
    assert world.auditor.violations == []


def test_a_collection_that_helps_lets_the_swap_go_on() -> None:
    world = stuck_asleep()
    wait(world, 10.0)
    world._end_operation(0)
    assert world.scheduler.phase is Phase.TRAINER_WAKING


def test_memory_that_never_falls_ends_the_run_with_the_ledger_and_what_was_tried() -> None:
    world = stuck_asleep()
    world.ineffective.add(act.Relieve)
    for _ in range(4):
        wait(world, 10.0)
        if world._operation is not None:
            world._end_operation(0)
    error = fire_deadline(world)
    assert "sleeping has not ended by its deadline" in error
    assert "the engine to give up kv_cache" in error
    assert "tried: collect" in error
    assert "engine awake: " in error
    assert world.scheduler.summary()["memory"]["ledger"]["now"]["engine"] == 55


def test_a_sleep_that_does_nothing_is_found_out_though_a_little_memory_falls_by_itself() -> None:
    world = started(small(steps=5))
    until(world, Phase.SLEEPING)
    world.ineffective.add(act.Sleep)
    world.engine_leak = -1
    world._end_operation(0)
    assert world.scheduler.phase is Phase.SLEEPING
    assert world._wants_memory


def test_a_trainer_that_stays_is_collected_then_offloaded_whole() -> None:
    device = Device(total=115)
    world = started(small(steps=9, max_staleness=2, remedy_after_s=3.0), device)
    for _ in range(2):
        until(world, Phase.TRAINING)
        until(world, Phase.ROLLOUT)
    until(world, Phase.TRAINER_OFFLOADING)
    world.trainer_leak = 30
    world.ineffective.add(act.Relieve)
    while world._operation is not None:
        world._end_operation(0)
    wait(world, 10.0)
    assert world._operation == act.Relieve(remedy=Remedy.COLLECT)
    world._end_operation(0)
    wait(world, 10.0)
    relief = world._operation
    assert isinstance(relief, act.Relieve)
    assert relief.remedy is Remedy.OFFLOAD_ALL
    assert set(relief.parts) < TRAINER_PARTS
    world.ineffective.clear()
    world.trainer_leak = 0
    world._end_operation(0)
    assert world.scheduler.phase in (Phase.PUBLISHING, Phase.KV_WAKING)
    assert world.trainer_gone == TRAINER_PARTS
    world.finish_fairly()
    assert world.auditor.violations == []


def test_an_engine_that_cannot_wake_beside_the_trainer_ends_the_run_with_what_it_needs() -> None:
    world = started(small(steps=5, margin_bytes=2))
    until(world, Phase.TRAINER_OFFLOADING)
    world.trainer_leak = 50
    world._end_operation(0)
    assert world._wants_memory
    error = fire_deadline(world)
    assert "so that the engine can wake" in error
    assert "memory.budget_bytes" in error
    assert "trainer" in error


def test_a_card_shared_with_a_stranger_is_planned_around_it() -> None:
    alone = started(small(steps=6, max_staleness=2), Device(total=145))
    alone.finish_fairly()
    shared = started(small(steps=6, max_staleness=2), Device(total=145, strangers=30))
    shared.finish_fairly()
    plans = [actions_of(world, act.AdoptPlan)[-1] for world in (alone, shared)]
    assert [plan.mode for plan in plans if isinstance(plan, act.AdoptPlan)] == [
        SleepMode.PAUSE,
        SleepMode.KV,
    ]
    assert shared.peak_used <= 145


def test_a_rising_residual_is_named_before_it_no_longer_fits() -> None:
    mib = 2**20
    device = Device(
        total=115 * mib,
        parts={part: num_bytes * mib for part, num_bytes in Device().parts.items()},
        engine_rest=10 * mib,
        activations=10 * mib,
    )
    world = started(small(steps=40, max_staleness=2), device)
    warned_at: int | None = None
    while not world.is_over and warned_at is None:
        until(world, Phase.SLEEPING)
        world.engine_leak += mib
        until(world, Phase.ROLLOUT)
        if actions_of(world, act.Warn):
            warned_at = world.scheduler.books.swaps
    warning = actions_of(world, act.Warn)[0]
    assert isinstance(warning, act.Warn)
    assert "the engine asleep (kv) holds" in warning.message
    assert "no longer fits in about" in warning.message
    assert world.scheduler.phase not in (Phase.FAILED, Phase.CLOSED)
    assert world.scheduler.summary()["warnings"] == [warning.message]


# Reports that contradict what was asked for


@pytest.mark.parametrize(
    ("lie", "phase", "said"),
    [
        (act.LoadTrainer, Phase.TRAINER_WAKING, "of the optimizer are back"),
        (act.WakeKv, Phase.KV_WAKING, "of the kv_cache are back"),
        (act.WakeWeights, Phase.PUBLISHING, "of the weights are back"),
    ],
)
def test_a_call_that_returns_without_having_done_it_ends_the_run(
    lie: type[act.Action], phase: Phase, said: str
) -> None:
    world = started(small(steps=5, sleep="2"))
    until(world, Phase.TRAINING)
    until(world, Phase.ROLLOUT)
    world.ineffective.add(lie)
    while not world.is_over and world.scheduler.phase is not Phase.FAILED:
        if world._operation is not None:
            world._end_operation(0)
        elif world._wants_memory:
            world._sample_memory(0)
        else:
            world._progress_one()
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert f"{phase} has ended, but only 0 of" in str(outcome.error)
    assert said in str(outcome.error)


# What a failure leaves, and what is not done twice


@pytest.mark.parametrize(
    ("phase", "saves"),
    [
        (Phase.ROLLOUT, True),
        (Phase.PARKING, True),
        (Phase.SLEEPING, True),
        (Phase.TRAINING, False),
        (Phase.PUBLISHING, True),
        (Phase.KV_WAKING, True),
    ],
)
def test_a_fault_saves_what_was_trained_unless_the_trainer_was_at_work(
    phase: Phase, saves: bool
) -> None:
    world = started(small(steps=5, max_staleness=2))
    until(world, Phase.TRAINING)
    until(world, Phase.ROLLOUT)
    until(world, phase)
    actions = world.take(ev.Faulted(time_s=world._tick(), error="the engine died"))
    [closing] = [a for a in actions if isinstance(a, act.CloseRun)]
    assert closing.checkpoint is saves


def test_what_was_saved_already_is_not_saved_again_by_a_fault() -> None:
    world = started(small(steps=5, max_staleness=2, checkpoint_every_steps=1))
    until(world, Phase.TRAINING)
    until(world, Phase.ROLLOUT)
    actions = world.take(ev.Faulted(time_s=world._tick(), error="the engine died"))
    [closing] = [a for a in actions if isinstance(a, act.CloseRun)]
    assert not closing.checkpoint


def test_the_first_swap_and_then_every_so_many_are_verified() -> None:
    world = started(small(steps=7, verify_every=3))
    world.finish_fairly()
    assert [a.verify for a in actions_of(world, act.WakeKv)] == [  # type: ignore[attr-defined]
        True, False, False, True, False, False, True,
    ]  # fmt: skip
    offloads = actions_of(world, act.OffloadTrainer)
    assert [a.expect for a in offloads] == [  # type: ignore[attr-defined]
        True, False, False, True, False, False, True,
    ]  # fmt: skip


def test_every_swap_has_one_line_with_what_it_measured() -> None:
    world = started(small(steps=3))
    world.finish_fairly()
    lines = actions_of(world, act.CloseSwap)
    assert [line.swap for line in lines] == [1, 2, 3]  # type: ignore[attr-defined]
    for line in lines:
        assert isinstance(line, act.CloseSwap)
        assert line.awake_bytes is not None
        assert line.asleep_bytes is not None
        assert line.engine_released_bytes == line.awake_bytes - line.asleep_bytes >= 40
        assert line.phase_s[Phase.SLEEPING] > 0
