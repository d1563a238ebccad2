"""Parameters of a model's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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
