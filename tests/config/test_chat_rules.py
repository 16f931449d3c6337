"""A chat template that cannot be followed is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colocate.preflight import find_problems
from colocate.preflight.table import RULES
from colocate.problems import Problem
from tests.config.trees import with_values
from tests.rollout.chat_models import FAMILIES, save_tokenizer

THE_RULE = [rule for rule in RULES if rule.name == "chat_template_can_be_followed"]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = save_tokenizer(FAMILIES[name], tmp_path_factory.mktemp("model"))
        return made[name]

    return make


def problems_of(**values: Any) -> list[Problem]:
    named = {path.replace("__", "."): value for path, value in values.items()}
    model = {"path": named.pop("path", None), **named.pop("model", {})}
    return find_problems(with_values({"model": model, **named}), rules=THE_RULE)[1]


def test_a_template_that_strips_thinking_is_refused_over_several_turns(
    folder_of: Callable[[str], Path],
) -> None:
    path = str(folder_of("thinking"))
    [problem] = problems_of(path=path, rollout__max_turns=2)
    assert problem.field == "model.chat_template"
    assert "with thinking in the model's turns" in problem.rule
    assert "set environment.observation_role=tool" in problem.remedy
    assert problems_of(path=path, rollout__max_turns=1) == []
    role = {"environment__observation_role": "tool"}
    assert problems_of(path=path, rollout__max_turns=2, **role) == []
    assert problems_of(path=path, rollout__max_turns=2, model={"chat_template": "none"}) == []


def test_another_template_may_be_named(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    template = tmp_path / "keeps.jinja"
    template.write_text(FAMILIES["chatml"].template)
    path = str(folder_of("thinking"))
    model = {"chat_template": str(template)}
    assert problems_of(path=path, rollout__max_turns=2, model=model) == []


def test_a_template_that_is_not_there_or_has_no_use_is_refused(tmp_path: Path) -> None:
    [missing] = problems_of(path="some/model", model={"chat_template": "chatml"})
    assert "or a file that holds a template" in missing.rule
    template = tmp_path / "any.jinja"
    template.write_text("{{ messages }}")
    [useless] = problems_of(model={"embedded": {}, "chat_template": str(template)})
    assert "is for models of Hugging Face" in useless.rule


def test_a_template_that_cannot_be_read_by_jinja_is_refused(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    template = tmp_path / "broken.jinja"
    template.write_text("{% for message in messages %}")
    model = {"chat_template": str(template)}
    [problem] = problems_of(path=str(folder_of("chatml")), model=model)
    assert "cannot write a conversation of one question" in problem.rule


def test_a_model_without_a_template_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert problems_of(path=str(tmp_path), rollout__max_turns=2) == []
