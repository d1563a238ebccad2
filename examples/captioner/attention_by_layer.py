"""Measures the cross-attention of the example captioner, layer by layer.

`python -m examples.captioner.attention_by_layer`: words by `transformers`, maps by the graph
`align`.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import GPT2Tokenizer, VisionEncoderDecoderModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples.captioner.train import OUTPUT
from examples.scenes.scores import TEST_SEED, TokenMap, attention_scores
from export.decoder_graphs.transformer import Align
from export.graphs.source_model import SourceModel


def main() -> None:
    """Prints the shares of every layer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=OUTPUT)
    parser.add_argument("--count", type=int, default=300, help="of pictures (%(default)s)")
    arguments = parser.parse_args()
    observer = Observer(arguments.folder)
    for layer in range(observer.align.decoder.layers):
        observer.align.layer = layer
        scores = attention_scores(observer.observe, arguments.count, TEST_SEED)
        print(
            f"layer {layer}:",
            *(f"  {100 * x:5.1f} % {name}" for name, x in scores.items()),
            sep="\n",
        )


class Observer:
    """Greedy captions with maps, in PyTorch."""

    def __init__(self, folder: Path) -> None:
        model = SourceModel.open(folder)
        align = model.graphs().lowerings["align"].module
        assert isinstance(align, Align)
        self.align = align
        self._grid = model.configuration.encoder.grid
        self._model = VisionEncoderDecoderModel.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer = GPT2Tokenizer.from_pretrained(folder)
        self._processor = ViTImageProcessorPil.from_pretrained(folder)

    def observe(self, pictures: list[Image.Image]) -> list[list[TokenMap]]:
        """Each token before the end token, with its cross-attention map."""
        return [self._observe(picture) for picture in pictures]

    @torch.inference_mode()
    def _observe(self, picture: Image.Image) -> list[TokenMap]:
        pixels = self._processor([picture], return_tensors="pt").pixel_values
        tokens = self._model.generate(pixels, num_beams=1, do_sample=False)
        looked = self.align(torch.from_numpy(np.array(picture))[None], tokens)[0].numpy()
        maps = looked[:, 1:].reshape(-1, *self._grid)  # the class token has no place in the image
        words = self._tokenizer.batch_decode([[token] for token in tokens[0, 1:-1].tolist()])
        return [TokenMap(word, seen) for word, seen in zip(words, maps, strict=False)]


if __name__ == "__main__":
    main()
