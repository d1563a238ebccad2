"""Repositories of some models, so that a Triton of a test starts quickly."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path


def copy_models(repository: Path, folder: Path, models: Iterable[str]) -> Path:
    """`folder/model_repository`, with these models of another repository."""
    for model in models:
        shutil.copytree(repository / model, folder / "model_repository" / model)
    return folder / "model_repository"
