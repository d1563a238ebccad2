"""What the picture examples share in training: the loop, and the lessons on crowded pictures."""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from export.examples.crowds import VOCABULARIES, crowds

_WARMUP_STEPS = 200
_PROGRESS_EVERY = 50  # steps


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train."""

    steps: int
    seed: int
    batch: int
    peak_lr: float


def train(model: nn.Module, batch_loss: Callable[[int], torch.Tensor], recipe: Recipe) -> float:
    """Trains in place on `batch_loss(step)` and returns the minutes it took.

    AdamW with a warm-up and a cosine decay; bfloat16 where autocast allows it.
    """
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(
        _weight_groups(model), lr=recipe.peak_lr, betas=(0.9, 0.98), eps=1e-6
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=recipe.peak_lr,
        total_steps=recipe.steps,
        pct_start=min(0.3, _WARMUP_STEPS / recipe.steps),
        cycle_momentum=False,
    )
    model.train()
    start, recent = time.perf_counter(), []
    for step in range(1, recipe.steps + 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = batch_loss(step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss.item())
        if step % _PROGRESS_EVERY == 0 or step == recipe.steps:
            minutes = (time.perf_counter() - start) / 60
            mean = sum(recent) / len(recent)
            print(f"step {step}/{recipe.steps}  loss {mean:.4f}  {minutes:.1f} min", flush=True)
            recent.clear()
    model.eval()
    return (time.perf_counter() - start) / 60


def parse_arguments(description: str, output: Path, steps: int) -> argparse.Namespace:
    """The command line of a training script: `steps`, `seed` and `output`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=steps, help="of either stage (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument(
        "--output",
        type=Path,
        default=output,
        metavar="DIR",
        help="folder to write the checkpoint into",
    )
    return parser.parse_args()


class PatchNamer(nn.Module):
    """An encoder under training with a linear head that names the thing under each patch."""

    def __init__(self, encode: nn.Module, width: int) -> None:
        super().__init__()
        self.encode = encode
        self.head = nn.Linear(width, sum(map(len, VOCABULARIES)))

    def forward(self, pixels: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of the four names: pixels (B, 3, side, side), classes (B, N, 4)."""
        tokens = self.encode(pixel_values=pixels).last_hidden_state[
            :, 1:
        ]  # without the class token
        scores = self.head(tokens).float().split([len(names) for names in VOCABULARIES], dim=-1)
        losses = [
            nn.functional.cross_entropy(score.flatten(0, 1), classes[..., index].flatten())
            for index, score in enumerate(scores)
        ]
        return torch.stack(losses).mean()


def learn_to_name(
    encoder: nn.Module,
    to_pixels: Callable[[list[Image.Image]], torch.Tensor],
    recipe: Recipe,
) -> float:
    """Trains a Hugging Face ViT in place on crowded pictures and returns the minutes it took."""
    namer = PatchNamer(encoder, encoder.config.hidden_size)
    stream = crowds(recipe.seed, encoder.config.patch_size)

    def batch_loss(_step: int) -> torch.Tensor:
        pictures, classes = zip(*[next(stream) for _ in range(recipe.batch)], strict=True)
        return namer(to_pixels(list(pictures)), torch.from_numpy(np.stack(classes)))

    return train(namer, batch_loss, recipe)


def pixel_tensor(
    pictures: list[Image.Image], mean: list[float], deviation: list[float]
) -> torch.Tensor:
    """Pictures as an image recipe prepares them when no resizing is needed: (B, 3, side, side)."""
    stacked = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))
    channels = stacked.permute(0, 3, 1, 2).float() / 255
    shape = (1, 3, 1, 1)
    return (channels - torch.tensor(mean).view(shape)) / torch.tensor(deviation).view(shape)


def _weight_groups(model: nn.Module) -> list[dict[str, object]]:
    """Weight decay for matrices only, not for biases, norms and scalars."""
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    return [
        {"params": [weight for weight in parameters if weight.ndim > 1], "weight_decay": 0.02},
        {"params": [weight for weight in parameters if weight.ndim <= 1], "weight_decay": 0.0},
    ]
