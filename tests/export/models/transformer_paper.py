"""Vaswani et al. 2017 (arXiv 1706.03762) over `torch.nn.Transformer`.

The reference of `export/models/encoder_decoders/transformer.py`; embeddings, positions and
output are written from §3.4 and §3.5. Beside it, what references written from equations share.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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


Array = NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    exponents = np.exp(x - x.max())
    return exponents / exponents.sum()


class NumpyPaper:
    """One checkpoint's network in plain numpy.

    Args:
        weights: The checkpoint's tensors by name.
        config: Its `config.json`.
    """

    def __init__(
        self, weights: Mapping[str, NDArray[np.floating]], config: Mapping[str, Any]
    ) -> None:
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.config = config

    def linear(self, name: str, x: Array) -> Array:
        return self.weights[f"{name}.weight"] @ x + self.weights.get(f"{name}.bias", 0.0)


class Outputs(dict[str, Tensor]):
    """Fields, also as attributes."""

    __getattr__ = dict.__getitem__


def stacks(values: Mapping[str, Any]) -> nn.Transformer:
    """Both stacks; each ends in a norm where `config.json` has one."""
    names = ("d_model", "nhead", "num_encoder_layers", "num_decoder_layers", "dim_feedforward")
    options = ("activation", "layer_norm_eps")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor", UserWarning)
        transformer = nn.Transformer(
            *(values[name] for name in names),
            dropout=0.0,
            batch_first=True,
            **{name: values[name] for name in options if name in values},
        )
    if not values.get("final_norm"):
        transformer.encoder.norm = transformer.decoder.norm = None
    return transformer


class Transformer(PaperModel):
    """One table for source, target and output."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.width = values["d_model"]
        self.embedding = nn.Embedding(values["vocab_size"], self.width)
        self.transformer = stacks(values)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Any:
        """(1, S), (1, T) → logits (1, T, V)."""
        hidden = self.transformer(
            self.embed(input_ids),
            self.embed(decoder_input_ids),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(decoder_input_ids.shape[1]),
        )
        return Outputs(logits=hidden @ self.embedding.weight.T)

    def embed(self, tokens: Tensor) -> Tensor:
        """(1, T) → (1, T, D)."""
        places = sinusoids(tokens.shape[1], self.width)
        return self.embedding(tokens) * math.sqrt(self.width) + places


def sinusoids(count: int, width: int) -> Tensor:
    """§3.5: the places of that many tokens, (T, D)."""
    places = torch.zeros(count, width)
    for position in range(count):
        for i in range(0, width, 2):
            angle = position / 10000 ** (i / width)
            places[position, i] = math.sin(angle)
            if i + 1 < width:
                places[position, i + 1] = math.cos(angle)
    return places
