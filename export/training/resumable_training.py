"""What trainings on users' data share: batches, optimisation, and the score in the card.

The state of the optimisation is saved at intervals and taken over by a later run, whose weights are
those of an uninterrupted training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from string import Template
from typing import Any, TypeVar

import sacrebleu
import torch
from torch import nn

from export.training.optimisation import Optimisation, Progress, take_steps
from export.training.training_folder import TrainingFolder

SAVE_EVERY = 100
_PARTS = ("model", "optimizer", "schedule")
Batch = TypeVar("Batch")


@dataclass(frozen=True)
class HeldOutScore:
    """Of the saved checkpoint, greedy, on held-out items; from 0 to 100."""

    bleu: float
    exact: float
    items: int

    @classmethod
    def of(cls, made: Sequence[str], truths: Sequence[Sequence[str]]) -> HeldOutScore:
        """Against all truths of each item; one with fewer has its last one several times."""
        right = sum(one in each for one, each in zip(made, truths, strict=True))
        references = [
            [each[min(place, len(each) - 1)] for each in truths]
            for place in range(max(map(len, truths)))
        ]
        bleu = sacrebleu.corpus_bleu(list(made), references).score
        return cls(bleu=bleu, exact=100 * right / len(made), items=len(made))


def endless(epoch: Callable[[int], Iterable[Batch]], seed: int) -> Iterator[Batch]:
    """Batches of one epoch after the other, each in an order of its own, by its number."""
    for number in count(seed):
        yield from epoch(number)


def write_card(
    folder: Path, card: Template, recipe: Mapping[str, Any], found: HeldOutScore, **counts: int
) -> None:
    """Writes README.md: what was trained, by which recipe, and its score."""
    fields = {name: f"{number:,}" for name, number in counts.items()}
    fields |= {"bleu": f"{found.bleu:.1f}", "exact": f"{found.exact:.1f}"}
    text = card.substitute({**recipe, **fields, "name": folder.name, "held_out": found.items})
    (folder / "README.md").write_text(text, encoding="utf-8")


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
