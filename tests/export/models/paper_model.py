"""What references written from a paper's equations share with models of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn


class PaperModel(nn.Module):
    """A network.

    Args:
        values: `config.json`.
    """

    config_class = dict

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.values = values

    def save_pretrained(self, folder: Path) -> None:
        """A checkpoint of our format."""
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.values), encoding="utf-8")


class Outputs(dict[str, Tensor]):
    """Fields, also as attributes."""

    __getattr__ = dict.__getitem__
