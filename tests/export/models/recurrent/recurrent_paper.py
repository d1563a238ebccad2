"""The recurrent cells' equations in plain numpy, float64, one row at a time.

The oracle of `export/layers/recurrence/cells.py` for cells that `torch.nn` lacks: names are the
papers', no batch, no padding. It shares nothing with the module but the names of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


def sigma(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def blocks(weights: Weights, name: str, count: int) -> list[tuple[Array, Array]]:
    """(matrix, bias) of each block."""
    matrices = np.split(weights[f"{name}.weight"], count)
    return list(zip(matrices, np.split(weights[f"{name}.bias"], count), strict=True))


def affine(block: tuple[Array, Array], x: Array) -> Array:
    return block[0] @ x + block[1]


def elman(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    (W,), (U,) = blocks(w, "input", 1), blocks(w, "recurrence", 1)
    return np.tanh(affine(W, x) + affine(U, h)), c


def lstm(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """Graves 2013, eq. 7 to 11; without peepholes their weights are zero."""
    W_i, W_f, W_c, W_o = blocks(w, "input", 4)
    U_i, U_f, U_c, U_o = blocks(w, "recurrence", 4)
    w_ci, w_co, w_cf = w.get("peephole", np.zeros((3, len(h))))
    i = sigma(affine(W_i, x) + affine(U_i, h) + w_ci * c)
    f = sigma(affine(W_f, x) + affine(U_f, h) + w_cf * c)
    c = f * c + i * np.tanh(affine(W_c, x) + affine(U_c, h))
    o = sigma(affine(W_o, x) + affine(U_o, h) + w_co * c)
    return o * np.tanh(c), c


def gru(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """Cho et al. 2014, eq. 5 to 8: U multiplies r ⊙ h."""
    W_r, W_z, W_h = blocks(w, "input", 3)
    U_r, U_z, U_h = blocks(w, "recurrence", 3)
    r = sigma(affine(W_r, x) + affine(U_r, h))
    z = sigma(affine(W_z, x) + affine(U_z, h))
    return z * h + (1 - z) * np.tanh(affine(W_h, x) + affine(U_h, r * h)), c


def gru_reset_after(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """As `torch.nn.GRU`'s documentation has it."""
    W_r, W_z, W_n = blocks(w, "input", 3)
    U_r, U_z, U_n = blocks(w, "recurrence", 3)
    r = sigma(affine(W_r, x) + affine(U_r, h))
    z = sigma(affine(W_z, x) + affine(U_z, h))
    return (1 - z) * np.tanh(affine(W_n, x) + r * affine(U_n, h)) + z * h, c


def mut1(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """Jozefowicz et al. 2015, §4."""
    W_z, W_r = blocks(w, "input", 2)
    U_r, U_h = blocks(w, "recurrence", 2)
    z = sigma(affine(W_z, x))
    r = sigma(affine(W_r, x) + affine(U_r, h))
    return np.tanh(affine(U_h, r * h) + np.tanh(added(w, x))) * z + h * (1 - z), c


def mut2(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    W_z, W_h = blocks(w, "input", 2)
    U_z, U_r, U_h = blocks(w, "recurrence", 3)
    z = sigma(affine(W_z, x) + affine(U_z, h))
    r = sigma(added(w, x) + affine(U_r, h))
    return np.tanh(affine(U_h, r * h) + affine(W_h, x)) * z + h * (1 - z), c


def mut3(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    W_z, W_r, W_h = blocks(w, "input", 3)
    U_z, U_r, U_h = blocks(w, "recurrence", 3)
    z = sigma(affine(W_z, x) + affine(U_z, np.tanh(h)))
    r = sigma(affine(W_r, x) + affine(U_r, h))
    return np.tanh(affine(U_h, r * h) + affine(W_h, x)) * z + h * (1 - z), c


def added(w: Weights, x: Array) -> Array:
    """The input where it is added to a state, through a matrix if it has another width."""
    return w["bypass.weight"] @ x if "bypass.weight" in w else x


EQUATIONS = {
    "rnn": elman,
    "lstm": lstm,
    "lstm-peephole": lstm,
    "gru": gru,
    "gru-reset-after": gru_reset_after,
    "mut1": mut1,
    "mut2": mut2,
    "mut3": mut3,
}


def states(
    cell: str, weights: Weights, inputs: Sequence[Array], first: Array | None = None
) -> list[Array]:
    """The state after each input of one row; before the first one it is zero by default."""
    width = weights["recurrence.weight"].shape[1]
    h, c, found = np.zeros(width) if first is None else first, np.zeros(width), []
    for x in inputs:
        h, c = EQUATIONS[cell](weights, x, h, c)
        found.append(h)
    return found


def layer(
    cell: str,
    rightward: Weights,
    leftward: Weights | None,
    inputs: Array,
    first: Array | None = None,
) -> Array:
    """(T, D) → (T, N·H)."""
    found = [states(cell, rightward, list(inputs), first)]
    if leftward is not None:
        found.append(states(cell, leftward, list(inputs[::-1]))[::-1])
    return np.concatenate(found, axis=-1)
