"""Trains `history-perceiver`: a Perceiver IO that classifies the largest thing of a scene.

Built, trained and saved with `transformers`, on the task of `example-vit`, whose layers are those
between the latents at first. In a first stage the latents learn to read a picture, so that they are
what the ViT computes from its patches; then all of it learns the classes.

    python -m examples.history.perceiver.train
"""

import argparse
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn
from transformers import (
    PerceiverConfig,
    PerceiverForImageClassificationConvProcessing,
    ViTForImageClassification,
)
from transformers.models.perceiver.image_processing_pil_perceiver import PerceiverImageProcessorPil

from examples import checkpoint
from examples.history.perceiver.card import write_card
from examples.history.perceiver.initialisation import initialise_from_vit
from examples.scenes.patch_labels import labelled_images
from examples.scenes.rendering import SIDE
from examples.training.checkpoint_folder import run_line, runs_of, save_half, start, training_flags
from examples.training.loop import Recipe, pixel_tensor, train
from examples.vit.largest_thing import CLASSES
from examples.vit.train import OUTPUT as VIT
from examples.vit.train import Classification

MODULE = "examples.history.perceiver.train"
OUTPUT = checkpoint("history-perceiver")
_MEAN = _DEVIATION = [0.5, 0.5, 0.5]  # of the ViT's image recipe
_LAYERS = (0, 1, 3, 4)  # of the ViT's five: it loses least without the third
_POOL = 1500  # pictures of the first stage, each shown often, rolled by any distance
_BATCH, _READING_RATE, _RATE = 32, 2e-3, 1e-3


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    arguments = parse_arguments()
    folder = start(arguments)
    processor = PerceiverImageProcessorPil(
        size={"height": SIDE, "width": SIDE},
        do_center_crop=False,
        image_mean=_MEAN,
        image_std=_DEVIATION,
    )
    processor.save_pretrained(folder)
    vit = ViTForImageClassification.from_pretrained(VIT, dtype=torch.float32).eval()
    model = build_model(vit.config, _LAYERS)
    reading = Reading(model, vit, arguments.seed, _POOL)
    initialise_from_vit(model, vit, _LAYERS, reading.pool[:_BATCH])
    first = Recipe(arguments.reading_steps, arguments.seed, _BATCH, _READING_RATE)
    minutes = train(reading, lambda _step: reading.loss(), first)
    second = Recipe(arguments.steps, arguments.seed, _BATCH, _RATE)
    task = Classification(model, processor, arguments)
    minutes += train(model, lambda step: task.loss(step, _BATCH), second)
    save_half(model, folder)
    run = run_line(MODULE, arguments, "pictures", second.pictures + _POOL, minutes)
    print(write_card(folder, runs_of(folder, run, is_resumed=False)))


def parse_arguments() -> argparse.Namespace:
    """Flags of `python -m examples.history.perceiver.train`."""
    parser = training_flags(__doc__, OUTPUT, 1500, "steps of the second stage")
    parser.add_argument(
        "--reading-steps", type=int, default=700, help="steps of the first stage (%(default)s)"
    )
    return parser.parse_args()


def build_model(vit: Any, layers: Sequence[int]) -> PerceiverForImageClassificationConvProcessing:
    """An untrained network with a latent for each token of a ViT.

    Args:
        layers: Those of its layers that will be between the latents.
    """
    config = PerceiverConfig(
        num_latents=1 + (SIDE // vit.patch_size) ** 2,
        d_latents=vit.hidden_size,
        num_self_attends_per_block=len(layers),
        num_self_attention_heads=vit.num_attention_heads,
        num_cross_attention_heads=8,
        qk_channels=vit.hidden_size,
        v_channels=vit.hidden_size,
        self_attention_widening_factor=vit.intermediate_size // vit.hidden_size,
        attention_probs_dropout_prob=0.0,  # no dropout: every picture is new
        initializer_range=0.1,  # 0.02 is for a width of 1280
        image_size=SIDE,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: index for index, name in enumerate(CLASSES)},
        problem_type="single_label_classification",
    )
    model: Any = PerceiverForImageClassificationConvProcessing(config)
    found: PerceiverForImageClassificationConvProcessing = model.to(
        memory_format=torch.channels_last
    )
    return found


class Reading(nn.Module):
    """The parts of a Perceiver that read pixels, and the loss of what they read.

    Args:
        vit: What its latents are to be, once they have read: the embeddings of its tokens.
        pool: Pictures to read, each often.
    """

    def __init__(
        self,
        model: PerceiverForImageClassificationConvProcessing,
        vit: ViTForImageClassification,
        seed: int,
        pool: int,
    ) -> None:
        super().__init__()
        perceiver: Any = model.perceiver
        self.inputs, self.latents = perceiver.input_preprocessor, perceiver.embeddings
        self.cross = perceiver.encoder.cross_attention
        self._embeddings = [vit.vit.embeddings]  # in a list: not trained
        config: Any = vit.config
        drawn = islice(labelled_images(seed, config.patch_size), pool)
        self.pool = pixel_tensor([picture for picture, _ in drawn], _MEAN, _DEVIATION)
        with torch.no_grad():
            patches = self._embeddings[0](self.pool[:_BATCH])[:, 1:]
        self._variance = patches.var(0).mean()
        self._random = torch.Generator().manual_seed(seed)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 3, side, side) → (B, 1 + N, D)."""
        inputs, _, _ = self.inputs(pixels)
        found: torch.Tensor = self.cross(self.latents(batch_size=len(pixels)), inputs=inputs)[0]
        return found

    def loss(self) -> torch.Tensor:
        """The mean squared error of a batch, as a share of the variance between pictures."""
        rows = torch.randint(len(self.pool), (_BATCH,), generator=self._random)
        shifts = torch.randint(SIDE, (2,), generator=self._random).tolist()
        pixels = self.pool[rows].roll(shifts, (2, 3))
        with torch.no_grad():
            wanted = self._embeddings[0](pixels)
        return (self(pixels).float() - wanted).square().mean() / self._variance


if __name__ == "__main__":
    main()
