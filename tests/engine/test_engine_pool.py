"""Several engines behave as one, and where one of them does not, the pool says which.

The engines here follow a script; ``test_vllm_pool`` asks the same of real ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from vllm_support import make_request

from colocate.adapters import engine_pool
from colocate.adapters.engine_pool import EnginePool
from colocate.core.types import FinishReason, Part, SleepMode, Version
from colocate.ports import Generation, WeightBucket

BUCKET = WeightBucket(handle={"kind": "shm", "path": "none"}, entries=())


@dataclass
class ScriptedEngine:
    """Answers at once, unless told to fail or to hang in one of its methods.

    Attributes:
        fails: What each method raises.
        hangs: Methods that never return.
        log: Calls in order, shared by the engines of a test.
    """

    name: str
    log: list[tuple[str, str]]
    fails: dict[str, Exception] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)
    held: Mapping[Part, int] = field(default_factory=lambda: {Part.KV_CACHE: 10, Part.WEIGHTS: 3})
    names: tuple[str, ...] = ("a", "b")
    weights_version: Version | None = Version(0)
    served: list[str] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def _do(self, method: str) -> None:
        self.log.append((self.name, method))
        await asyncio.sleep(0)
        if method in self.hangs:
            await asyncio.Event().wait()
        if method in self.fails:
            raise self.fails[method]

    async def start(self) -> None:
        await self._do("start")
        self.log.append((self.name, "started"))

    async def generate(self, request) -> Generation:
        self.served.append(request.request_id)
        await self._do("generate")
        if self.gate is not None:
            await self.gate.wait()
        return Generation(
            request_id=request.request_id,
            token_ids=(),
            logprobs=(),
            spans=(),
            finish_reason=FinishReason.STOP,
        )

    async def park(self) -> None:
        await self._do("park")

    async def resume(self) -> None:
        await self._do("resume")

    async def sleep(self, mode: SleepMode) -> None:
        await self._do("sleep")

    async def wake(self, tag: str) -> None:
        await self._do(f"wake {tag}")

    async def collect(self) -> None:
        await self._do("collect")

    async def residency(self) -> Mapping[Part, int]:
        return self.held

    def process_ids(self) -> list[int]:
        return [int(self.name)]

    async def close(self) -> None:
        await self._do("close")

    async def expected_weight_names(self) -> tuple[str, ...]:
        return self.names

    async def begin_weight_update(self) -> None:
        await self._do("begin")

    async def load_bucket(self, bucket: WeightBucket) -> None:
        assert bucket is BUCKET
        await self._do("load")

    async def finish_weight_update(self, version: Version) -> Mapping[str, float]:
        await self._do("finish")
        self.weights_version = version
        return {"load": float(self.name)}

    async def copy_bucket(self, bucket: WeightBucket | None) -> float:
        return float(self.name)

    async def prompt_logprobs(self, prompts) -> list[list[list[float]]]:
        return [[[-float(self.name)] * (len(prompt) - 1) for prompt in prompts]]

    async def reject_weights(self, reason: str) -> None:
        await self._do("reject")
        self.weights_version = None


def make_pool(num_engines: int = 2, *, one_device: bool = True, **changes):
    log: list[tuple[str, str]] = []
    engines = [ScriptedEngine(str(index), log, **changes) for index in range(num_engines)]
    return EnginePool(engines, one_device=one_device), engines, log


async def publish(pool: EnginePool, version: int) -> Mapping[str, float]:
    await pool.park()
    await pool.begin_weight_update()
    await pool.load_bucket(BUCKET)
    return await pool.finish_weight_update(Version(version))


CHANGES = {
    "park": lambda pool: pool.park(),
    "resume": lambda pool: pool.resume(),
    "sleep": lambda pool: pool.sleep(SleepMode.LEVEL_2),
    "wake weights": lambda pool: pool.wake("weights"),
    "wake kv_cache": lambda pool: pool.wake("kv_cache"),
    "collect": lambda pool: pool.collect(),
    "begin": lambda pool: pool.begin_weight_update(),
    "load": lambda pool: pool.load_bucket(BUCKET),
    "finish": lambda pool: pool.finish_weight_update(Version(1)),
}


async def test_engines_start_one_after_another() -> None:
    pool, _, log = make_pool(3)
    await pool.start()
    assert log == [(name, step) for name in "012" for step in ("start", "started")]
    with pytest.raises(RuntimeError, match="running already"):
        await pool.start()


async def test_an_engine_that_cannot_start_takes_the_started_ones_with_it() -> None:
    pool, engines, log = make_pool(3)
    engines[1].fails["start"] = RuntimeError("no room")
    with pytest.raises(RuntimeError, match="start: engine 1 of 3: no room"):
        await pool.start()
    assert ("2", "start") not in log
    assert {name for name, step in log if step == "close"} == {"0", "1", "2"}
    del engines[1].fails["start"]
    await pool.start()


async def test_a_start_that_is_broken_off_leaves_no_engine() -> None:
    pool, engines, log = make_pool()
    engines[1].hangs.add("start")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.start(), 0.05)
    assert {name for name, step in log if step == "close"} == {"0", "1"}


@pytest.mark.parametrize("method", CHANGES)
async def test_every_engine_is_asked_at_once(method: str) -> None:
    pool, _, log = make_pool(3)
    await pool.park()
    log.clear()
    await CHANGES[method](pool)
    assert log == [(name, method) for name in "012"]


@pytest.mark.parametrize("method", ["sleep", "collect", "begin"])
async def test_what_needs_a_park_is_refused_without_one_and_spoils_nothing(method: str) -> None:
    pool, _, log = make_pool()
    with pytest.raises(RuntimeError, match="must be parked"):
        await CHANGES[method](pool)
    assert not log
    await pool.generate(make_request("served", [1]))
    await pool.park()
    await pool.resume()
    with pytest.raises(RuntimeError, match="must be parked"):
        await CHANGES[method](pool)


@pytest.mark.parametrize("method", CHANGES)
async def test_a_failure_names_its_engine_and_closes_the_pool_until_whole_weights_have_landed(
    method: str,
) -> None:
    pool, engines, log = make_pool()
    await pool.park()
    engines[1].fails[method] = OSError("out of order")
    with pytest.raises(RuntimeError, match="engine 1 of 2: out of order") as failure:
        await CHANGES[method](pool)
    assert isinstance(failure.value.__cause__, OSError)
    assert ("0", method) in log
    assert pool.weights_version is None
    with pytest.raises(RuntimeError, match="failed; publish a whole set"):
        await pool.generate(make_request("refused", [1]))
    engines[1].fails.clear()
    await publish(pool, 7)
    assert pool.weights_version == 7
    await pool.generate(make_request("served", [1]))


async def test_all_engines_that_failed_are_named() -> None:
    pool, engines, _ = make_pool(3)
    engines[0].fails["park"] = OSError("this")
    engines[2].fails["park"] = OSError("that")
    with pytest.raises(RuntimeError, match="park: engine 0 of 3: this; engine 2 of 3: that"):
        await pool.park()


async def test_an_engine_that_hangs_does_not_hide_the_failure_of_another(monkeypatch) -> None:
    monkeypatch.setattr(engine_pool, "SETTLE_S", 0.05)
    pool, engines, _ = make_pool()
    await pool.park()
    engines[0].hangs.add("sleep")
    engines[1].fails["sleep"] = OSError("out of order")
    with pytest.raises(RuntimeError, match=r"engine 0 of 2: no answer .*engine 1 of 2: out of"):
        await pool.sleep(SleepMode.KV)


async def test_a_call_that_is_broken_off_closes_the_pool() -> None:
    pool, engines, _ = make_pool()
    await pool.park()
    engines[0].hangs.add("sleep")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.sleep(SleepMode.KV), 0.05)
    with pytest.raises(RuntimeError, match="sleep was broken off"):
        await pool.generate(make_request("refused", [1]))


async def test_close_closes_the_others_where_one_cannot_be_closed() -> None:
    pool, engines, log = make_pool(3)
    engines[1].fails["close"] = RuntimeError("processes survive")
    with pytest.raises(RuntimeError, match="close: engine 1 of 3: processes survive"):
        await pool.close()
    assert Counter(log) == {(name, "close"): 1 for name in "012"}


async def test_requests_are_spread_by_load() -> None:
    pool, engines, _ = make_pool(2)
    gate = asyncio.Event()
    for engine in engines:
        engine.gate = gate
    tasks = []
    for index in range(10):
        request = make_request(f"r{index}", [1] * (1 + index))
        tasks.append(asyncio.create_task(pool.generate(request)))
        await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*tasks)
    assert [result.request_id for result in results] == [f"r{index}" for index in range(10)]
    assert [len(engine.served) for engine in engines] == [5, 5]


async def test_the_turns_of_a_trajectory_meet_one_engine_until_its_cache_is_emptied() -> None:
    pool, engines, _ = make_pool(2)
    for turn in range(5):
        await pool.generate(make_request(f"first-{turn}", [1], affinity="first"))
        await pool.generate(make_request(f"other-{turn}", [1]))
    homes = {e.name for e in engines if any(r.startswith("first") for r in e.served)}
    assert len(homes) == 1

    async def home_while_engine_0_is_busy() -> list[str]:
        engines[0].gate = asyncio.Event()
        busy = asyncio.create_task(pool.generate(make_request("busy", [1])))
        await asyncio.sleep(0.01)
        engines[0].served.clear()
        engines[1].served.clear()
        await asyncio.wait(
            {asyncio.create_task(pool.generate(make_request("next", [1], affinity="first")))},
            timeout=0.05,
        )
        engines[0].gate.set()
        await busy
        return [e.name for e in engines if "next" in e.served]

    assert await home_while_engine_0_is_busy() == ["0"]
    await publish(pool, 1)
    assert await home_while_engine_0_is_busy() == ["1"]


async def test_a_request_given_up_is_owed_no_longer() -> None:
    pool, engines, _ = make_pool(2)
    engines[0].gate = asyncio.Event()
    task = asyncio.create_task(pool.generate(make_request("gone", [1])))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    engines[0].gate = None
    await pool.generate(make_request("here", [1]))
    assert engines[0].served == ["gone", "here"]


async def test_engines_on_one_device_hold_the_sum_and_on_their_own_the_fullest_counts() -> None:
    full = {Part.KV_CACHE: 20, Part.WEIGHTS: 1}
    for one_device, expected in ((True, {Part.KV_CACHE: 30, Part.WEIGHTS: 4}), (False, full)):
        pool, engines, _ = make_pool(one_device=one_device)
        engines[1].held = full
        assert await pool.residency() == expected
    assert list(pool.process_ids()) == [0, 1]


async def test_engines_that_expect_different_weights_are_refused() -> None:
    pool, engines, _ = make_pool()
    assert await pool.expected_weight_names() == ("a", "b")
    engines[1].names = ("a",)
    with pytest.raises(RuntimeError, match="expect different"):
        await pool.expected_weight_names()


async def test_one_answer_is_made_of_all_engines() -> None:
    pool, engines, _ = make_pool(3)
    assert await publish(pool, 4) == {"load": 2.0}
    assert await pool.copy_bucket(BUCKET) == 2.0
    assert await pool.prompt_logprobs([[1, 2]]) == [[[0.0]], [[-1.0]], [[-2.0]]]
    assert pool.weights_version == 4
    engines[2].weights_version = Version(3)
    assert pool.weights_version is None


async def test_rejected_weights_are_served_by_no_engine() -> None:
    pool, _, log = make_pool()
    await pool.reject_weights("they differ")
    assert log == [("0", "reject"), ("1", "reject")]
    with pytest.raises(RuntimeError, match="they differ"):
        await pool.generate(make_request("refused", [1]))


def test_a_pool_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        EnginePool([], one_device=True)
