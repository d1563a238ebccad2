"""Training batches of the example captioners: freshly rendered scenes, decoder inputs and labels.

Where a colour and a texture never occur with a circle, a decoder learns from the words alone that
no circle can follow. `swap_words` makes the words unreliable, so that the decoder must attend to
the image (Bowman et al. 2015,
arXiv:1511.06349, section 3.1, drop words for the same reason).
"""

import argparse
import sys

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import GPT2Tokenizer

from examples.scenes.captions import caption
from examples.scenes.rendering import render
from examples.scenes.scene import COLOURS, SHAPES, SIZES, TEXTURE_NAMES, Scene, scenes
from export.training.captions import END_OF_TEXT, IGNORED


class CaptionBatches:
    """Batches of training pictures with their canonical captions.

    Args:
        tokenizer: Its end token also starts every caption.
        arguments: `seed`, and `swap_words`: the share of wrong attributes in the decoder's input.
    """

    def __init__(self, tokenizer: GPT2Tokenizer, arguments: argparse.Namespace) -> None:
        self._tokenizer = tokenizer
        self._scenes = scenes("train", sys.maxsize, arguments.seed)
        self._swap_share = arguments.swap_words
        self._rng = np.random.default_rng([arguments.seed, 5])
        self._kindred = _kindred_tokens(tokenizer)

    def draw(self, step: int, batch: int) -> tuple[list[Image.Image], torch.Tensor, torch.Tensor]:
        """The next `batch` pictures, decoder inputs (B, T) and labels (B, T)."""
        drawn = [next(self._scenes) for _ in range(batch)]
        pictures = [render(scene, step * batch + index) for index, scene in enumerate(drawn)]
        labels = self._labels(drawn)
        return pictures, self._read_so_far(labels), labels

    def _read_so_far(self, labels: torch.Tensor) -> torch.Tensor:
        """The decoder's input, (B, T): the labels shifted right, some attributes swapped."""
        start = self._tokenizer.bos_token_id
        read = nn.functional.pad(labels[:, :-1], (1, 0), value=start)
        read = read.masked_fill(read == IGNORED, start)
        if self._swap_share == 0:
            return read
        for row, column in np.argwhere(self._rng.random(read.shape) < self._swap_share):
            kindred = self._kindred.get(int(read[row, column]))
            if kindred is not None:
                read[row, column] = int(self._rng.choice(kindred))
        return read

    def _labels(self, drawn: list[Scene]) -> torch.Tensor:
        """Caption tokens with an end token, (B, T) int64, filled up with the ignored label."""
        rows = self._tokenizer([caption(scene) + END_OF_TEXT for scene in drawn])["input_ids"]
        tensors = [torch.tensor(row) for row in rows]
        return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=IGNORED)


def _kindred_tokens(tokenizer: GPT2Tokenizer) -> dict[int, list[int]]:
    """For each token that is an attribute: the tokens of its kind, such as all the colours."""
    kindred: dict[int, list[int]] = {}
    for names in (SIZES, COLOURS, TEXTURE_NAMES, SHAPES):
        tokens = [tokenizer(f" {name}")["input_ids"] for name in names if name != "plain"]
        family = [token for (token,) in tokens]
        kindred |= dict.fromkeys(family, family)
    return kindred
