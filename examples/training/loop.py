"""The training loop of the picture examples, batches of scenes, and pre-training on patches.

Where a colour and a texture never occur with a circle, a decoder learns from the words alone that
no circle can follow. `swap_words` makes the words unreliable, so that the decoder must attend to
the image (Bowman et al. 2015,
arXiv:1511.06349, section 3.1, drop words for the same reason).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import GPT2Tokenizer

from examples.scenes.patch_labels import VOCABULARIES, labelled_images
from examples.scenes.rendering import render
from examples.scenes.scene import COLOURS, SHAPES, SIZES, TEXTURE_NAMES, Scene, caption, scenes
from examples.training.checkpoint_folder import training_flags
from export.training.captions import END_OF_TEXT, IGNORED, normalised
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
    ) -> PatchClassification:
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
