"""A run's folder with a checkpoint, as far as a model is made of it; no run is needed for that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from colocate.cli.compose import plan_jobs
from colocate.cli.train import parse
from colocate.config import EmbeddedModelConfig
from colocate.embedded.model import build_embedded_model

VERSION = 7


def leave_run(folder: Path) -> Path:
    """What a ZeRO 0 run leaves in ``folder/run``: its first model, and a checkpoint of the weights
    of another one, which lies in ``folder/trained``."""
    run = folder / "run"
    first, trained = (
        build_embedded_model(
            place, EmbeddedModelConfig(), seed=seed, dtype="float32", max_model_len=64
        )
        for place, seed in ((run / "model", 1), (folder / "trained", 2))
    )
    assert first == run / "model"
    add_checkpoint(run, trained, VERSION)
    (run / ".hydra").mkdir()
    config = {"model": {"path": None, "dtype": "float32"}, "seed": 1}
    (run / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    summary = {"reward": {"first": 0.1, "last": 0.75, "best": 0.8125}}
    (run / "summary.json").write_text(json.dumps(summary))
    return run


def add_checkpoint(run: Path, model: Path, version: int) -> None:
    """A checkpoint of that model's weights."""
    checkpoint = run / "checkpoints" / f"step_{version:06d}"
    (checkpoint / "trainer" / "deepspeed").mkdir(parents=True)
    state: dict[str, Any] = {
        "schema": 1,
        "version": version,
        "cursor": {"next_position": 0, "pending": []},
    }
    (checkpoint / "state.json").write_text(json.dumps(state))
    description = {"format": 1, "version": version, "zero_stage": 0, "num_ranks": 1}
    (checkpoint / "trainer" / "trainer.json").write_text(json.dumps(description))
    weights = AutoModelForCausalLM.from_pretrained(model).state_dict()
    torch.save(
        {"module": {f"model.{name}": value for name, value in weights.items()}},
        checkpoint / "trainer" / "deepspeed" / "mp_rank_00_model_states.pt",
    )


def configure(run: Path, *overrides: str) -> None:
    """Gives it the quickstart's whole configuration, on CPU, with overrides."""
    arguments = ["+experiment=quickstart", "device=cpu", *overrides]
    (job,) = plan_jobs(parse(arguments)).jobs
    (run / ".hydra" / "config.yaml").write_text(yaml.safe_dump(job.tree))


def greedy(model: Path, prompt: str, most: int) -> str:
    """What the model's most likely tokens are, up to a line's end: written down plainly."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model)
    token_ids = tokenizer(prompt, add_special_tokens=False).input_ids
    said: list[int] = []
    with torch.inference_mode():
        while len(said) < most and not tokenizer.decode(said).endswith("\n"):
            logits = network(torch.tensor([token_ids + said])).logits[0, -1]
            said.append(int(logits.argmax()))
            if said[-1] == tokenizer.eos_token_id:
                break
    return str(tokenizer.decode(said))
