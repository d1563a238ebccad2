"""Measures a Marian folder's alignments layer by layer.

python -m examples.es_en.alignment_by_layer

Words are separated by spaces; the attention of a word is the sum over its tokens.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import MarianMTModel, MarianTokenizer

from examples.es_en.card import CHECKPOINT
from examples.es_en.scores import inversion_shares
from export.decoder_graphs.transformer import Align
from export.graphs.source_model import SourceModel
from export.training.functions import Reading

_WORD_START = "▁"


def main() -> None:
    """Prints the shares of every layer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=CHECKPOINT)
    parser.add_argument("--count", type=int, default=1000, help="of sentences (%(default)s)")
    arguments = parser.parse_args()
    reader = Reader(arguments.folder)
    for layer in range(reader.align.decoder.layers):
        reader.align.layer = layer
        own, other = inversion_shares(reader.read, "held_out", arguments.count)
        print(f"layer {layer}: {own:6.1%} aligned with their own word, {other:6.1%} with the other")


class Reader:
    """Greedy translations with alignments, in PyTorch."""

    def __init__(self, folder: Path) -> None:
        align = SourceModel.open(folder).graphs().lowerings["align"].module
        assert isinstance(align, Align)
        self.align = align
        self._tokenizer = MarianTokenizer.from_pretrained(folder)
        self._model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
        self._known: dict[str, torch.Tensor] = {}

    def read(self, texts: list[str]) -> list[Reading]:
        """Translations with the attention of each word."""
        return [self._read(text) for text in texts]

    @torch.inference_mode()
    def _read(self, text: str) -> Reading:
        inputs = self._tokenizer([text], return_tensors="pt")
        source = inputs.input_ids
        if text not in self._known:
            self._known[text] = self._model.generate(**inputs, num_beams=1)
        tokens = self._known[text]
        lengths = torch.tensor([source.shape[1]], dtype=torch.int32)
        looked = self.align(source, lengths, tokens)[0, :-1].numpy()  # one row per generated token
        words, written = self._word_numbers(source[0]), self._word_numbers(tokens[0, 1:])
        by_word = np.zeros((max(written) + 1, max(words) + 1))
        for row, word in zip(looked, written, strict=True):
            np.add.at(by_word[word], words, row)
        by_word /= by_word.sum(axis=1, keepdims=True)
        return Reading(self._tokenizer.decode(tokens[0], skip_special_tokens=True), by_word)

    def _word_numbers(self, ids: torch.Tensor) -> list[int]:
        """The word number of each token; the end token is a word of its own."""
        pieces = self._tokenizer.convert_ids_to_tokens(ids)
        starts = [p.startswith(_WORD_START) or p == self._tokenizer.eos_token for p in pieces]
        return [max(number - 1, 0) for number in np.cumsum(starts).tolist()]


if __name__ == "__main__":
    main()
