"""A run's checkpoint as a Hugging Face folder, for transformers, vLLM, or a run that goes on."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from colocate.checkpoints import CheckpointError, find_best, find_checkpoint, read_state
from colocate.core.types import Version

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Precision = Literal["float32", "bfloat16"]


class ExportError(Exception):
    """What was named cannot be exported, or not to there. Nothing was written."""


def export(
    source: Path,
    target: Path,
    *,
    dtype: Precision | None = None,
    base: str | None = None,
    which: Literal["last", "best"] = "last",
) -> Path:
    """Writes model, tokenizer, generation settings and a card; returns the checkpoint it took.

    DeepSpeed unpickles its own files: export only checkpoints that you trust.

    Args:
        source: A checkpoint, or a run's folder.
        target: A folder that does not exist yet, or is empty.
        dtype: Of the weights; None: as the run's engine computed.
        base: The model that the run began with, folder or hub name; None: as the run's folder
            says.
        which: Of a run's folder: the newest checkpoint, or the best one that was rated.

    Raises:
        ExportError: naming what is wrong, and the remedy.
        OSError, SafetensorError: the target cannot be written; nothing is left there.
    """
    checkpoint, version = _find(_best_of(source) if which == "best" else source)
    run_dir = checkpoint.parent.parent
    config = _read_config(run_dir)
    base = base or _base_of(run_dir, config)
    dtype = dtype or config.get("model", {}).get("dtype", "float32")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(f"{target} exists already; give a folder that does not, or an empty one")
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)  # what cannot be written is found before anything is read
        _write_model(checkpoint, base, partial, dtype)
        card = _card(run_dir, base=base, version=version, dtype=dtype, config=config)
        (partial / "README.md").write_text(card)
        if target.exists():
            target.rmdir()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return checkpoint


def _best_of(run_dir: Path) -> Path:
    try:
        best = find_best(run_dir / "checkpoints")
    except CheckpointError as error:
        raise ExportError(str(error)) from error
    if best is None:
        raise ExportError(
            f"{run_dir} has no checkpoint that was rated the best: give a run's folder whose "
            "checkpoint.keep_best was true and that wrote a checkpoint, or take --which last"
        )
    return best


def _find(source: Path) -> tuple[Path, Version]:
    try:
        checkpoint = find_checkpoint(str(source), source)
    except CheckpointError as error:
        raise ExportError(
            f"{source} is neither a checkpoint nor a run's folder that has one; a checkpoint is "
            "a folder like RUN_DIR/checkpoints/step_000012"
        ) from error
    assert checkpoint is not None
    try:
        version = read_state(checkpoint).version
    except CheckpointError as error:
        raise ExportError(str(error)) from error
    return checkpoint.absolute(), version


def _read_config(run_dir: Path) -> dict[str, Any]:
    path = run_dir / ".hydra" / "config.yaml"
    if not path.is_file():
        return {}
    config = yaml.safe_load(path.read_text())
    return config if isinstance(config, dict) else {}


def _base_of(run_dir: Path, config: dict[str, Any]) -> str:
    if (run_dir / "model" / "config.json").is_file():
        return str(run_dir / "model")
    path = config.get("model", {}).get("path")
    if path is None:
        raise ExportError(
            f"{run_dir} does not say which model its run began with: it has neither model/ nor "
            "model.path in .hydra/config.yaml; name it with --base"
        )
    return str(path)


def _write_model(checkpoint: Path, base: str, folder: Path, dtype: Precision) -> None:
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
    )

    from colocate.adapters.deepspeed.consolidate import consolidated_weights

    try:
        weights = consolidated_weights(checkpoint / "trainer")
    except ValueError as error:
        raise ExportError(str(error)) from error
    try:
        shape = AutoConfig.from_pretrained(base)
        tokenizer = AutoTokenizer.from_pretrained(base)
    except (OSError, ValueError) as error:
        raise ExportError(
            f"the model that the run began with, {base}, cannot be read: {error}; name it with "
            "--base"
        ) from error
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    _fill(model, weights, base)
    model.to(getattr(torch, dtype))
    with suppress(OSError):  # without one, transformers' own defaults are written
        model.generation_config = GenerationConfig.from_pretrained(base)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _fill(model: PreTrainedModel, weights: dict[str, Any], base: str) -> None:
    """Takes all weights over; those that the model ties to others need not be there."""
    wrong = [
        f"{name} has {tuple(weights[name].shape)}, not {tuple(value.shape)}"
        for name, value in model.state_dict().items()
        if name in weights and weights[name].shape != value.shape
    ]
    if not wrong:
        parameters = {name for name, _ in model.named_parameters()}
        result = model.load_state_dict(weights, strict=False)
        wrong = [f"{name} is missing" for name in result.missing_keys if name in parameters]
        wrong += [f"{name} is unknown" for name in result.unexpected_keys]
    if wrong:
        shown = "; ".join(wrong[:3]) + (f"; {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise ExportError(f"the checkpoint's weights are not those of {base}: {shown}")
    model.tie_weights()


def _card(run_dir: Path, *, base: str, version: Version, dtype: str, config: dict[str, Any]) -> str:
    """A model card: where the weights come from, what they were worth, and how they were made."""
    lines = ["---", "library_name: transformers", "tags: [reinforcement-learning, colocate]"]
    if not Path(base).exists():
        lines.append(f"base_model: {base}")
    lines += [
        "---",
        "",
        f"# {run_dir.name}, after {version} training steps",
        "",
        f"Trained with colocate from `{Path(base).name}`; weights in {dtype}.",
        "",
    ]
    summary = run_dir / "summary.json"
    reward = json.loads(summary.read_text()).get("reward", {}) if summary.is_file() else {}
    if reward.get("first") is not None:
        lines += [
            "| mean reward of the run's | |",
            "| --- | --- |",
            f"| first step | {reward['first']:.3f} |",
            f"| last step | {reward['last']:.3f} |",
            f"| best step | {reward['best']:.3f} |",
            "",
        ]
    if config:
        lines += ["## Configuration", "", "```yaml", yaml.safe_dump(config).rstrip(), "```", ""]
    return "\n".join(lines)
