"""Trains the example of Show, Attend and Tell: our own network, a small CNN and an LSTM.

`transformers` has no such model, so the exported module itself is trained, and the folder
holds its weights under our own names.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image
from transformers import GPT2Tokenizer

from examples import checkpoint
from examples.scenes.rendering import SIDE
from examples.scenes.scores import TEST_SCENES, TEST_SEED, attention_scores, caption_scores
from examples.show_attend_tell.soft_captioner import (
    captions_of,
    fast_pixels,
    observer,
    read_folder,
    save_weights,
    start_folder,
    word_entropy,
)
from examples.training.checkpoint_folder import run_line, swap_words_flag, write_card
from examples.training.loop import (
    CaptionBatches,
    PatchClassification,
    command_line,
    train_in_stages,
)
from export.models.captioners.show_attend_tell import ShowAttendTell
from export.training.captions import IGNORED

MODULE = "examples.show_attend_tell.train"
OUTPUT = checkpoint("example-show-attend-tell")
_TOKENIZER = checkpoint("example-captioner")  # same captions as example-captioner


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    parser = command_line(__doc__, OUTPUT, steps=2500)
    swap_words_flag(parser)
    parser.add_argument(
        "--look-everywhere",
        type=float,
        default=0.001,
        metavar="WEIGHT",
        help="lambda of equation 14, the doubly stochastic penalty (%(default)s)",
    )
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    folder = arguments.output
    tokenizer = GPT2Tokenizer.from_pretrained(_TOKENIZER)
    model = read_folder(folder) if arguments.resume else start_folder(folder, tokenizer)

    captioning = Captioning(model, tokenizer, arguments)
    sizes = SIDE // model.encoder.sizes.grid[0], model.encoder.sizes.width
    pretraining = PatchClassification(model.encoder, captioning.cells, *sizes, arguments)
    pictures, minutes = train_in_stages(model, captioning.loss, pretraining, arguments)
    save_weights(model, folder)
    report(folder, run_line(MODULE, arguments, "pictures", pictures, minutes), arguments.resume)


class Captioning:
    """The loss of the canonical captions of freshly drawn training scenes."""

    def __init__(
        self, model: ShowAttendTell, tokenizer: GPT2Tokenizer, arguments: argparse.Namespace
    ) -> None:
        # a third faster; the annotations of `Module.to` have no memory format
        self._model: ShowAttendTell = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._batches = CaptionBatches(tokenizer, arguments)
        self._evenness = arguments.look_everywhere
        self._has_captions = arguments.resume

    def loss(self, step: int, batch: int) -> torch.Tensor:
        """Mean cross entropy over the caption tokens of the next scenes, and the penalty (14)."""
        self._has_captions = True
        pictures, read, labels = self._batches.draw(step, batch)
        logits, attention = teacher_forced(self._model, fast_pixels(pictures), read)
        entropy = word_entropy(logits, labels)
        is_word = (labels != IGNORED)[..., None]
        looked = (attention * is_word).sum(1)  # (B, N): over the words of a caption
        return entropy + self._evenness * (1 - looked).square().sum(-1).mean()

    def cells(self, pictures: list[Image.Image]) -> torch.Tensor:
        """Annotations of pictures with patch labels, (B, N, D).

        While captions are trained too, batch normalisation keeps the statistics of their pictures.
        """
        encoder = self._model.encoder
        encoder.train(not self._has_captions)
        features = encoder.features(fast_pixels(pictures))
        encoder.train()
        return features


def teacher_forced(
    model: ShowAttendTell, pixels: torch.Tensor, read: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (B, T, V) and attention (B, T, N) with teacher forcing on given words (B, T)."""
    annotations = model.encoder(pixels)
    keys = model.decoder.attention.project_keys(annotations)
    states = model.decoder.initial_states(annotations)
    logits, attention = [], []
    for tokens in read.unbind(dim=1):
        scores, states, weights = model.decoder(tokens, states, annotations, keys)
        logits.append(scores)
        attention.append(weights)
    return torch.stack(logits, dim=1), torch.stack(attention, dim=1)


def report(folder: Path, run: str, is_resumed: bool) -> None:
    """Scores the saved folder on held-out scenes and writes the model card."""
    observe = observer(folder)
    scores = caption_scores(captions_of(observe))
    scores |= attention_scores(observe, TEST_SCENES, TEST_SEED)
    write_card(
        folder,
        run,
        scores,
        is_resumed=is_resumed,
        name="example-show-attend-tell",
        pipeline="image-to-text",
        summary="Describes rendered scenes of one or two things before a background, such as\n"
        '"a large red striped circle to the left of a small blue square on a green background",\n'
        "with an attention map for each word.",
        architecture="Show, Attend and Tell (Xu et al. 2015): seven convolutions to an 8 x 8 grid"
        " of width 160, soft attention of width 128 and an LSTM of width 256",
    )


if __name__ == "__main__":
    main()
