"""The names under which a model's weights are published: those of its checkpoint."""

from __future__ import annotations

from pathlib import Path

_NOT_PARAMETERS = (".rotary_emb.inv_freq",)
"""Tables that old checkpoints carry although every implementation computes them."""


def checkpoint_names(model: str, *, tied_embeddings: bool) -> list[str]:
    """Sorted names of the tensors in a model's ``*.safetensors`` files; reads headers only.

    vLLM's own parameters are fused (``qkv_proj``) and sharded, so a checkpoint's names are what
    ``load_weights`` takes. With tied embeddings the output head is not a weight of its own, even
    where a checkpoint repeats it.

    Args:
        model: A folder, or a hub name that has been downloaded (vLLM does so to load it).

    Raises:
        FileNotFoundError: a model without safetensors files.
    """
    from safetensors import safe_open

    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(
            snapshot_download(model, allow_patterns=["*.safetensors"], local_files_only=True)
        )
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(
            f"model.path: must hold *.safetensors files, but {folder} has none; "
            "save the model with save_pretrained"
        )
    names: set[str] = set()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            names.update(tensors.keys())
    names = {name for name in names if not name.endswith(_NOT_PARAMETERS)}
    if tied_embeddings:
        names.discard("lm_head.weight")
    return sorted(names)
