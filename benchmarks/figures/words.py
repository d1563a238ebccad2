"""Tokens of a response joined to words, and their attention with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

END = "</s>"


def numbers(tokens: Sequence[str]) -> list[int]:
    """The word of each token: a leading space starts a word, and so does the end token."""
    starts = [token.startswith(" ") or token == END for token in tokens]
    starts[0] = True
    return [int(number) - 1 for number in np.cumsum(starts)]


def by_row(tokens: Sequence[str], weights: ArrayLike) -> tuple[list[str], NDArray[Any]]:
    """Words, and the mean of their tokens' rows: (words, columns)."""
    of, rows = numbers(tokens), np.asarray(weights, float)
    joined = np.zeros((of[-1] + 1, rows.shape[1]))
    np.add.at(joined, of, rows)
    texts = ["" for _ in joined]
    for number, token in zip(of, tokens, strict=True):
        texts[number] += token
    return [text.strip() for text in texts], joined / np.bincount(of)[:, None]


def by_column(tokens: Sequence[str], weights: ArrayLike) -> NDArray[Any]:
    """The sums of the words' columns: (rows, words)."""
    of, columns = numbers(tokens), np.asarray(weights, float)
    joined = np.zeros((len(columns), of[-1] + 1))
    np.add.at(joined.T, of, columns.T)
    return joined
