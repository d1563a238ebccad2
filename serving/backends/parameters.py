"""The parameters of a model's configuration, as Triton hands them to a backend."""

from __future__ import annotations

from typing import Any


def text_parameters(config: dict[str, Any]) -> dict[str, str]:
    """What `config.pbtxt` says under `parameters`, and what a load request laid over it."""
    return {name: entry["string_value"] for name, entry in config.get("parameters", {}).items()}
