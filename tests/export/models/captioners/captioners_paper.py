"""Captioners over a CNN written from their papers.

`ShowAttendTell`: Xu et al. 2015 (arXiv 1502.03044), §3.1 and §4.2.1, equation by equation in plain
numpy. The oracle of `export/models/captioners/show_attend_tell.py`, which no library has: one
picture, no beams, float64; names are the paper's. It shares nothing with the module but the
checkpoint's file.

The references of `export/models/captioners/show_and_tell.py` (Vinyals et al. 2015, §3) and
`export/models/captioners/cnn_transformer.py` (Sharma et al. 2018, §4; `torch.nn.Transformer`); they
share nothing with them but the names in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.export.models.transformer_paper import (
    Array,
    NumpyPaper,
    Outputs,
    PaperModel,
    sigmoid,
    sinusoids,
    softmax,
    stacks,
)


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
        self.transformer = stacks(values)

    def tell(self, seen: Tensor, words: Tensor) -> Tensor:
        """Cells with their places, words with theirs."""
        cells = self.projection(seen.permute(0, 2, 3, 1).flatten(1, 2)) + self.positions
        embedded = self.embedding(words) * self.width**0.5 + sinusoids(words.shape[1], self.width)
        causal = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        hidden = self.transformer(cells, embedded, tgt_mask=causal)
        return hidden @ self.embedding.weight.T


EPSILON = 1e-5  # of batch normalisation


class ShowAttendTell(NumpyPaper):
    """One checkpoint's network."""

    def annotations(self, picture: Array) -> Array:
        """§3.1.1: a_1 … a_L, (L, D), of a normalised picture (height, width, 3), row by row."""
        for layer, stride in enumerate(self.config["strides"]):
            picture = self.convolution(f"encoder.convolutions.{layer}", picture, stride)
        return picture.reshape(-1, picture.shape[-1]) + self.weights["encoder.positions"]

    def convolution(self, name: str, picture: Array, stride: int) -> Array:
        """Every 3 x 3 window of the picture, zeros around it, then Ioffe 2015's (1) to (4)."""
        kernels = self.weights[f"{name}.filter.weight"]  # (outer, inner, 3, 3)
        height, width, _ = picture.shape
        padded = np.pad(picture, ((1, 1), (1, 1), (0, 0)))
        rows = [
            [
                np.einsum("hwi,oihw->o", padded[top : top + 3, left : left + 3], kernels)
                for left in range(0, width, stride)
            ]
            for top in range(0, height, stride)
        ]
        mean, variance, gamma, beta = (
            self.weights[f"{name}.norm.{leaf}"]
            for leaf in ("running_mean", "running_var", "weight", "bias")
        )
        normalised = gamma * (np.array(rows) - mean) / np.sqrt(variance + EPSILON) + beta
        return np.maximum(normalised, 0)

    def attend(self, a: Array, h: Array) -> Array:
        """(4), (5) with f_att a network of one layer: α over the annotations."""
        name = "decoder.attention"
        e = [
            self.linear(
                f"{name}.score",
                np.tanh(self.linear(f"{name}.query", h) + self.linear(f"{name}.key", a_i)),
            )[0]
            for a_i in a
        ]
        return softmax(np.array(e))

    def decode(self, picture: Array, words: Sequence[int]) -> tuple[Array, Array]:
        """Scores of the next word behind each given one, (T, V), and α of each step, (T, L)."""
        a = self.annotations(picture)
        c = np.tanh(self.linear("decoder.initial_cell", a.mean(axis=0)))
        h = np.tanh(self.linear("decoder.initial_hidden", a.mean(axis=0)))
        scores, alphas = [], []
        for y in words:
            ey = self.weights["decoder.words.weight"][y]
            alpha = self.attend(a, h)
            beta = sigmoid(self.linear("decoder.gate", h))
            z = beta * sum(weight * a_i for weight, a_i in zip(alpha, a, strict=True))
            joined = self.linear("decoder.lstm.gates", np.concatenate([ey, z, h]))
            f, i, o, g = np.split(joined, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            deep = ey + self.linear("decoder.from_hidden", h)
            deep = deep + self.linear("decoder.from_context", z)
            scores.append(self.linear("decoder.output", deep))
            alphas.append(alpha)
        return np.array(scores), np.array(alphas)
