"""The optimisation of all trainings: AdamW with a warm-up and a cosine decay, and its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

_WARMUP_STEPS = 200
Optimisation = tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]
Progress = Callable[[int, float], None]
"""Steps done, and the mean loss since the last call."""


def adamw(
    parameters: Iterator[nn.Parameter] | list[dict[str, Any]],
    steps: int,
    peak_lr: float,
    **options: Any,
) -> Optimisation:
    """AdamW with a linear warm-up and a cosine decay over `steps`; `options` are AdamW's."""
    optimizer = torch.optim.AdamW(parameters, lr=peak_lr, betas=(0.9, 0.98), **options)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        peak_lr,
        steps,
        pct_start=min(0.3, _WARMUP_STEPS / steps),
        cycle_momentum=False,
    )
    return optimizer, schedule


def weight_groups(model: nn.Module) -> list[dict[str, object]]:
    """Weight decay for matrices only, not for biases, norms and scalars."""
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    return [
        {"params": [weight for weight in parameters if weight.ndim > 1], "weight_decay": 0.02},
        {"params": [weight for weight in parameters if weight.ndim <= 1], "weight_decay": 0.0},
    ]


def take_steps(
    model: nn.Module,
    optimisation: Optimisation,
    losses: Iterable[torch.Tensor],
    steps: int,
    every: int,
    report: Progress,
    done: int = 0,
) -> None:
    """Trains `model` in place, gradients clipped at 1, and leaves it in evaluation mode.

    Args:
        losses: Of the steps still to do, computed as they are taken.
        steps: Of the whole training.
        every: Steps between two reports; the last step is always reported.
        done: Steps of earlier runs.
    """
    optimizer, schedule = optimisation
    model.train()
    recent: list[float] = []
    for step, loss in zip(range(done + 1, steps + 1), losses, strict=False):
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss.item())
        if step % every == 0 or step == steps:
            report(step, sum(recent) / len(recent))
            recent.clear()
    model.eval()
