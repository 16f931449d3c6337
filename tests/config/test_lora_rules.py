"""What may be trained by adapters, and what they weigh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from colocate.cli.compose import plan_jobs
from colocate.cli.train import parse
from colocate.config import EmbeddedModelConfig, LoraConfig
from colocate.preflight.lora import num_elements
from tests.config.trees import fields_of, problem_of, problems_of

TARGETS = "model.lora.target_modules"


def lora(**values: Any) -> dict[str, Any]:
    return {"model": {"embedded": {}, "lora": values}}


@pytest.mark.parametrize(
    "targets", ["all-linear", ["q_proj"], ["self_attn.q_proj", "layers.1.mlp.up_proj"]]
)
def test_layers_of_the_model_may_have_an_adapter(targets: Any) -> None:
    assert fields_of(lora(target_modules=targets)) == set()


def test_a_layer_that_the_model_lacks_is_named_with_the_nearest_that_it_has() -> None:
    problem = problem_of(lora(target_modules=["q_porj", "v_proj"]))
    assert problem.field == TARGETS
    assert problem.rule.endswith("could have an adapter: q_porj")
    assert problem.remedy.startswith("did you mean `q_proj`? The layers are called down_proj, gate")


@pytest.mark.parametrize("target", ["lm_head", "model.embed_tokens"])
def test_embeddings_and_heads_have_no_adapter(target: str) -> None:
    problem = problem_of(lora(target_modules=["q_proj", target]))
    assert problem.field == TARGETS
    assert f"({target})" in problem.rule


def test_norms_and_biases_are_no_layers(tmp_path: Path) -> None:
    shapes = {"model.layers.0.mlp.up_proj.weight": (6, 4), "model.layers.0.norm.weight": (4,)}
    save_file(
        {name: np.zeros(shape, np.float16) for name, shape in shapes.items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    values = {"path": str(tmp_path), "lora": {"target_modules": ["norm"]}}
    assert problem_of({"model": values}).remedy == "The layers are called up_proj"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"target_modules": []}, TARGETS),
        ({"target_modules": "q_proj"}, TARGETS),
        ({"target_modules": ["q_proj", 3]}, TARGETS),
        ({"rank": 0}, "model.lora.rank"),
        ({"alpha": -1.0}, "model.lora.alpha"),
        ({"dropout": 0.1}, "model.lora.dropout"),
        ({"modules_to_save": ["lm_head"]}, "model.lora.modules_to_save"),
        ({"use_dora": True}, "model.lora.use_dora"),
    ],
)
def test_what_adapters_cannot_be_is_one_problem(values: dict[str, Any], field: str) -> None:
    assert [problem.field for problem in problems_of(lora(**values))] == [field]


def test_adapters_are_counted_as_the_trainer_makes_them() -> None:
    model = EmbeddedModelConfig(hidden_size=8, head_dim=4, intermediate_size=10, num_layers=3)
    whole = num_elements(None, model.model_dump(), None)
    assert whole is not None
    # Queries and outputs are 16 wide, keys and values 8.
    sides = 2 * (8 + 16) + 2 * (8 + 8) + 3 * (8 + 10)
    found = num_elements(None, model.model_dump(), {"rank": 5})
    assert found == (whole[0] + 3 * 5 * sides, 3 * 5 * sides)
    some = num_elements(None, model.model_dump(), {"rank": 5, "target_modules": ["down_proj"]})
    assert some == (whole[0] + 3 * 5 * 18, 3 * 5 * 18)


@pytest.mark.usefixtures("two_gpus")
def test_a_model_too_large_to_be_trained_whole_fits_with_adapters(tmp_path: Path) -> None:
    """A billion parameters: 16 GB to train whole, 2 GB beside adapters, on a GPU of 10 GB."""
    path = tmp_path / "model.safetensors"
    header = {"up_proj.weight": {"dtype": "F16", "shape": [50_000, 20_000]}}
    header["up_proj.weight"]["data_offsets"] = [0, 2 * 10**9]
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 2 * 10**9)
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    model = {"path": str(tmp_path), "dtype": "bfloat16"}
    values = {"device": "cuda", "memory.host_budget_bytes": 10**11}
    assert fields_of({**values, "model": model}) == {"trainer.num_ranks"}
    assert fields_of({**values, "model": {**model, "lora": {"rank": 8}}}) == set()


def test_a_command_line_gives_adapters_as_a_mapping() -> None:
    plan = plan_jobs(
        parse(["+experiment=quickstart", "model.lora={rank: 4, target_modules: [q_proj]}"])
    )
    assert plan.problems == ()
    given = plan.jobs[0].tree["model"]["lora"]
    assert LoraConfig.model_validate(given) == LoraConfig(rank=4, target_modules=("q_proj",))


def test_rank_stabilized_adapters_are_scaled_by_the_root_of_the_rank() -> None:
    assert LoraConfig(rank=4, alpha=8.0).scale == 2.0
    assert LoraConfig(rank=4, alpha=8.0, rank_stabilized=True).scale == 4.0
