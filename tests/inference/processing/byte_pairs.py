"""Byte-level BPE as GPT-2 and its relatives have it, trained in a test on a few lines."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, trainers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer


def byte_pairs(
    size: int,
    special: Sequence[str],
    lines: Sequence[str],
    alphabet: Sequence[str] = (),
    words: PreTokenizer | None = None,
) -> Tokenizer:
    """A tokenizer of that many tokens, without a post-processor.

    Args:
        special: Its first tokens.
        alphabet: Bytes that are tokens; by default all.
        words: How a text is divided; by default as GPT-2 does it, without a space in front.
    """
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = words or ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=list(alphabet) or ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(lines, trainer)
    return made
