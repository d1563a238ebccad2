"""Xu et al. 2015 (arXiv 1502.03044), §3.1 and §4.2.1, equation by equation in plain numpy.

The oracle of `export/models/captioners/show_attend_tell.py`, which no library has: one picture, no
beams, float64; names are the paper's. It shares nothing with the module but the checkpoint's file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EPSILON = 1e-5  # of batch normalisation


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    exponents = np.exp(x - x.max())
    return exponents / exponents.sum()


class Paper:
    """One checkpoint's network.

    Args:
        weights: The checkpoint's tensors by name.
        config: Its `config.json`.
    """

    def __init__(
        self, weights: Mapping[str, NDArray[np.floating]], config: Mapping[str, Any]
    ) -> None:
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.strides: Sequence[int] = config["strides"]

    def linear(self, name: str, x: Array) -> Array:
        return self.weights[f"{name}.weight"] @ x + self.weights.get(f"{name}.bias", 0.0)

    def annotations(self, picture: Array) -> Array:
        """§3.1.1: a_1 … a_L, (L, D), of a normalised picture (height, width, 3), row by row."""
        for layer, stride in enumerate(self.strides):
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
