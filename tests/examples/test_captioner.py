"""Training batches of the captioners."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from transformers import GPT2Tokenizer

from examples.captioner import train as train_captioner
from examples.scenes.scene import COLOURS, SHAPES, SIZES, TEXTURE_NAMES
from examples.training.loop import CaptionBatches
from export.training.captions import END_OF_TEXT, IGNORED

ATTRIBUTES = [*SIZES, *COLOURS, *TEXTURE_NAMES[1:], *SHAPES]


@pytest.fixture(scope="module")
def tokenizer() -> GPT2Tokenizer:
    return GPT2Tokenizer.from_pretrained(Path(train_captioner.OUTPUT))


def batch(tokenizer: GPT2Tokenizer, swap_words: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(read, labels) of eight scenes."""
    batches = CaptionBatches(tokenizer, Namespace(seed=1, swap_words=swap_words))
    pictures, read, labels = batches.draw(step=1, batch=8)
    assert len(pictures) == len(read) == len(labels) == 8
    return read, labels


def test_decoder_input_is_the_labels_shifted_right(tokenizer: GPT2Tokenizer):
    read, labels = batch(tokenizer, swap_words=0)
    end = tokenizer.eos_token_id
    assert (read[:, 0] == end).all()
    is_label = labels[:, :-1] != IGNORED
    assert torch.equal(read[:, 1:][is_label], labels[:, :-1][is_label])
    assert all(END_OF_TEXT in tokenizer.decode(row[row != IGNORED]) for row in labels)


def test_swapped_words_keep_their_kind(tokenizer: GPT2Tokenizer):
    read, labels = batch(tokenizer, swap_words=1)
    kinds = {word: kind for kind in (SIZES, COLOURS, TEXTURE_NAMES, SHAPES) for word in kind}
    swapped = 0
    for given, wanted in zip(read[:, 1:].flatten(), labels[:, :-1].flatten(), strict=True):
        if wanted == IGNORED:
            continue
        word, truth = tokenizer.decode([given]).strip(), tokenizer.decode([wanted]).strip()
        if truth in ATTRIBUTES:
            assert kinds[word] == kinds[truth]
            swapped += word != truth
        else:
            assert word == truth
    assert swapped > 20
