"""Trains `example-vit`: a small ViT that classifies the largest thing of a scene.

Built, trained and saved with `transformers`, so that our loader is tested on a folder that the
library wrote. A class is a colour and a shape; a smaller thing beside is no part of the answer, so
the class token has to find the largest one.

    python -m examples.vit.train
"""

import argparse
from typing import Any

import torch
from PIL import Image
from torch import nn
from transformers import ViTConfig, ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples import checkpoint
from examples.scenes.rendering import SIDE
from examples.training.checkpoint_folder import run_line, runs_of, save_half, start
from examples.training.loop import PatchClassification, command_line, pixel_tensor, train_in_stages
from examples.vit.card import write_card
from examples.vit.scores import CLASSES, class_of, pictures

MODULE = "examples.vit.train"
OUTPUT = checkpoint("example-vit")


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    arguments = command_line(__doc__, OUTPUT, steps=2000).parse_args()
    folder = start(arguments)
    processor = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    processor.save_pretrained(folder)
    if arguments.resume:
        model = ViTForImageClassification.from_pretrained(folder, dtype=torch.float32)
    else:
        model = build_model()
    task = Classification(model, processor, arguments)
    pretraining = PatchClassification.of_vit(model.vit, task.pixels, arguments)
    count, minutes = train_in_stages(model, task.loss, pretraining, arguments)
    save_half(model, folder)
    run = run_line(MODULE, arguments, "pictures", count, minutes)
    print(write_card(folder, runs_of(folder, run, is_resumed=arguments.resume)))


def build_model() -> ViTForImageClassification:
    """An untrained ViT of five layers over 64 patches."""
    config = ViTConfig(
        image_size=SIDE,
        patch_size=8,
        hidden_size=96,
        num_hidden_layers=5,
        num_attention_heads=3,
        intermediate_size=384,
        hidden_dropout_prob=0.0,  # no dropout: every picture is new
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: index for index, name in enumerate(CLASSES)},
        problem_type="single_label_classification",
        # twice as fast under autocast on a CPU
        attn_implementation="eager",  # type: ignore[call-arg]  # a field of every configuration
    )
    return ViTForImageClassification(config)


class Classification:
    """The loss of freshly drawn pictures."""

    def __init__(self, model: Any, processor: Any, arguments: argparse.Namespace) -> None:
        self._model = model
        self._recipe = (processor.image_mean, processor.image_std)
        self._pictures = pictures("train", arguments.seed)

    def pixels(self, images: list[Image.Image]) -> torch.Tensor:
        """Images as the network takes them, (B, 3, side, side)."""
        return pixel_tensor(images, *self._recipe)

    def loss(self, _step: int, batch: int) -> torch.Tensor:
        """Mean cross entropy of the next pictures' classes."""
        drawn = [next(self._pictures) for _ in range(batch)]
        logits = self._model(pixel_values=self.pixels([image for _, image in drawn])).logits
        truth = torch.tensor([CLASSES.index(class_of(scene)) for scene, _ in drawn])
        return nn.functional.cross_entropy(logits.float(), truth)


if __name__ == "__main__":
    main()
