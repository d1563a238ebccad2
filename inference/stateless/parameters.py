"""Parameters of a model's configuration."""

from __future__ import annotations

from typing import Any


def text_parameters(config: dict[str, Any]) -> dict[str, str]:
    """The `parameters` of a model's configuration, those of the load request included.

    Args:
        config: The model's configuration, as Triton's JSON.
    """
    return {name: entry["string_value"] for name, entry in config.get("parameters", {}).items()}
