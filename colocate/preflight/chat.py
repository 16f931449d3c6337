"""Rules of conversations: the model's chat template can be followed."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from colocate.adapters.chat import ChatTemplateError, make_chat
from colocate.ports import Role
from colocate.preflight.table import rule
from colocate.problems import Problem


@rule(
    "model.path",
    "model.chat_template",
    "model.chat_template_options",
    "environment.observation_role",
    "rollout.max_turns",
)
def _chat_template_can_be_followed(
    path: str | None, choice: str, variables: Mapping[str, Any], role: Role, max_turns: int
) -> Iterator[Problem]:
    """Of a model in a folder. What the hub has is fetched, and checked, when the run starts."""
    if choice not in ("auto", "none") and not Path(choice).expanduser().is_file():
        yield Problem(
            field="model.chat_template",
            value=choice,
            rule="must be `auto`, `none`, or a file that holds a template",
            remedy="check the path, or leave model.chat_template out",
        )
        return
    if path is None:
        if choice not in ("auto", "none"):
            yield Problem(
                field="model.chat_template",
                value=choice,
                rule="is for models of Hugging Face; the embedded one knows the characters of its "
                "task only",
                remedy="leave model.chat_template out, or choose model=hf",
            )
        return
    folder = Path(path).expanduser()
    if choice == "none" or not (folder / "tokenizer_config.json").is_file():
        return
    if choice == "auto" and not _may_have_template(folder):
        return  # importing transformers takes long
    fault = _fault(str(folder), choice, json.dumps(variables), role, max_turns > 1)
    if fault is not None:
        yield Problem(field="model.chat_template", value=choice, rule=fault[0], remedy=fault[1])


def _may_have_template(folder: Path) -> bool:
    if any(
        (folder / name).exists() for name in ("chat_template.jinja", "additional_chat_templates")
    ):
        return True
    text = (folder / "tokenizer_config.json").read_text(encoding="utf-8", errors="replace")
    return '"chat_template"' in text


@functools.cache  # the jobs of a multirun mostly share their model
def _fault(
    folder: str, choice: str, variables: str, role: Role, several_turns: bool
) -> tuple[str, str] | None:
    from colocate.adapters.tokenizer import HuggingFaceTokenizer

    try:
        tokenizer = HuggingFaceTokenizer(folder)
    except Exception:
        return None  # loading the model says what is wrong with its folder
    max_turns = 2 if several_turns else 1
    try:
        make_chat(tokenizer, choice, json.loads(variables), role, max_turns=max_turns)
    except ChatTemplateError as error:
        return error.rule, error.remedy
    return None
