"""Data sets of every kind become prompts; what cannot is refused with its field."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest

from colocate.config import DataConfig
from colocate.core.types import GroupId
from colocate.data.check import Needs, check_data, texts
from colocate.data.make import RunData, make_data
from colocate.data.rows import UnfitRowError
from colocate.ports import Prompt
from colocate.problems import ConfigurationError, Problem

ROWS = [{"prompt": f"{i}+1?", "answer": str(i + 1), "level": i % 3} for i in range(12)]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello?"},
]


def jsonl(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def csv(rows: Sequence[Mapping[str, Any]], separator: str = ",") -> str:
    lines = [rows[0].keys(), *(row.values() for row in rows)]
    return "".join(separator.join(map(str, line)) + "\n" for line in lines)


def num_characters(prompt: Prompt) -> int:
    return sum(map(len, texts(prompt)))


def needs(num_rows: int = 1, max_model_len: int = 1000, limit: int | None = None) -> Needs:
    return Needs(num_rows=num_rows, max_model_len=max_model_len, max_prompt_tokens=limit)


def made(path: Path | str, needed: Needs | None = None, seed: int = 0, **config: Any) -> RunData:
    typed = DataConfig.model_validate({"path": str(path), **config})
    return make_data(typed, needs=needed or needs(), seed=seed, count=num_characters)


def prompts(data: RunData, *positions: int) -> list[str]:
    return [data.prompts.prompt(GroupId(position)).text for position in positions]


def write_parquet(path: Path) -> None:
    datasets.Dataset.from_list(ROWS).to_parquet(path)


KINDS: dict[str, Callable[[Path], Any]] = {
    "a.jsonl": lambda path: path.write_text(jsonl(ROWS)),
    "a.json": lambda path: path.write_text(json.dumps(ROWS)),
    "a.csv": lambda path: path.write_text(csv(ROWS)),
    "a.tsv": lambda path: path.write_text(csv(ROWS, "\t")),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(jsonl(ROWS).encode())),
    "a.parquet": write_parquet,
    "folder": lambda path: path.mkdir() or (path / "train.jsonl").write_text(jsonl(ROWS)),
    "saved": lambda path: datasets.Dataset.from_list(ROWS).save_to_disk(path),
}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_data_set_gives_the_same_prompts(
    name: str, streaming: bool, tmp_path: Path
) -> None:
    KINDS[name](tmp_path / name)

    data = made(tmp_path / name, shuffle=False, streaming=streaming)

    assert prompts(data, 0, 1, 11, 12) == ["0+1?", "1+1?", "11+1?", "0+1?"]
    columns = data.prompts.prompt(GroupId(2)).columns
    assert str(columns["answer"]) == "3"
    assert columns["level"] == 2


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(jsonl(ROWS))
    return path


def test_several_files_are_one_data_set(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(jsonl(ROWS[4 * number : 4 * number + 4]))

    data = made(tmp_path / "*.jsonl", shuffle=False)

    assert prompts(data, 0, 11) == ["0+1?", "11+1?"]
    assert data.facts["rows"] == 12


def test_columns_are_mapped_to_the_names_that_rewards_know(rows: Path) -> None:
    data = made(rows, shuffle=False, columns={"solution": "answer"})

    assert data.prompts.prompt(GroupId(0)).columns == {"solution": "1"}


def test_a_conversation_is_its_last_message_and_what_comes_before(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(jsonl([{"messages": CHAT}]))

    prompt = made(path, prompt_column="messages").prompts.prompt(GroupId(0))

    assert prompt.text == "Hello?"
    assert list(prompt.history) == CHAT[:1]
    assert prompt.columns["messages"] == CHAT


def test_epochs_are_shuffled_and_a_cursor_resumes_them(rows: Path) -> None:
    first, again = made(rows), made(rows)
    positions = range(30)
    whole = prompts(first, *positions)

    assert sorted(whole[:12]) == sorted(row["prompt"] for row in ROWS)
    assert whole[:12] != whole[12:24]
    assert prompts(again, 25, 7, 3) == [whole[25], whole[7], whole[3]]
    assert prompts(made(rows, seed=1), *positions) != whole


def test_a_shuffled_stream_is_a_function_of_the_position_too(rows: Path) -> None:
    first, again = (made(rows, streaming=True, shuffle_buffer=5) for _ in range(2))
    whole = prompts(first, *range(30))

    assert sorted(whole[:12]) == sorted(row["prompt"] for row in ROWS)
    assert whole[:12] != whole[12:24]
    assert prompts(again, 25, 7, 3) == [whole[25], whole[7], whole[3]]


def test_a_stream_forgets_what_is_long_past_and_finds_it_again(
    rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colocate.data.stream.KEPT", 4)
    monkeypatch.setattr("colocate.data.stream.AHEAD", 2)
    data = made(rows, streaming=True, shuffle=False)

    assert prompts(data, 40, 0, 41, 2) == ["4+1?", "0+1?", "5+1?", "2+1?"]


def test_prompts_that_are_too_long_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(jsonl([{"prompt": "x" * length} for length in (3, 30, 5, 40)]))

    data = made(path, needs(max_model_len=11), shuffle=False)

    assert prompts(data, 0, 1, 2) == ["xxx", "xxxxx", "xxx"]
    assert data.facts == {
        "rows": 4,
        "too_long": 2,
        "max_prompt_tokens": 10,
        "longest_left_out": 40,
    }
    assert "2 of 4 prompts have more than 10 tokens (the longest 40)" in caplog.text


def test_a_prompt_that_fills_the_context_but_for_one_token_fits(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(jsonl([{"prompt": "x" * 10}]))

    assert made(path, needs(max_model_len=11)).facts["too_long"] == 0


def test_a_share_is_held_out_whatever_the_seed(rows: Path) -> None:
    one, other = (made(rows, eval_fraction=0.25, seed=seed) for seed in (0, 1))
    assert one.evaluation is not None
    assert other.evaluation is not None

    held_out = {prompt.text for prompt in one.evaluation}

    assert len(held_out) == 3
    assert {prompt.text for prompt in other.evaluation} == held_out
    assert held_out.isdisjoint(prompts(one, *range(18)))
    assert [p.text for p in one.evaluation[1:]] == [p.text for p in one.evaluation][1:]


def test_a_split_can_be_held_out(rows: Path) -> None:
    data = made(rows, split="train[:8]", eval_split="train[8:]")

    assert data.evaluation is not None
    assert [prompt.text for prompt in data.evaluation] == [f"{i}+1?" for i in range(8, 12)]
    assert data.facts["rows"] == 8


def test_a_stream_is_evaluated_on_a_split(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(jsonl([{"prompt": split}]))

    data = made(tmp_path, streaming=True, eval_split="test")

    assert prompts(data, 0) == ["train"]
    assert data.evaluation is not None
    assert [prompt.text for prompt in data.evaluation] == ["test"]


def test_a_row_that_breaks_a_stream_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(jsonl([{"prompt": "a"}, {"prompt": ""}]))

    with pytest.raises(UnfitRowError, match="row 1 of epoch 0 has an empty `prompt`"):
        prompts(made(path, streaming=True, shuffle=False), 1)


# What cannot be used: name, content (None: no file), configuration, and what is said.

WRONG: dict[str, tuple[str, str | bytes | None, dict[str, Any], str, str]] = {
    "not there": ("a.jsonl", None, {}, "data.path", "must be a file, a glob of files"),
    "no match": ("*.parquet", None, {}, "data.path", "must be a file, a glob of files"),
    "empty file": ("a.jsonl", "", {}, "data.path", "is empty"),
    "header only": ("a.csv", "prompt,answer\n", {}, "data.path", "must hold rows; it has none"),
    "not JSON": ("a.jsonl", "prompt: what\n", {}, "data.path", "can be read"),
    "not Parquet": ("a.parquet", "prompt\n", {}, "data.path", "can be read"),
    "not UTF-8": ("a.csv", b"prompt\n\xff\xfe\n", {}, "data.path", "can be read"),
    "unknown kind": ("a.xlsx", "prompt", {}, "data.path", "here is `.xlsx`"),
    "unknown split": (
        "a.jsonl",
        jsonl(ROWS),
        {"split": "training"},
        "data.split",
        "its splits: train",
    ),
    "unknown split to evaluate on": (
        "a.jsonl",
        jsonl(ROWS),
        {"eval_split": "test"},
        "data.split",
        "its splits: train",
    ),
    "missing column": (
        "a.jsonl",
        jsonl(ROWS),
        {"prompt_column": "promt"},
        "data.prompt_column",
        "which has: prompt, answer, level",
    ),
    "missing mapped column": (
        "a.jsonl",
        jsonl(ROWS),
        {"columns": {"solution": "anser"}},
        "data.columns.solution",
        "must be a column",
    ),
    "empty column": (
        "a.jsonl",
        jsonl([{"prompt": " "}, {"prompt": ""}]),
        {},
        "data.prompt_column",
        "row 0 has an empty `prompt`; so have 1 other rows",
    ),
    "a null": (
        "a.jsonl",
        jsonl([{"prompt": "a"}, {"prompt": None}]),
        {},
        "data.prompt_column",
        "row 1 has no `prompt`",
    ),
    "wrong type": (
        "a.jsonl",
        jsonl(ROWS),
        {"prompt_column": "level"},
        "data.prompt_column",
        "of type int",
    ),
    "messages without a role": (
        "a.jsonl",
        jsonl([{"prompt": [{"content": "a"}]}]),
        {},
        "data.prompt_column",
        "a message has `role` and `content`",
    ),
    "messages of a stranger": (
        "a.jsonl",
        jsonl([{"prompt": [{"role": "boss", "content": "a"}]}]),
        {},
        "data.prompt_column",
        "a message of role 'boss'",
    ),
    "messages that end with the model's": (
        "a.jsonl",
        jsonl([{"prompt": [{"role": "assistant", "content": "a"}]}]),
        {},
        "data.prompt_column",
        "does not end with the user's",
    ),
    "fewer rows than a batch": (
        "a.jsonl",
        jsonl(ROWS[:3]),
        {},
        "data.path",
        "at least algorithm.groups_per_step = 4 rows to train on, or a batch",
    ),
    "one row": ("a.jsonl", jsonl(ROWS[:1]), {}, "data.path", "it has 1"),
    "fewer rows than a batch beside what is held out": (
        "a.jsonl",
        jsonl(ROWS[:6]),
        {"eval_fraction": 0.5},
        "data.path",
        "beside data.eval_fraction=0.5",
    ),
    "nothing held out": (
        "a.jsonl",
        jsonl(ROWS),
        {"eval_fraction": 0.01},
        "data.eval_fraction",
        "at least one of 12 rows",
    ),
    "all prompts too long": (
        "a.jsonl",
        jsonl([{"prompt": "x" * (100 + i)} for i in range(5)]),
        {},
        "inference.max_model_len",
        "no prompt does, and the shortest of the others has 100",
    ),
    "too few that fit": (
        "a.jsonl",
        jsonl([{"prompt": "x" * (10 + 40 * i)} for i in range(5)]),
        {"max_prompt_tokens": 60},
        "data.max_prompt_tokens",
        "only 2 of 5 prompts do, and the shortest of the others has 90",
    ),
}


def problems(path: Path, config: Mapping[str, Any]) -> list[Problem]:
    typed = DataConfig.model_validate({"path": str(path), **config})
    needed = needs(4, max_model_len=64, limit=typed.max_prompt_tokens)
    return check_data(typed, needed, num_characters)


@pytest.mark.parametrize(("name", "content", "config", "field", "rule"), WRONG.values(), ids=WRONG)
def test_a_data_set_that_cannot_be_used_is_one_problem(
    name: str,
    content: str | bytes | None,
    config: dict[str, Any],
    field: str,
    rule: str,
    tmp_path: Path,
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    [problem] = problems(path, config)

    assert problem.field == field
    assert rule in problem.rule
    assert problem.remedy


@pytest.mark.parametrize("case", ["fewer rows than a batch", "too few that fit", "a null"])
def test_what_is_only_known_with_the_models_tokenizer_is_refused_alike(
    case: str, tmp_path: Path
) -> None:
    name, content, config, field, rule = WRONG[case]
    assert isinstance(content, str)
    (tmp_path / name).write_text(content)
    limit = config.get("max_prompt_tokens")

    with pytest.raises(ConfigurationError) as caught:
        made(tmp_path / name, needs(4, max_model_len=64, limit=limit), **config)

    [problem] = caught.value.problems
    assert problem.field == field
    assert rule in problem.rule


def test_a_file_that_may_not_be_read_is_refused(rows: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    rows.chmod(0)

    [problem] = problems(rows, {})

    assert "must be readable" in problem.rule


def test_files_of_several_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl(ROWS))
    (tmp_path / "a.csv").write_text(csv(ROWS))

    [problem] = problems(tmp_path / "a.*", {})

    assert "must be files of one kind" in problem.rule


def test_a_name_that_is_not_on_the_hub_is_refused() -> None:
    [problem] = problems(Path("nobody/nothing"), {})

    assert problem.field == "data.path"
    assert "must be a data set that can be read" in problem.rule


def test_a_file_that_changes_is_read_again(rows: Path) -> None:
    assert problems(rows, {}) == []
    rows.write_text(jsonl(ROWS[:1]))

    [problem] = problems(rows, {})

    assert "it has 1" in problem.rule
