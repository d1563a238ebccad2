"""What all trainings share: optimisation, batches, the scores kept, the output folder.

The state of the optimisation is saved at intervals and taken over by a later run, whose weights are
those of an uninterrupted training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from string import Template
from typing import Any, TypeVar

import sacrebleu
import torch
from torch import nn

from inference.errors import SetupError

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
        optimizer, peak_lr, steps, pct_start=min(0.3, _WARMUP_STEPS / steps), cycle_momentum=False
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


SETTINGS, STATE, WEIGHTS = "training.json", "training_state.pt", "model.safetensors"


class TrainingFolder:
    """One training's folder.

    Args:
        folder: Made if it is missing.
        settings: What decides the result: data, sizes, steps, seed.

    Raises:
        SetupError: The folder holds something else, or a training with other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings = dict(settings)
        self._check()
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.settings, indent=2) + "\n"
        (folder / SETTINGS).write_text(text, encoding="utf-8")

    @property
    def is_finished(self) -> bool:
        """Whether the checkpoint has been written."""
        return (self.folder / WEIGHTS).is_file()

    def load(self) -> dict[str, Any] | None:
        """The state of the last save; None before the first."""
        file = self.folder / STATE
        if not file.is_file():
            return None
        state: dict[str, Any] = torch.load(file, weights_only=True)
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """Replaces the state: all of it or nothing."""
        half = self.folder / f".{STATE}.new"
        torch.save(dict(state), half)
        half.replace(self.folder / STATE)

    def finish(self) -> None:
        """Removes the state, which is larger than the checkpoint."""
        (self.folder / STATE).unlink(missing_ok=True)

    def _check(self) -> None:
        if not self.folder.exists() or not any(self.folder.iterdir()):
            return
        file = self.folder / SETTINGS
        if not file.is_file():
            raise SetupError(
                f"{self.folder} is not empty and holds no training: choose another --output"
            )
        begun = json.loads(file.read_text(encoding="utf-8"))
        different = [
            name
            for name in {**begun, **self.settings}
            if begun.get(name) != self.settings.get(name)
        ]
        if different:
            changes = ", ".join(
                f"{name} was {begun.get(name)} and is {self.settings.get(name)}"
                for name in different
            )
            raise SetupError(
                f"{self.folder} holds another training ({changes}): "
                "choose another --output, or remove that folder"
            )


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
