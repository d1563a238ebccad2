"""A tokenizer of 64 tokens with the special tokens of a conversation, and a chat template."""

from __future__ import annotations

from tokenizers import Tokenizer, processors

from tests.inference.processing.tokenizer_files import byte_pairs

TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>' + message['content'] + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>"]


def chat_tokenizer() -> Tokenizer:
    """Byte-level BPE of 64 tokens that adds a start token of its own to plain texts."""
    lines = ["abba caba bac ab ba cab abc " * 3]
    tokenizer = byte_pairs(64, SPECIAL, lines, alphabet="abc|<>Ġsuer")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer
