"""The optimisation of `triptych train`: its state is saved at intervals and taken over by a later
run, whose weights are those of an uninterrupted training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import nn

from export.training.training_folder import TrainingFolder

SAVE_EVERY = 100
Batch = TypeVar("Batch")
Progress = Callable[[int, float], None]
"""Steps done, and the mean loss since the last call."""


def optimise(
    model: nn.Module,
    optimisation: tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler],
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
    optimizer, schedule = optimisation
    done = _resume(folder, model, optimizer, schedule)
    model.train()
    recent: list[float] = []
    for step, batch in enumerate(islice(batches, done, steps), done + 1):
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss.item())
        if step % SAVE_EVERY == 0 or step == steps:
            _save(folder, model, optimizer, schedule, step)
            progress(step, sum(recent) / len(recent))
            recent.clear()
    model.eval()


def _resume(folder: TrainingFolder, model: Any, optimizer: Any, schedule: Any) -> int:
    """Steps done by an earlier run, whose state is taken over."""
    state = folder.load()
    if state is None:
        return 0
    for part, name in ((model, "model"), (optimizer, "optimizer"), (schedule, "schedule")):
        part.load_state_dict(state[name])
    torch.set_rng_state(state["random"])
    return int(state["steps"])


def _save(folder: TrainingFolder, model: Any, optimizer: Any, schedule: Any, done: int) -> None:
    folder.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "random": torch.get_rng_state(),
            "steps": done,
        }
    )
