"""The tree in conf/ and the schema say the same, and every shipped choice can be composed."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from colocate.cli.compose import Plan, config_folder, plan_jobs
from colocate.cli.simulate import SIMULATE
from colocate.cli.train import check_plan, parse
from colocate.config import RunConfig
from colocate.preflight import logger, validate
from colocate.schema import MISSING, known_paths, walk

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
ROWS = ROOT / "tests" / "data" / "rows"
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
ONLY_SIMULATED = {"cluster_1024"}
# Of a model that the machine need not have.
OF_A_FOLDER = {"python_tool", "smollm2_arithmetic", "terminal"}
# Groups of which an experiment is run with one choice and another.
VARIED = ("algorithm", "scheduler", "trainer")
# What a study varies along with its own key.
STUDIED = {("staleness", "scheduler.swap_interval")}
CHOICES = sorted(
    f"{path.parent.name}={path.stem}"
    for path in CONF.glob("*/*.yaml")
    if path.parent.name != "experiment"
)
# What only a user can give, so that each choice can be tried for itself.
GIVEN = [
    "steps=1",
    "model.path=some/model",
    "data.source=colocate.embedded.digits:DigitPrompts",
    "environment.factory=colocate.embedded.digits:DigitSearch",
    "inference.kv_cache_memory_bytes=1000000",
    "inference.max_model_len=64",
    "rollout.max_new_tokens=3",
    "buffer.max_staleness=7",
]
TO_BE_CHOSEN = {
    "reward=function": ["reward.function=builtins:max"],
    "reward=weighted_sum": [
        "reward.functions=[{function: 'colocate.rewards.matching:ExactMatch', weight: 2.0},"
        "{function: 'colocate.rewards.matching:environment'}]"
    ],
    "reward=format": ["reward.options.pattern=.*"],
    "reward=judge": ["reward.options.base_url=http://127.0.0.1:1/v1", "reward.options.model=m"],
}


def compose(*overrides: str) -> Plan:
    return plan_jobs(parse(list(overrides)))


def tree(*overrides: str) -> dict[str, Any]:
    plan = compose(*overrides)
    assert plan.problems == ()
    return plan.jobs[0].tree


def leaves(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, dict) and not known_paths()[f"{prefix}{key}"].free_form:
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in ONLY_SIMULATED])
def test_every_experiment_is_a_valid_configuration(name: str) -> None:
    model = ["model.path=some/model"] if name in OF_A_FOLDER else []
    check_plan(compose(f"+experiment={name}", "device=cpu", *model))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_leaves_to_a_choice_what_it_is_chosen_for(name: str) -> None:
    """``+experiment=E scheduler=interval_4`` has an interval of 4, whatever E's own is."""
    for choice in CHOICES:
        group, option = choice.split("=")
        if group not in VARIED:
            continue
        own = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{option}.yaml"))
        assert isinstance(own, dict)
        if not own.pop("defaults", None):
            continue
        plan = compose(f"+experiment={name}", choice)
        assert plan.problems == ()
        composed = leaves(plan.jobs[0].tree)
        for key, value in leaves(own, f"{group}.").items():
            if not str(value).startswith("${") and (name, key) not in STUDIED:
                assert composed[key] == value, f"{choice}: {key}"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_simulated(name: str) -> None:
    parsed = parse([f"+experiment={name}"], SIMULATE.name)
    parsed.config_name = SIMULATE.config_name
    check_plan(plan_jobs(parsed), SIMULATE.rules)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_of_a_group_is_valid_once_what_it_asks_for_is_given(
    choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "is_installed", lambda package: True)
    monkeypatch.setenv("WANDB_API_KEY", "a key")
    group = choice.split("=")[0]
    brings_its_own = group in ("data", "environment") and not choice.endswith("=custom")
    given = [each for each in GIVEN if not (brings_its_own and each.startswith(f"{group}."))]
    if choice == "model=embedded":
        given.remove("model.path=some/model")
    if choice in ("data=files", "data=hub"):
        given = [each for each in given if not each.startswith("data.source=")]
        given.append(f"data.path={ROWS}")
    given += TO_BE_CHOSEN.get(choice, [])

    check_plan(compose(choice, *given, "device=cpu"))


def test_the_tree_lists_every_key_of_the_schema() -> None:
    choices = ([], ["model=embedded"], ["model=hf_lora"], ["data=hub"])
    listed: dict[str, Any] = {}
    for choice in choices:
        listed |= leaves(tree(*choice))

    expected = {field.path for field in walk() if field.section is None}
    assert set(listed) - {"model.embedded", "model.lora"} == expected


@pytest.mark.parametrize(
    "overrides", [[], ["model=embedded", "model.dtype=bfloat16"], ["model=hf_lora"], ["data=hub"]]
)
def test_the_tree_repeats_the_schemas_defaults(overrides: list[str]) -> None:
    fields = known_paths()
    for path, value in leaves(tree(*overrides)).items():
        field = fields[path]
        if value != MISSING and not field.required and field.section is None:
            assert value == json.loads(json.dumps(field.default)), path


def test_every_field_says_what_it_is() -> None:
    assert [field.path for field in walk() if not (field.info.description or field.section)] == []


def test_the_quickstart_is_the_documented_task() -> None:
    config = validate(tree("+experiment=quickstart", "device=cpu"))

    assert config.algorithm.trajectories_per_step == 320
    assert config.trainer.learning_rate == 2e-3
    assert config.trainer.betas == (0.9, 0.95)
    assert config.model.dtype == "float32"
    assert config.environment.options == {"max_turns": config.rollout.max_turns}
    assert config.memory.budget_bytes is not None


def test_sequences_may_be_lists_and_the_configuration_stays_frozen() -> None:
    config = validate(tree("+experiment=quickstart", "device=cpu"))

    assert RunConfig.model_validate(config.model_dump()) == config
    with pytest.raises(ValueError, match="frozen"):
        config.steps = 2  # type: ignore[misc]


def test_the_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_config_reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


def test_the_tree_is_found_in_a_checkout() -> None:
    assert config_folder() == CONF


def test_a_wheel_carries_the_tree_and_works_in_an_empty_folder(tmp_path: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)),
        ],
        check=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    empty = tmp_path / "empty"
    empty.mkdir()

    done = subprocess.run(
        [sys.executable, "-m", "colocate.cli.main", "train", "+experiment=quickstart", "--cfg=job"],
        cwd=empty,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    searched = subprocess.run(
        [sys.executable, "-m", "colocate.cli.main", "train", "--info", "searchpath"],
        cwd=empty,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert yaml.safe_load(done.stdout)["algorithm"]["group_size"] == 32
    assert str(installed / "colocate" / "conf") in searched.stdout
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(("ranks", "budget_mib"), [(1, 1750), (2, 2270)])
def test_the_quickstarts_budget_grows_with_what_cannot_leave_the_device(
    ranks: int, budget_mib: int
) -> None:
    (job,) = plan_jobs(parse(["+experiment=quickstart", f"trainer.num_ranks={ranks}"])).jobs
    assert validate(job.tree).memory.budget_bytes == budget_mib * 2**20
