"""The training loop of the picture examples, and the pre-training on patch labels."""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from examples.scenes.patch_labels import VOCABULARIES, labelled_images
from examples.training.checkpoint_folder import training_flags
from export.training.captions import normalised
from export.training.resumable_training import Optimisation, adamw, take_steps, weight_groups

_PROGRESS_EVERY = 50  # steps


BatchLoss = Callable[[int], torch.Tensor]  # from the step, counted from 1, to its loss


@dataclass(frozen=True)
class Recipe:
    """Length, batch size and learning rate of a training run."""

    steps: int
    seed: int
    batch: int
    peak_lr: float
    labelled_images: int = 0  # images with labelled patches a step, beside the batch

    @property
    def pictures(self) -> int:
        """Pictures of the whole training run."""
        return self.steps * (self.batch + self.labelled_images)


def train(model: nn.Module, batch_loss: BatchLoss, recipe: Recipe) -> float:
    """Trains in place on `batch_loss(step)` and returns the minutes it took.

    AdamW with a warm-up and a cosine decay; bfloat16 where autocast allows it.
    """
    torch.set_num_threads(1)

    def loss(step: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return batch_loss(step)

    optimisation = adamw(weight_groups(model), recipe.steps, recipe.peak_lr, eps=1e-6)
    return timed_steps(model, optimisation, loss, recipe.steps)


def timed_steps(
    model: nn.Module, optimisation: Optimisation, batch_loss: BatchLoss, steps: int
) -> float:
    """Trains in place, prints the loss as it goes and returns the minutes it took."""
    start = time.perf_counter()

    def report(step: int, loss: float) -> None:
        minutes = (time.perf_counter() - start) / 60
        print(f"step {step}/{steps}  loss {loss:.4f}  {minutes:.1f} min", flush=True)

    losses = map(batch_loss, range(1, steps + 1))
    take_steps(model, optimisation, losses, steps, _PROGRESS_EVERY, report)
    return (time.perf_counter() - start) / 60


def command_line(description: str | None, output: Path, steps: int) -> argparse.ArgumentParser:
    """The common options of the training scripts of the picture examples."""
    parser = training_flags(description, output, steps, "training steps of each stage")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue from the saved checkpoint, in one joint stage",
    )
    parser.add_argument(
        "--gray",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of gray pictures among those with patch labels (%(default)s)",
    )
    return parser


class PatchClassification(nn.Module):
    """An image encoder with a linear head that classifies the thing in each patch.

    The pre-training task of the picture examples.

    Args:
        patches: Pictures → encoded patches, (B, N, D), row by row.
        patch: Side of a patch in pixels.
        width: D.
        arguments: `seed`, and `gray`: the share of pictures without colour.
    """

    def __init__(
        self,
        encoder: nn.Module,
        patches: Callable[[list[Image.Image]], torch.Tensor],
        patch: int,
        width: int,
        arguments: argparse.Namespace,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, sum(map(len, VOCABULARIES)))
        self._patches = patches
        self._stream = labelled_images(arguments.seed, patch, arguments.gray)

    @classmethod
    def of_vit(
        cls,
        encoder: Any,
        to_pixels: Callable[[list[Image.Image]], torch.Tensor],
        arguments: argparse.Namespace,
    ) -> "PatchClassification":
        """The task for a Hugging Face ViT, whose first token is the class token."""

        def patches(pictures: list[Image.Image]) -> torch.Tensor:
            return encoder(pixel_values=to_pixels(pictures)).last_hidden_state[:, 1:]

        return cls(
            encoder, patches, encoder.config.patch_size, encoder.config.hidden_size, arguments
        )

    def loss(self, batch: int) -> torch.Tensor:
        """Mean cross entropy of the four attributes over the covered patches of the next images."""
        pictures, classes = zip(*[next(self._stream) for _ in range(batch)], strict=True)
        scores = (
            self.head(self._patches(list(pictures)))
            .float()
            .split([len(names) for names in VOCABULARIES], dim=-1)
        )
        truth = torch.from_numpy(np.stack(classes))  # (B, N, 4)
        losses = [
            nn.functional.cross_entropy(score.flatten(0, 1), truth[..., index].flatten())
            for index, score in enumerate(scores)
        ]
        return torch.stack(losses).mean()


def train_in_stages(
    model: nn.Module,
    task_loss: Callable[[int, int], torch.Tensor],
    pretraining: PatchClassification,
    arguments: argparse.Namespace,
) -> tuple[int, float]:
    """Trains on patch labels and then on the task; when resumed, on both at once.

    `task_loss` takes the step and the batch size. Returns the number of pictures and the minutes.
    """
    steps, seed = arguments.steps, arguments.seed
    if arguments.resume:
        both = Recipe(steps, seed, batch=40, peak_lr=1.2e-3, labelled_images=24)
        minutes = train(
            nn.ModuleList([model, pretraining]),
            lambda step: task_loss(step, both.batch) + pretraining.loss(both.labelled_images),
            both,
        )
        return both.pictures, minutes
    first = Recipe(steps, seed, batch=0, peak_lr=2e-3, labelled_images=32)
    second = Recipe(steps, seed, batch=48, peak_lr=1.2e-3)
    minutes = train(pretraining, lambda _step: pretraining.loss(first.labelled_images), first)
    minutes += train(model, lambda step: task_loss(step, second.batch), second)
    return first.pictures + second.pictures, minutes


def pixel_tensor(
    pictures: list[Image.Image], mean: list[float], deviation: list[float]
) -> torch.Tensor:
    """Pictures normalised as in an image recipe that needs no resizing: (B, 3, side, side)."""
    return normalised(np.stack([np.asarray(picture) for picture in pictures]), mean, deviation)
