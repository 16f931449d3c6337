"""What the documentation says exists: links, pages, configuration keys, commands, code."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from colocate.adapters.environments.factory import make_environment_factory
from colocate.cli.compose import plan_jobs
from colocate.cli.simulate import SIMULATE
from colocate.cli.train import TRAIN, check_plan, parse
from colocate.config import EnvironmentConfig
from colocate.ports import StepOutcome
from colocate.preflight import RULES, callables, flat_groups, learning
from colocate.rollout.runner import Episode
from colocate.schema import known_paths
from tests.docs import pages
from tests.docs.pages import DOCS, PAGES, ROOT, Command

NO_KEYS = {"memory.ledger"}
"""Of ``summary.json``, where the first word is also a section of the configuration."""

MAX_PICTURE_BYTES = 300_000
"""They stay in the repository's history for ever."""

_FILE = re.compile(r"\.(md|py|json|jsonl|msgpack|html|yaml|yml|sh|log|txt|toml|png|db)$")
_KEY = re.compile(r"^[+~]{0,2}([a-z]\w*(?:\.\w+)+)(?:=.*)?$")
_CHOICE = re.compile(r"^[+~]?([a-z]+)=([a-z0-9_]+)$")
_FIELDS = known_paths()
_SECTIONS = {path.rpartition(".")[2] for path, field in _FIELDS.items() if field.section}
_MACHINE_INDEPENDENT = [
    rule
    for rule in RULES
    if rule.check.__module__ in {learning.__name__, flat_groups.__name__, callables.__name__}
]
COMMANDS = [command for page in PAGES for command in pages.commands(page)]
ids = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@ids
def test_every_relative_link_and_anchor_resolves(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    broken = [link for link in pages.links(text) if not _resolves(page, link)]
    assert broken == []


def _resolves(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return False
    # The site holds what is in docs/, and nothing else.
    if page.parent == DOCS and DOCS not in target.parents:
        return False
    return not anchor or anchor in pages.anchors(target.read_text(encoding="utf-8"))


def test_every_picture_is_shown_told_of_and_small() -> None:
    shown = [picture for page in PAGES for picture in pages.pictures(page)]
    assert {path for _, path in shown} == set((DOCS / "images").iterdir())
    assert [path.name for says, path in shown if len(says) < 20] == []
    assert [path.name for _, path in shown if path.stat().st_size > MAX_PICTURE_BYTES] == []


def test_every_page_is_in_the_navigation_once() -> None:
    listed = pages.navigation()
    assert sorted(set(listed)) == sorted(listed)
    assert set(listed) == {page.name for page in DOCS.glob("*.md")}


@ids
def test_every_configuration_key_in_backticks_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.name == "coming-from.md":
        # The first column of its tables holds other projects' options.
        text = re.sub(r"^\|.*?\|", "|", text, flags=re.MULTILINE)
    unknown = [span for span in pages.code_spans(text) if not _is_known(span)]
    assert unknown == []


def _is_known(span: str) -> bool:
    choice = _CHOICE.match(span)
    if choice is not None and (ROOT / "conf" / choice[1]).is_dir():
        return (ROOT / "conf" / choice[1] / f"{choice[2]}.yaml").is_file()
    match = _KEY.match(span)
    if match is None or _FILE.search(match[1]) or match[1] in NO_KEYS:
        return True
    return match[1].partition(".")[0] not in _SECTIONS or _is_key(match[1])


def _is_key(name: str) -> bool:
    """Whether a path ends so: pages leave out sections that the context gives."""
    for path, field in _FIELDS.items():
        if path == name or path.endswith(f".{name}"):
            return True
        if field.free_form and name.startswith(f"{path}."):
            return True
    return False


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The pages' modules, by name, where they can be imported."""
    folder = tmp_path_factory.mktemp("modules")
    sources: dict[str, str] = {}
    for page in PAGES:
        found = pages.modules(page)
        assert not set(found) & set(sources), "two pages define one module"
        sources |= found
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield sources
    sys.path.remove(str(folder))
    for name in sources:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_composes_and_is_valid(command: Command, modules: dict[str, str]) -> None:
    """By all rules that ask for nothing of this machine; modules of the pages are imported.

    Of a multirun two jobs are tried, with the first and with the last of all values: each takes its
    time.
    """
    program = {"train": TRAIN, "simulate": SIMULATE}[command.name]
    parsed = parse(command.arguments, program.name)
    parsed.config_name = program.config_name
    # A page may show a run's folder, which the tests do not have.
    overrides = [text for text in parsed.overrides if not text.startswith("sim.from_run=")]
    jobs = {tuple(overrides)}
    if parsed.multirun:
        parsed.multirun = False
        jobs = {tuple(_one_of(text, at) for text in overrides) for at in (0, -1)}
    for job in jobs:
        parsed.overrides = list(job)
        check_plan(plan_jobs(parsed), _MACHINE_INDEPENDENT)


def _one_of(override: str, at: int) -> str:
    """``KEY=A,B`` with one of its values; values with commas of their own are left alone."""
    key, _, values = override.partition("=")
    return override if re.search(r"[\[{('\"]", values) else f"{key}={values.split(',')[at]}"


def test_commands_are_found() -> None:
    assert {command.page for command in COMMANDS} >= {"README.md", "tutorial.md", "slurm.md"}


def test_a_wrong_key_or_command_would_be_seen() -> None:
    assert not _is_known("trainer.num_rank")
    assert not _is_known("algorithm=grop")
    assert _is_known("correction.mode=mask")
    assert not _resolves(DOCS / "index.md", "swap.md#no-such-heading")


# The code of the pages


def play(factory: str, prompts: Any, actions: Sequence[str]) -> tuple[list[StepOutcome], Episode]:
    """One episode, as the rollout would play it: the first prompt, then these turns."""
    make = make_environment_factory(EnvironmentConfig(factory=factory))
    environment, prompt = make(), prompts.prompt(0)

    async def episode() -> tuple[list[StepOutcome], Episode]:
        turns = [("prompt", prompt.text + await environment.reset(prompt, 0))]
        outcomes: list[StepOutcome] = []
        for action in actions:
            outcomes.append(await environment.step(action))
            turns += [("agent", action), ("environment", outcomes[-1].observation)]
        await environment.close()
        facts = {key: value for each in outcomes for key, value in each.facts.items()}
        reward = sum(outcome.reward for outcome in outcomes)
        return outcomes, Episode(prompt=prompt, turns=turns, environment_reward=reward, facts=facts)

    return asyncio.run(episode())


@pytest.mark.parametrize(
    ("actions", "reward"),
    [(["1\n"], 1.0), (["4\n", "1\n"], 0.5), (["4\n", "0\n"], 0.1), (["--\n", "??\n"], 0.0)],
)
def test_the_tutorials_task_rewards_the_next_digit(
    modules: dict[str, str], actions: list[str], reward: float
) -> None:
    from successor import Prompts, score  # type: ignore[import-not-found]

    outcomes, episode = play("successor:Successor", Prompts(), actions)

    assert [outcome.done for outcome in outcomes] == [False] * (len(actions) - 1) + [True]
    assert score(episode) == reward


def test_the_tutorials_task_takes_less_than_forty_lines(modules: dict[str, str]) -> None:
    assert sum(bool(line.strip()) for line in modules["successor"].splitlines()) < 40


@pytest.mark.parametrize("answer", ["1", "1<|im_end|>", " 1\n"])
def test_the_readmes_task_finds_the_answer_in_a_turn(modules: dict[str, str], answer: str) -> None:
    from my_task import Prompts  # type: ignore[import-not-found]

    _, right = play("my_task:Task", Prompts(), [answer])
    _, wrong = play("my_task:Task", Prompts(), ["7"])

    assert (right.environment_reward, wrong.environment_reward) == (1.0, 0.0)


def test_the_rewards_of_the_pages_score_an_episode(modules: dict[str, str]) -> None:
    from arithmetic import Sums  # type: ignore[import-not-found]
    from my_rewards import brevity  # type: ignore[import-not-found]

    answer = str(Sums().prompt(0).columns["answer"])
    outcomes, episode = play("arithmetic:Checked", Sums(), ["none", f"It is {answer}."])

    assert [outcome.reward for outcome in outcomes] == [0.0, 0.5]
    completion = len("none\nNo. Try again.\n" + f"It is {answer}.")
    assert brevity(episode, int(answer)) == pytest.approx(1.0 - 0.001 * completion)
    assert brevity(episode, int(answer) + 1) < 0.0


def test_trying_an_environment_by_hand_works_as_shown(
    modules: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / "own-environment.md").read_text(encoding="utf-8")
    [block] = [each for each in pages.code_blocks(text, "python") if "asyncio.run(" in each]

    exec(block, {})

    assert "done=True" in capsys.readouterr().out
