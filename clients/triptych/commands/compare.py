"""`triptych compare`: the command line of `benchmarks.history`, imported when it is run."""

from __future__ import annotations

import importlib.util

import typer

from triptych.commands.lazy_import import forwarded, imported
from triptych.errors import TriptychError


def compare(context: typer.Context) -> int:
    """Measure the course's systems in PyTorch, ONNX, int8 and served."""
    if importlib.util.find_spec("benchmarks") is None:
        raise TriptychError(
            "this command needs a clone of the repository with its example checkpoints: "
            "run it there, after make setup"
        )
    return forwarded(imported("benchmarks.history.command", "dev").compare, context)
