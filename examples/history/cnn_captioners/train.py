"""Trains the history of captioners on one CNN: two LSTMs and a Transformer.

All learn from the same pictures, in one run: what differs is how words read a picture. The
convolutions that they share are not trained (`cnn_captioners.py`).
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from transformers import GPT2Tokenizer

from examples.history.cnn_captioners.networks import (
    SHARED_FROM,
    SYSTEMS,
    System,
    observer,
    save,
    shared_convolutions,
    start,
)
from examples.scenes.scores import (
    TEST_SCENES,
    TEST_SEED,
    attention_scores,
    caption_exact_match,
    caption_words_right,
    swapped_caption_match,
)
from examples.show_attend_tell.soft_captioner import captions_of, fast_pixels, word_entropy
from examples.training.checkpoint_folder import (
    run_line,
    swap_words_flag,
    training_flags,
    write_card,
)
from examples.training.loop import CaptionBatches, Recipe, train

MODULE = "examples.history.cnn_captioners.train"
_BATCH, _PEAK_LR = 48, 2e-3


def main() -> None:
    """Trains, saves, scores and describes the checkpoints."""
    parser = training_flags(__doc__, SYSTEMS[0].folder.parent, steps=700)
    swap_words_flag(parser, 0.1)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    tokenizer = GPT2Tokenizer.from_pretrained(SHARED_FROM)
    captioning = Captioning(tokenizer, arguments)
    recipe = Recipe(arguments.steps, arguments.seed, _BATCH, _PEAK_LR)
    minutes = train(captioning, lambda step: captioning.loss(step, _BATCH), recipe)
    run = run_line(MODULE, arguments, "pictures", recipe.pictures, minutes)
    for system, network in zip(SYSTEMS, captioning.networks, strict=True):
        folder = arguments.output / system.name
        save(system, network, tokenizer, folder)
        report(system, folder, run)


class Captioning(nn.Module):
    """The systems, and their losses on the canonical captions of freshly drawn training scenes."""

    def __init__(self, tokenizer: GPT2Tokenizer, arguments: argparse.Namespace) -> None:
        super().__init__()
        shared = shared_convolutions()
        self.networks = nn.ModuleList(start(system, tokenizer, shared) for system in SYSTEMS)
        self._features = [shared.to(memory_format=torch.channels_last)]  # type: ignore[call-overload]
        self._batches = CaptionBatches(tokenizer, arguments)

    def loss(self, step: int, batch: int) -> torch.Tensor:
        """The sum over systems of the mean cross entropy over the next scenes' caption tokens."""
        pictures, read, labels = self._batches.draw(step, batch)
        with torch.no_grad():
            features = self._features[0](fast_pixels(pictures))
        return torch.stack(
            [
                word_entropy(system.tell(network, features, read)[0], labels)
                for system, network in zip(SYSTEMS, self.networks, strict=True)
            ]
        ).sum()


def report(system: System, folder: Path, run: str) -> None:
    """Scores a saved folder on held-out scenes, prints the scores and writes the model card."""
    observe = observer(folder)
    caption_all = captions_of(observe)
    scores = {
        "captions that match word for word": caption_exact_match(
            caption_all, TEST_SCENES, TEST_SEED
        ),
        "words in their places": caption_words_right(caption_all, TEST_SCENES, TEST_SEED),
        "the same captions, pictures swapped": swapped_caption_match(
            caption_all, TEST_SCENES, TEST_SEED
        ),
    }
    if system.has_attention:
        scores |= attention_scores(observe, TEST_SCENES, TEST_SEED)
    print(system.name, scores)
    write_card(
        folder,
        run,
        scores,
        is_resumed=False,
        name=system.name,
        pipeline="image-to-text",
        summary="Describes rendered scenes of one or two things before a background, such as\n"
        '"a large red striped circle to the left of a small blue square on a green background".\n'
        "One of three captioners that differ only in how words read a picture; the first five\n"
        "convolutions are those of `example-show-attend-tell`, not trained further.",
        architecture=system.architecture_words,
    )


if __name__ == "__main__":
    main()
