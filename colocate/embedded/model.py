"""Makes the embedded model: a small Qwen3-architecture transformer over the task's characters.

Heavy imports (torch, transformers) are local to the functions: the task itself needs neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colocate.config import EmbeddedModelConfig

END_OF_TEXT = "<|end|>"
CHARACTERS = "0123456789-?\nlowhigbad"


def build_embedded_model(
    folder: Path, config: EmbeddedModelConfig, *, seed: int, dtype: str, max_model_len: int
) -> Path:
    """Writes a fresh Hugging Face model folder (weights, tokenizer) and returns it.

    The same arguments give the same bytes, so every process of a run may load it by path.

    Args:
        folder: Made if missing; existing files of a model are overwritten.
        config: The model's shape.
        seed: Of the initial weights.
        dtype: torch's name of the weights' type, as ``"float32"``.
        max_model_len: Longest context, in tokens.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # it would draw over the run's own display
    tokenizer = _character_tokenizer(max_model_len)
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=max_model_len,
        tie_word_embeddings=config.tie_word_embeddings,
        initializer_range=config.initializer_range,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(shape).to(getattr(torch, dtype))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def character_tokenizer() -> Any:
    """A ``tokenizers.Tokenizer`` with one token a character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: index for index, character in enumerate(dict.fromkeys(CHARACTERS))}
    vocabulary[END_OF_TEXT] = len(vocabulary)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=END_OF_TEXT))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _character_tokenizer(max_model_len: int):  # type: ignore[no-untyped-def]
    """Transformers' wrapping of it; the end-of-text token doubles as padding."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=character_tokenizer(),
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=max_model_len,
        clean_up_tokenization_spaces=False,
    )
