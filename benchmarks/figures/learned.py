"""Learned positions: cosines of the position vectors of example checkpoints.

As in figure 7 (centre) of Dosovitskiy et al. 2020, "ViT" (arXiv 2010.11929).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from safetensors.numpy import load_file

from benchmarks.figures import style
from benchmarks.figures.figure import Facts, Figure
from examples import CHECKPOINTS

NAMES = ("example-bert", "example-gpt", "example-vit")
TABLES = {
    "example-bert": "bert.embeddings.position_embeddings.weight",
    "example-gpt": "transformer.wpe.weight",
    "example-vit": "vit.embeddings.position_embeddings",
}
"""The tensor of each checkpoint."""
SHOWN = ((0, 0), (2, 5))
"""Patches whose cosines with all patches are drawn."""


@dataclass(frozen=True)
class Measurements:
    """Cosines of texts' positions (positions, positions), of patches (8, 8, 8, 8)."""

    bert: NDArray[Any]
    gpt: NDArray[Any]
    vit: NDArray[Any]


def measure() -> Measurements:
    """Cosines of the committed tables, each about its mean vector."""
    bert, gpt, vit = (_table(name) for name in NAMES)
    patches = vit[1:]  # the class token has no place
    side = math.isqrt(len(patches))
    return Measurements(cosines(bert), cosines(gpt), cosines(patches).reshape((side,) * 4))


def _table(name: str) -> NDArray[Any]:
    """Position vectors (positions, width) in float64."""
    table = load_file(CHECKPOINTS / name / "model.safetensors")[TABLES[name]]
    found: NDArray[Any] = table.reshape(-1, table.shape[-1]).astype(np.float64)
    return found


def cosines(vectors: NDArray[Any]) -> NDArray[Any]:
    """Of all pairs, about the mean vector."""
    centred = vectors - vectors.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    found: NDArray[Any] = unit @ unit.T
    return found


def draw(data: Measurements) -> Canvas:
    """Two matrices, and two patches' maps."""
    figure, axes = style.canvas(8.4, 2.9, 2, 3, width_ratios=(2, 2, 1))
    signed = {"cmap": "RdBu", "vmin": -1, "vmax": 1}
    grid = axes[0, 0].get_gridspec()
    for axis in axes[:, :2].flat:
        axis.remove()
    for column, (name, values) in enumerate({"bert": data.bert, "gpt": data.gpt}.items()):
        large = figure.add_subplot(grid[:, column])
        bar = style.matrix(large, values, f"example-{name}, {len(values)} positions", **signed)
    for axis, (row, column) in zip(axes[:, 2], SHOWN, strict=True):
        style.matrix(axis, data.vit[row, column], f"vit, patch {row}, {column}", **signed)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.colorbar(bar, ax=axes[:, 2], shrink=0.8)
    return figure


def facts(data: Measurements) -> Facts:
    """Whether near positions are alike, and mirrored patches."""
    return {
        "example-bert, mean cosine at distance 1": f"{np.diag(data.bert, 1).mean():.2f}",
        "example-bert, mean cosine at distance 10": f"{np.diag(data.bert, 10).mean():.2f}",
        "example-gpt, mean cosine at distance 1": f"{np.diag(data.gpt, 1).mean():.2f}",
        "example-vit, mean cosine of patches side by side": f"{beside(data.vit):.2f}",
        "example-vit, mean cosine with the mirrored patch": f"{mirrored(data.vit):.2f}",
    }


def beside(vit: NDArray[Any]) -> float:
    """Mean cosine of patches that are neighbours in a row or a column."""
    side = len(vit)
    pairs = [vit[i, j, i, j + 1] for i in range(side) for j in range(side - 1)]
    pairs += [vit[i, j, i + 1, j] for i in range(side - 1) for j in range(side)]
    return float(np.mean(pairs))


def mirrored(vit: NDArray[Any]) -> float:
    """Mean cosine of each patch and its mirror image, left to right."""
    side = len(vit)
    return float(np.mean([vit[i, j, i, side - 1 - j] for i in range(side) for j in range(side)]))


FIGURE = Figure(measure, draw, facts)
