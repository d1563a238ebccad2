"""The optimisation of `triptych train`: its state is saved at intervals and taken over by a later
run, whose weights are those of an uninterrupted training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import nn

from export.training.optimisation import Optimisation, Progress, take_steps
from export.training.training_folder import TrainingFolder

SAVE_EVERY = 100
_PARTS = ("model", "optimizer", "schedule")
Batch = TypeVar("Batch")


def optimise(
    model: nn.Module,
    optimisation: Optimisation,
    batches: Iterator[Batch],
    loss_of: Callable[[Batch], torch.Tensor],
    steps: int,
    folder: TrainingFolder,
    progress: Progress,
) -> None:
    """Trains `model` in place, all steps that are still to do.

    Args:
        optimisation: Optimizer and schedule.
        batches: From the first step on, the same ones in every run; those done are skipped.
        steps: Of the whole training.
    """
    done = _resume(folder, model, optimisation)

    def report(step: int, loss: float) -> None:
        _save(folder, model, optimisation, step)
        progress(step, loss)

    losses = map(loss_of, islice(batches, done, steps))
    take_steps(model, optimisation, losses, steps, SAVE_EVERY, report, done)


def _resume(folder: TrainingFolder, model: Any, optimisation: Any) -> int:
    """Steps done by an earlier run, whose state is taken over."""
    state = folder.load()
    if state is None:
        return 0
    for part, name in zip((model, *optimisation), _PARTS, strict=True):
        part.load_state_dict(state[name])
    torch.set_rng_state(state["random"])
    return int(state["steps"])


def _save(folder: TrainingFolder, model: Any, optimisation: Any, done: int) -> None:
    parts = (model, *optimisation)
    folder.save(
        {
            **{name: part.state_dict() for name, part in zip(_PARTS, parts, strict=True)},
            "random": torch.get_rng_state(),
            "steps": done,
        }
    )
