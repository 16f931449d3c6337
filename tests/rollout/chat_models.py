"""Small tokenizers with the chat templates of several families, made on the spot."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = [
    "The user asked which word they chose, and the assistant answered: it is the third one.",
    "```python\nfor i in range(10):\n    print(i, i * i)\n```\nOutput: 0 1 4 9 16 25",
    '<tool_call>\n{"name": "python", "arguments": {"code": "1 + 1"}}\n</tool_call>',
    "system user assistant tool model start end of turn header\n\n\t  spaces",
]

CHATML = """\
{%- if messages[0]['role'] != 'system' -%}
{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] == 'tool' -%}
{{ '<|im_start|>user\\n<tool_response>\\n' + message['content'] }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- else -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

LLAMA3 = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- set name = 'ipython' if message['role'] == 'tool' else message['role'] -%}
{{- '<|start_header_id|>' + name + '<|end_header_id|>\\n\\n' -}}
{{- message['content'] | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}"""

GEMMA = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{{ raise_exception('System role not supported') }}
{%- endif -%}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{%- set name = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{ '<start_of_turn>' + name + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""

# The system's message goes to the last user's, wherever that is.
MISTRAL = """\
{%- set ns = namespace(system='', last=-1) -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{%- set ns.system = message['content'] + '\\n\\n' -%}
{%- endif -%}
{%- if message['role'] == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}
{{ '[INST] ' + (ns.system if loop.index0 == ns.last else '') + message['content'] + '[/INST]' }}
{%- elif message['role'] == 'assistant' -%}
{{ ' ' + message['content'] | trim + eos_token }}
{%- elif message['role'] == 'tool' -%}
{{ raise_exception('Tool messages need a tool call id') }}
{%- endif -%}
{%- endfor -%}"""

PHI = """\
{%- for message in messages -%}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- else -%}{{ eos_token }}{%- endif -%}"""

ZEPHYR = """\
{%- for message in messages -%}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}"""

# Thinking is kept after the last message of the user, and stripped from turns before it.
THINKING = """\
{%- set ns = namespace(last=-1) -%}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- set content = message['content'] -%}
{%- if message['role'] == 'assistant' and loop.index0 < ns.last and '</think>' in content -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{ '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

# A generation prompt that opens the thinking itself, and no trace of it in earlier turns.
FORCED_THINKING = THINKING.replace(
    "{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\n<think>\\n' }}"
)

ALPACA = """\
{%- for message in messages -%}
{{ '### ' + message['role'] + ':\\n' + message['content'] + '\\n\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '### assistant:\\n' }}{%- endif -%}"""

ONLY_LAST = """\
{{- '<|im_start|>user\\n' + messages[-1]['content'] + '<|im_end|>\\n<|im_start|>assistant\\n' -}}"""

SHOUTING = CHATML.replace(
    "message['content'] + '<|im_end|>", "message['content'] | upper + '<|im_end|>"
)


# As Llama 3's and Qwen's: line breaks are cut off from what follows them.
WORDS = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


@dataclass(frozen=True)
class Family:
    """``end`` ends the model's turns; ``metaspace``: pieces of text with marked spaces, as
    SentencePiece makes them, else bytes."""

    template: str
    end: str
    special: tuple[str, ...]
    metaspace: bool = False
    strips_right: bool = False


IM = ("<|im_start|>", "<|im_end|>")
FAMILIES = {
    "chatml": Family(CHATML, "<|im_end|>", IM),
    "llama3": Family(
        LLAMA3, "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    ),
    "gemma": Family(GEMMA, "<end_of_turn>", ("<start_of_turn>", "<end_of_turn>"), metaspace=True),
    "mistral": Family(MISTRAL, "</s>", ("[INST]", "[/INST]"), metaspace=True),
    "phi": Family(
        PHI,
        "<|end|>",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
        strips_right=True,
    ),
    "zephyr": Family(ZEPHYR, "</s>", (), metaspace=True),
    "thinking": Family(THINKING, "<|im_end|>", IM),
    "forced thinking": Family(FORCED_THINKING, "<|im_end|>", IM),
    "alpaca": Family(ALPACA, "\n\n", ()),
    "only last": Family(ONLY_LAST, "<|im_end|>", IM),
    "shouting": Family(SHOUTING, "<|im_end|>", IM),
}


def save_tokenizer(family: Family, folder: Path) -> Path:
    """Writes the tokenizer, with its template, to a folder that transformers reads."""
    special = ["<s>", "</s>", "<unk>", *family.special]
    if family.metaspace:
        inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        inner.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " ")]
        )
        alphabet = sorted(set("".join(TEXT)))
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(WORDS, behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(TEXT, trainer)
    inner = _with_bytes_as_pieces(inner)
    if family.strips_right:
        inner.add_special_tokens([AddedToken(text, rstrip=True) for text in family.special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=family.template,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
    return folder


def _with_bytes_as_pieces(trained: Tokenizer) -> Tokenizer:
    """A trainer takes pieces that it must have as special tokens only; bytes are no such tokens."""
    content = json.loads(trained.to_str())
    added = content["added_tokens"]
    content["added_tokens"] = [each for each in added if not each["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(content))
