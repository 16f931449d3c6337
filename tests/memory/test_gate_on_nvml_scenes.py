"""The scheduler's gate on what NVML says, read through the real binding from a scripted driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.phases import Phase
from colocate.core.types import MemorySample, Part
from tests.core.test_scheduler import small, until
from tests.core.world import Device, World

GIB = 2**30

PARTS = {
    Part.KV_CACHE: 40 * GIB,
    Part.WEIGHTS: 20 * GIB,
    Part.PARAMETERS: 10 * GIB,
    Part.GRADIENTS: 5 * GIB,
    Part.OPTIMIZER: 25 * GIB,
    Part.REFERENCE: 0,
}


class OnNvml(World):
    """The world's clock moves the scene; its memory is what the probe reads of it."""

    def __init__(self, probe: Any, parts: dict[Part, int] | None = None, **changes: Any) -> None:
        self.probe = probe
        device = Device(parts={**PARTS, **(parts or {})})
        super().__init__(small(steps=5, phase_timeout_s=900.0, **changes), device=device)
        self._end_operation(0)
        until(self, Phase.SLEEPING)
        assert self.time_s < 9.0, "the scene's sleep is at 10 s"
        self.time_s = 9.75

    def memory(self) -> MemorySample:
        self.probe.advance_to(self.time_s)
        sample: MemorySample = self.probe.sample()
        return sample

    def _size(self, part: Part) -> int:
        """A scene's trainer holds from its beginning what it will hold."""
        return self.device.parts[part]

    def read_until_it_goes_on(self, limit_s: float) -> None:
        while self._wants_memory and self.time_s < limit_s:
            self._sample_memory(0)

    def remedies(self) -> list[str]:
        return [a.remedy for _, line in self.lines for a in line if isinstance(a, act.Relieve)]


OpenScene = Callable[..., Any]


def test_memory_that_falls_two_seconds_after_the_call_holds_the_swap_for_two_seconds(
    nvml_scene: OpenScene,
) -> None:
    world = OnNvml(nvml_scene("falls_two_seconds_late"))
    world._end_operation(0)
    world.read_until_it_goes_on(60.0)
    assert world.scheduler.phase is Phase.TRAINER_WAKING
    assert 12.0 <= world.time_s <= 12.5
    assert world.remedies() == []


def test_memory_that_never_falls_climbs_the_ladder_and_ends_with_what_the_driver_says(
    nvml_scene: OpenScene,
) -> None:
    world = OnNvml(nvml_scene("never_falls"), remedy_after_s=2.0)
    world._end_operation(0)
    world.ineffective.add(act.Relieve)
    while world.time_s < 60.0:
        world.read_until_it_goes_on(60.0)
        if world._operation is not None:
            world._end_operation(0)
    assert world.remedies() == ["collect"], "level 2 is the deepest sleep there is"
    timers = [a.timer for _, line in world.lines for a in line if isinstance(a, act.SetTimer)]
    world.take(ev.TimerFired(time_s=world.time_s, timer=timers[-1]))
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert "sleeping has not ended by its deadline" in str(outcome.error)
    assert "now: 71680 of 81920 MiB (engine 69632 MiB, trainer 1024 MiB)" in str(outcome.error)


def test_a_stranger_on_the_card_keeps_the_trainer_away_until_it_fits(
    nvml_scene: OpenScene,
) -> None:
    """The engine has given up all it should; somebody else has taken it."""
    probe = nvml_scene("shared_with_a_stranger")
    engine = {Part.KV_CACHE: 30 * GIB, Part.WEIGHTS: 8 * GIB}
    world = OnNvml(probe, engine, remedy_after_s=100.0)
    world._end_operation(0)
    assert world.scheduler.phase is Phase.SLEEPING
    explained = world.scheduler.swapper.residency.explain_wait(Phase.SLEEPING)
    assert "so that the trainer can train" in explained
    world.read_until_it_goes_on(60.0)
    assert world.scheduler.phase is Phase.TRAINER_WAKING
    assert 20.0 <= world.time_s <= 20.5


@pytest.mark.parametrize("margin_gib", [36, 37])
def test_the_margin_is_part_of_what_must_be_free(nvml_scene: OpenScene, margin_gib: int) -> None:
    """After the fall 76 of 80 GiB are free, and the trainer takes 40."""
    world = OnNvml(nvml_scene("falls_two_seconds_late"), margin_bytes=margin_gib * GIB)
    world._end_operation(0)
    world.read_until_it_goes_on(14.0)
    goes_on = world.scheduler.phase is Phase.TRAINER_WAKING
    assert goes_on is (margin_gib == 36)
