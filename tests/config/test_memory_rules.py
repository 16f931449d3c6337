"""What cannot fit is refused with the sum that shows it; what just fits is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from colocate.adapters.memory.shared_memory import SharedMemory, SharedMemoryError
from colocate.config import DEFAULT_BUCKET_BYTES
from colocate.preflight import memory as memory_rules
from tests.config.conftest import GPU_BYTES
from tests.config.trees import fields_of, problem_of

PARAMETERS = 1_000_000
LARGEST = 500_000
SECOND = 300_000


@pytest.fixture
def model(tmp_path: Path) -> dict[str, Any]:
    """A folder of ``PARAMETERS`` elements, to be trained and served in two bytes each."""
    sizes = {"a": LARGEST, "b": SECOND, "c": PARAMETERS - LARGEST - SECOND}
    tensors = {name: np.zeros(size, np.float16) for name, size in sizes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    return {"path": str(tmp_path), "dtype": "bfloat16"}


WEIGHTS = 2 * PARAMETERS
STATE_ON_CPU = (2 + 12) * PARAMETERS
"""Of one rank: parameters, and what Adam keeps in float32."""

KV = "inference.kv_cache_memory_bytes"
ROOMY = {"memory.margin_bytes": 0, KV: 5_000_000}


def largest_that_passes(values: Mapping[str, Any], field: str) -> int:
    """Of a field, by bisection."""
    low, high = 1, 2**40
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if fields_of({**values, field: middle}) else (middle, high)
    return low


def smallest_that_passes(values: Mapping[str, Any], field: str) -> int:
    low, high = 1, 2**40
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fields_of({**values, field: middle}) else (low, middle)
    return low


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_a_gpu_holds_one_workers_cache_and_its_share_of_the_weights(
    model: Mapping[str, Any], tensor_parallel_size: int
) -> None:
    values = {
        "device": "cuda",
        "model": model,
        "trainer.num_ranks": tensor_parallel_size,
        "inference.tensor_parallel_size": tensor_parallel_size,
        "memory.margin_bytes": 1000,
    }

    most = GPU_BYTES - WEIGHTS // tensor_parallel_size - 1000 - 1

    assert largest_that_passes(values, KV) == most
    assert f"set {KV}={most} or less" in problem_of({**values, KV: most + 1}).remedy


@pytest.mark.parametrize(
    ("others", "caches", "beside"),
    [
        ({}, 1, WEIGHTS + STATE_ON_CPU),
        ({"inference.num_engines": 2}, 2, 2 * WEIGHTS + STATE_ON_CPU),
        ({"inference.tensor_parallel_size": 2}, 2, WEIGHTS + STATE_ON_CPU),
        ({"trainer.num_ranks": 2}, 1, WEIGHTS + STATE_ON_CPU + 2 * PARAMETERS),
        ({"trainer.num_ranks": 2, "trainer.zero_stage": 3}, 1, WEIGHTS + STATE_ON_CPU),
        ({"trainer.dtype": "float32"}, 1, WEIGHTS + STATE_ON_CPU + 2 * PARAMETERS),
        (
            {"trainer.dtype": "float32", "trainer.zero_stage": 0, "trainer.num_ranks": 2},
            1,
            WEIGHTS + 2 * (4 + 8) * PARAMETERS,
        ),
    ],
)
def test_on_cpu_all_engines_and_the_trainer_share_one_budget(
    model: Mapping[str, Any],
    others: Mapping[str, Any],
    caches: int,
    beside: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("colocate.preflight.machine.num_cores", lambda: 2)
    budget = 100_000_000
    values = {"model": model, "memory.margin_bytes": 0, "memory.budget_bytes": budget, **others}

    most = (budget - beside - 1) // caches

    assert largest_that_passes(values, KV) == most
    problem = problem_of({**values, KV: most + 1})
    assert problem.field == KV
    assert f"memory.budget_bytes = {budget}" in problem.rule
    assert f"set {KV}={most} or less" in problem.remedy


def test_a_budget_below_the_weights_leaves_nothing_for_a_cache(model: Mapping[str, Any]) -> None:
    problem = problem_of({"model": model, "memory.budget_bytes": WEIGHTS, KV: 1})

    assert "nothing is left for a KV cache" in problem.remedy


def test_a_model_whose_size_is_not_known_is_refused_by_its_cache_alone() -> None:
    values = {"model": {"path": "some/model"}, "memory.margin_bytes": 0}

    assert smallest_that_passes({**values, KV: 1000}, "memory.budget_bytes") == 1001


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("stage", "num_ranks", "bytes_a_parameter"),
    [(1, 1, 16), (1, 2, 2 + 2 + 6), (2, 2, 2 + 1 + 6), (3, 2, 8)],
)
def test_a_gpu_holds_its_ranks_share_of_the_trainers_state(
    model: Mapping[str, Any], stage: int, num_ranks: int, bytes_a_parameter: int
) -> None:
    values = {
        "device": "cuda",
        "model": model,
        "trainer.zero_stage": stage,
        "trainer.num_ranks": num_ranks,
        "memory.margin_bytes": 0,
        KV: 1,
    }

    least = bytes_a_parameter * PARAMETERS + 1

    assert smallest_that_passes(values, "memory.budget_bytes") == least
    problem = problem_of({**values, "memory.budget_bytes": least - 1})
    assert problem.field == "trainer.num_ranks"
    assert f"ZeRO {stage}" in problem.rule


@pytest.mark.usefixtures("two_gpus")
def test_an_optimizer_that_stays_on_the_host_takes_nothing_of_the_gpu(
    model: Mapping[str, Any],
) -> None:
    values = {
        "device": "cuda",
        "model": model,
        "memory.margin_bytes": 0,
        "trainer.deepspeed": {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
        KV: 1,
    }

    assert smallest_that_passes(values, "memory.budget_bytes") == 4 * PARAMETERS + 1


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("others", "needed"),
    [
        ({"inference.sleep": "auto"}, STATE_ON_CPU),
        ({"inference.sleep": 2}, STATE_ON_CPU),
        ({"inference.sleep": 1}, STATE_ON_CPU + WEIGHTS),
        (
            {"inference.sleep": 1, "inference.num_engines": 2, "trainer.num_ranks": 2},
            STATE_ON_CPU + 2 * PARAMETERS + 2 * WEIGHTS,
        ),
    ],
)
def test_the_host_holds_what_leaves_the_gpus(
    model: Mapping[str, Any], others: Mapping[str, Any], needed: int
) -> None:
    values = {"device": "cuda", "model": model, **ROOMY, **others}

    assert smallest_that_passes(values, "memory.host_budget_bytes") == needed + 1
    problem = problem_of({**values, "memory.host_budget_bytes": needed})
    assert problem.field == "memory.host_budget_bytes"
    assert f"{needed} bytes" in problem.rule
    assert ("inference.sleep=2" in problem.remedy) == (others["inference.sleep"] == 1)


@pytest.mark.usefixtures("two_gpus")
def test_without_a_budget_the_host_is_what_this_process_may_use_of_the_machine(
    model: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_rules, "usable_ram_bytes", lambda: STATE_ON_CPU)

    problem = problem_of({"device": "cuda", "model": model, **ROOMY})

    assert f"this machine's RAM is {STATE_ON_CPU}" in problem.rule
    assert problem.value is None


def test_on_cpu_the_host_budget_holds_engine_and_trainer(model: Mapping[str, Any]) -> None:
    needed = ROOMY[KV] + WEIGHTS + STATE_ON_CPU

    assert smallest_that_passes({"model": model, **ROOMY}, "memory.host_budget_bytes") == needed + 1


def test_on_cpu_without_budgets_ram_that_is_too_small_is_told_once(
    model: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_rules, "usable_ram_bytes", lambda: WEIGHTS)

    assert problem_of({"model": model, **ROOMY}).field == KV


def with_shared_memory(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory(total=2 * free + 1, free=free)
    monkeypatch.setattr(memory_rules, "read_shared_memory", lambda: memory)


BUCKET = "trainer.publish_bucket_bytes"


@pytest.mark.parametrize(
    ("bucket", "needed"),
    [
        (700_000, 2 * LARGEST + 700_000),  # the largest tensor is a bucket of its own
        (100_000, 2 * LARGEST + 2 * SECOND),  # the second, too, which has the other slot
        (1_500_000, WEIGHTS),  # never more than there is
        (None, WEIGHTS),
    ],
)
def test_two_buckets_must_fit_shared_memory(
    model: Mapping[str, Any], bucket: int | None, needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"model": model, BUCKET: bucket}

    with_shared_memory(needed, monkeypatch)
    assert fields_of(values) == set()
    with_shared_memory(needed - 1, monkeypatch)
    problem = problem_of(values)

    assert problem.field == BUCKET
    assert f"needs {needed} bytes of /dev/shm, which has {needed - 1} free" in problem.rule
    assert "--shm-size" in problem.remedy


def test_the_bucket_that_the_remedy_names_fits(
    model: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_shared_memory(2 * LARGEST + 650_000, monkeypatch)

    assert "set trainer.publish_bucket_bytes=650000, or" in problem_of({"model": model}).remedy
    assert fields_of({"model": model, BUCKET: 650_000}) == set()


@pytest.mark.parametrize("free", [LARGEST, 2 * LARGEST + 50_000], ids=["largest", "second"])
def test_no_bucket_is_named_where_a_tensor_alone_does_not_fit(
    model: Mapping[str, Any], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_shared_memory(free, monkeypatch)

    assert problem_of({"model": model}).remedy.startswith("enlarge it")


def test_buckets_of_a_model_whose_size_is_not_known_must_fit_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_shared_memory(2 * DEFAULT_BUCKET_BYTES["cpu"] - 1, monkeypatch)
    values = {"model": {"path": "some/model"}}

    assert fields_of(values) == {BUCKET}
    assert fields_of({**values, BUCKET: 2**20}) == set()


def test_a_machine_without_shared_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise SharedMemoryError("/dev/shm does not exist")

    monkeypatch.setattr(memory_rules, "read_shared_memory", fail)

    assert "does not exist" in problem_of({}).rule


@pytest.mark.usefixtures("two_gpus")
def test_gpus_need_no_shared_memory(
    model: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_shared_memory(0, monkeypatch)

    assert fields_of({"device": "cuda", "model": model, **ROOMY}) == set()
