"""A model's size is known before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from colocate.preflight.model_size import ModelSize, model_size


def write(path: Path, **shapes: tuple[int, ...]) -> None:
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, path)


def test_a_folder_is_measured_in_elements_whatever_their_type(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", a=(3, 4), b=(5,))
    (tmp_path / "config.json").write_text("{}")

    assert model_size(str(tmp_path), None) == ModelSize(parameters=17, largest=(12, 5))


def test_files_that_the_index_does_not_list_do_not_count(tmp_path: Path) -> None:
    write(tmp_path / "part-1.safetensors", a=(2,))
    write(tmp_path / "part-2.safetensors", b=(3,))
    write(tmp_path / "consolidated.safetensors", everything=(5,))
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    assert model_size(str(tmp_path), None) == ModelSize(parameters=5, largest=(3, 2))


@pytest.mark.parametrize(("tied", "parameters"), [(True, 8), (False, 16)])
def test_a_tied_head_that_is_stored_all_the_same_counts_once(
    tied: bool, parameters: int, tmp_path: Path
) -> None:
    save_file(
        {name: np.zeros(8, np.float16) for name in ("embed.weight", "lm_head.weight")},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))

    size = model_size(str(tmp_path), None)

    assert size is not None
    assert size.parameters == parameters


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all"])
def test_a_folder_that_cannot_be_read_has_no_size(content: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)

    assert model_size(str(tmp_path), None) is None


def test_a_name_on_the_hub_has_no_size() -> None:
    assert model_size("some/model", None) is None
