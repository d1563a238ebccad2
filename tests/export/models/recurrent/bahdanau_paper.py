"""Bahdanau, Cho, Bengio 2015 (arXiv 1409.0473), appendix A, sentence by sentence in plain numpy.

The oracle of `export/models/recurrent/bahdanau.py`, which no library has: no batch, no padding, no
beams, no cache, float64; names are the paper's. It shares nothing with the module but the
checkpoint's file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    exponents = np.exp(x - x.max())
    return exponents / exponents.sum()


class Unit:
    """§A.1.1: W stacks what the input gives to z, r and the candidate; so do U's two tensors."""

    def __init__(self, weights: Mapping[str, Array], name: str) -> None:
        self.W_z, self.W_r, self.W = np.split(weights[f"{name}.input.weight"], 3)
        self.b_z, self.b_r, self.b = np.split(weights[f"{name}.input.bias"], 3)
        self.U_z, self.U_r = np.split(weights[f"{name}.gates.weight"], 2)
        self.U = weights[f"{name}.candidate.weight"]

    def __call__(self, x: Array, s: Array) -> Array:
        z = sigmoid(self.W_z @ x + self.b_z + self.U_z @ s)
        r = sigmoid(self.W_r @ x + self.b_r + self.U_r @ s)
        candidate = np.tanh(self.W @ x + self.b + self.U @ (r * s))
        return (1 - z) * s + z * candidate


class Paper:
    """One checkpoint's network.

    Args:
        weights: The checkpoint's tensors by name.
        config: Its `config.json`; not used, the tensors' shapes suffice.
    """

    def __init__(
        self, weights: Mapping[str, NDArray[np.floating]], config: Mapping[str, Any]
    ) -> None:
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.rightward = Unit(self.weights, "encoder.gru.rightward")
        self.leftward = Unit(self.weights, "encoder.gru.leftward")
        self.unit = Unit(self.weights, "decoder.unit")

    def linear(self, name: str, x: Array) -> Array:
        return self.weights[f"{name}.weight"] @ x + self.weights.get(f"{name}.bias", 0.0)

    def annotations(self, source: Sequence[int]) -> list[Array]:
        """§3.2, §A.2.1: h_j of each source word."""
        words = [self.weights["encoder.words.weight"][word] for word in source]
        zero = np.zeros(self.rightward.U.shape[0])
        forwards, backwards = [zero], [zero]
        for word in words:
            forwards.append(self.rightward(word, forwards[-1]))
        for word in reversed(words):
            backwards.append(self.leftward(word, backwards[-1]))
        pairs = zip(forwards[1:], reversed(backwards[1:]), strict=True)
        return [np.concatenate(pair) for pair in pairs]

    def attention(self, s: Array, h: Sequence[Array]) -> Array:
        """§A.1.2: α_ij over j."""
        query = self.linear("decoder.attention.query", s)
        scores = [
            self.linear(
                "decoder.attention.score",
                np.tanh(query + self.linear("decoder.attention.key", h_j)),
            )
            for h_j in h
        ]
        return softmax(np.concatenate(scores))

    def decode(self, source: Sequence[int], target: Sequence[int]) -> tuple[Array, Array]:
        """§A.2.2, teacher-forced: logits (T, V) and alignments (T, S) after each target word."""
        h = self.annotations(source)
        s = np.tanh(self.linear("decoder.initial", h[0][self.rightward.U.shape[0] :]))
        logits, alignments = [], []
        for word in target:
            y = self.weights["decoder.words.weight"][word]
            alpha = self.attention(s, h)
            c = sum(weight * h_j for weight, h_j in zip(alpha, h, strict=True))
            s = self.unit(np.concatenate([y, c]), s)
            t_tilde = self.linear("decoder.readout", np.concatenate([s, y, c]))
            t = np.maximum(t_tilde[0::2], t_tilde[1::2])
            logits.append(self.linear("decoder.output", t))
            alignments.append(alpha)
        return np.stack(logits), np.stack(alignments)
