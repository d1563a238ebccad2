"""The output folder of `triptych train`: a state to resume from, and in the end a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from inference.errors import SetupError

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
