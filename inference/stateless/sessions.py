"""What runs a stateless graph, whatever the runtime, and what it reads of its configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np


class Sessions(Protocol):
    """A graph that computes the outputs it is asked for. Used by one thread."""

    def run(
        self, outputs: Collection[str], feed: Mapping[str, np.ndarray[Any, Any]]
    ) -> dict[str, np.ndarray[Any, Any]]:
        """The named outputs."""

    def warm_up(self) -> None:
        """Run once on zeros, so that the first request finds memory and threads."""

    def error_text(self, error: Exception) -> str:
        """An error of `run` on one line."""


class InvalidArgument(ValueError):
    """A configuration that cannot be served.

    Triton's python backend reports the type's name beside the message, so it has the status's.
    """


def text_parameters(config: dict[str, Any]) -> dict[str, str]:
    """The `parameters` of a model's configuration, those of the load request included.

    Args:
        config: The model's configuration, as Triton's JSON.
    """
    return {name: entry["string_value"] for name, entry in config.get("parameters", {}).items()}


def graph_file(folder: Path, config: dict[str, Any]) -> Path:
    """The graph in a version's folder.

    Args:
        config: The model's configuration, as Triton's JSON.
    """
    file = folder / (config.get("default_model_filename") or "model.onnx")
    return file / "model.onnx" if file.is_dir() else file
