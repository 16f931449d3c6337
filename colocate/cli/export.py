"""``colocate export``: a run's trained model as a Hugging Face folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError

from colocate.export import ExportError, export


def export_command(arguments: Sequence[str]) -> int:
    """Returns the exit status: 2 where the arguments are wrong, 1 where writing failed."""
    given = _parser().parse_args(list(arguments))
    try:
        checkpoint = export(
            given.source, given.folder, dtype=given.dtype, base=given.base, which=given.which
        )
    except ExportError as error:
        print(f"colocate export: {error}", file=sys.stderr)
        return 2
    except (OSError, SafetensorError) as error:
        print(
            f"colocate export: {given.folder} cannot be written: {error}. Nothing is left there; "
            "give a folder that can be written, with room for the model",
            file=sys.stderr,
        )
        return 1
    print(f"{checkpoint} is now a Hugging Face model in {given.folder.absolute()}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="colocate export",
        description="Writes a trained model as a Hugging Face folder: weights (adapters merged), "
        "tokenizer, generation settings and a card. DeepSpeed unpickles its files: export only "
        "checkpoints that you trust.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="RUN_DIR",
        help="a run's folder, or a checkpoint",
    )
    parser.add_argument("folder", type=Path, metavar="OUT_DIR", help="where to; made if missing")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of the weights (default: model.dtype of the run)",
    )
    parser.add_argument(
        "--which",
        choices=("last", "best"),
        default="last",
        help="of a run's checkpoints: the newest, or the best by evaluation, or by mean reward "
        "where the run had none",
    )
    parser.add_argument(
        "--base",
        metavar="MODEL",
        help="the model that the run began with, where its folder does not say it",
    )
    return parser
