"""Captioners over a CNN out of PyTorch's own layers.

The references of `export/models/captioners/show_and_tell.py` (Vinyals et al. 2015, §3) and
`export/models/captioners/cnn_transformer.py` (Sharma et al. 2018, §4; `torch.nn.Transformer`); they
share nothing with them but the names in a checkpoint.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.export.models.paper_model import Outputs, PaperModel
from tests.export.models.transformer_paper import sinusoids


class CnnCaptioner(PaperModel):
    """A CNN."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        size, inner = values["image_size"], 3
        self.grid = [size, size] if isinstance(size, int) else list(size)
        self.convolutions = nn.ModuleList()
        for outer, stride in zip(values["channels"], values["strides"], strict=True):
            layer = nn.Module()
            layer.filter = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
            layer.norm = nn.BatchNorm2d(outer)
            self.convolutions.append(layer)
            self.grid = [(side - 1) // stride + 1 for side in self.grid]
            inner = outer

    def see(self, pixel_values: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, D, rows, columns)."""
        x = pixel_values
        for layer in self.convolutions:
            x = nn.functional.relu(layer.norm(layer.filter(x)))
        return x

    def forward(self, pixel_values: Tensor, decoder_input_ids: Tensor | None = None) -> Any:
        """(B, 3, height, width), (B, T) → logits (B, T, V); without words, the CNN alone."""
        seen = self.see(pixel_values)
        if decoder_input_ids is None:
            return Outputs(features=seen)
        return Outputs(logits=self.tell(seen, decoder_input_ids))

    def tell(self, seen: Tensor, words: Tensor) -> Tensor:
        """(B, D, rows, columns), (B, T) → (B, T, V)."""
        raise NotImplementedError

    def save_pretrained(self, folder: Any) -> None:
        """A folder of our format."""
        for layer in self.convolutions:
            layer.norm.register_buffer("num_batches_tracked", None)
        super().save_pretrained(folder)


class ShowAndTell(CnnCaptioner):
    """An LSTM that reads the image, and then words."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        words, hidden = values["embedding_size"], values["hidden_size"]
        cells = self.grid[0] * self.grid[1]
        self.image = nn.Linear(cells * values["channels"][-1], words)
        self.embedding = nn.Embedding(values["vocab_size"], words)
        self.lstm = nn.LSTMCell(words, hidden)
        self.output = nn.Linear(hidden, values["vocab_size"])

    def tell(self, seen: Tensor, words: Tensor) -> Tensor:
        """The LSTM reads the image, then each word."""
        states = self.lstm(self.image(seen.permute(0, 2, 3, 1).reshape(len(seen), -1)))
        scores = []
        for word in words.T:
            states = self.lstm(self.embedding(word), states)
            scores.append(self.output(states[0]))
        return torch.stack(scores, dim=1)


class CnnTransformer(CnnCaptioner):
    """`torch.nn.Transformer` from the cells of the grid to words."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.width = values["d_model"]
        cells = self.grid[0] * self.grid[1]
        self.projection = nn.Linear(values["channels"][-1], self.width)
        self.positions = nn.Parameter(torch.zeros(cells, self.width))
        self.embedding = nn.Embedding(values["vocab_size"], self.width)
        names = ("nhead", "num_encoder_layers", "num_decoder_layers", "dim_feedforward")
        options = ("activation", "layer_norm_eps")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "enable_nested_tensor", UserWarning)
            self.transformer = nn.Transformer(
                self.width,
                *(values[name] for name in names),
                dropout=0.0,
                batch_first=True,
                **{name: values[name] for name in options if name in values},
            )
        if not values.get("final_norm"):
            self.transformer.encoder.norm = self.transformer.decoder.norm = None

    def tell(self, seen: Tensor, words: Tensor) -> Tensor:
        """Cells with their places, words with theirs."""
        cells = self.projection(seen.permute(0, 2, 3, 1).flatten(1, 2)) + self.positions
        embedded = self.embedding(words) * self.width**0.5 + sinusoids(words.shape[1], self.width)
        causal = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        hidden = self.transformer(cells, embedded, tgt_mask=causal)
        return hidden @ self.embedding.weight.T
