"""A tokenizer of 64 tokens with the special tokens of a conversation, and a chat template."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>' + message['content'] + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>"]


def chat_tokenizer() -> Tokenizer:
    """Byte-level BPE of 64 tokens that adds a start token of its own to plain texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=64,
        show_progress=False,
        special_tokens=SPECIAL,
        initial_alphabet=list("abc|<>Ġsuer"),
    )
    tokenizer.train_from_iterator(["abba caba bac ab ba cab abc " * 3], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer
