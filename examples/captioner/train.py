"""Trains the example captioner: a small ViT + GPT-2 in Hugging Face's VisionEncoderDecoder format.

Trained and saved with `transformers`, so that our loader is tested on a folder that the
library wrote.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image
from transformers import GPT2Tokenizer, VisionEncoderDecoderModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples import checkpoint
from examples.scenes.rendering import SIDE
from examples.scenes.scene import caption, scenes
from examples.scenes.scores import caption_scores
from examples.training.checkpoint_folder import (
    run_line,
    save_half,
    start,
    swap_words_flag,
    write_card,
)
from examples.training.loop import (
    CaptionBatches,
    PatchClassification,
    command_line,
    pixel_tensor,
    train_in_stages,
)
from export.training.captions import build_model, build_tokenizer, captioner

MODULE = "examples.captioner.train"
OUTPUT = checkpoint("example-captioner")
_TOKENIZER_SCENES = 20_000
_VOCABULARY = 512
_MAX_TOKENS = 32


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    parser = command_line(__doc__, OUTPUT, steps=3000)
    swap_words_flag(parser)
    arguments = parser.parse_args()
    folder = start(arguments)
    processor = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    processor.save_pretrained(folder)
    if arguments.resume:
        tokenizer = GPT2Tokenizer.from_pretrained(folder)
        model = VisionEncoderDecoderModel.from_pretrained(folder, dtype=torch.float32)
    else:
        captions = (caption(scene) for scene in scenes("train", _TOKENIZER_SCENES, arguments.seed))
        tokenizer = build_tokenizer(folder, captions, _VOCABULARY, _MAX_TOKENS)
        model = build_model(tokenizer, side=SIDE, max_tokens=_MAX_TOKENS)

    captioning = Captioning(model, tokenizer, processor, arguments)
    pretraining = PatchClassification.of_vit(model.encoder, captioning.pixels, arguments)
    pictures, minutes = train_in_stages(model, captioning.loss, pretraining, arguments)
    save_half(model, folder)
    report(folder, run_line(MODULE, arguments, "pictures", pictures, minutes), arguments.resume)


class Captioning:
    """The loss of the canonical captions of freshly drawn training scenes."""

    def __init__(
        self,
        model: VisionEncoderDecoderModel,
        tokenizer: GPT2Tokenizer,
        processor: ViTImageProcessorPil,
        arguments: argparse.Namespace,
    ) -> None:
        self._model = model
        self._processor = processor
        self._batches = CaptionBatches(tokenizer, arguments)

    def loss(self, step: int, batch: int) -> torch.Tensor:
        """Mean cross entropy over the caption tokens of the next `batch` scenes."""
        pictures, read, labels = self._batches.draw(step, batch)
        return self._model(
            pixel_values=self.pixels(pictures), labels=labels, decoder_input_ids=read
        ).loss

    def pixels(self, pictures: list[Image.Image]) -> torch.Tensor:
        """The pictures, preprocessed as in the saved image recipe."""
        return pixel_tensor(pictures, self._processor.image_mean, self._processor.image_std)


def report(folder: Path, run: str, is_resumed: bool) -> None:
    """Scores the saved folder on held-out scenes and writes the model card."""
    caption_all = captioner(folder)
    scores = caption_scores(caption_all)
    write_card(
        folder,
        run,
        scores,
        is_resumed=is_resumed,
        name="example-captioner",
        pipeline="image-to-text",
        summary="Describes rendered scenes of one or two things before a background, such as\n"
        '"a large red striped circle to the left of a small blue square on a green background".',
        architecture="`VisionEncoderDecoderModel`: ViT (4 layers of width 160, patches of 8 pixels)"
        " and GPT-2 (2 layers of width 128, byte-level BPE)",
    )


if __name__ == "__main__":
    main()
