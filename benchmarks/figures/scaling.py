"""Why scores are divided by √K: the variance of a product of vectors, and softmax's gradient.

Vaswani et al. 2017, §3.2.1 and its footnote (arXiv 1706.03762): of independent components with mean
0 and variance 1, the product of a query and a key has mean 0 and variance K.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from benchmarks.figures import style
from benchmarks.figures.example_gpt import read_prompt
from benchmarks.figures.figure import Facts, Figure
from export.layers.attention.heads import Heads

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512)
KEYS = 32  # that a query chooses among
QUERIES = 1000
LARGE = 64
"""The width of a head in the paper's base model."""


@dataclass(frozen=True)
class Scale:
    """What scores of one scale lead to, for each width."""

    variance: NDArray[np.float64]
    largest: NDArray[np.float64]
    """Mean of the largest weight."""
    gradient: NDArray[np.float64]
    """Mean Frobenius norm of softmax's Jacobian, diag(p) - p pᵀ."""


@dataclass(frozen=True)
class Measurements:
    """Measured on random vectors, and on a trained model's."""

    raw: Scale
    scaled: Scale
    trained: NDArray[np.float64]
    """(layers, heads): variance of example-gpt's scaled scores over the keys that a query sees."""


def measure() -> Measurements:
    """Random queries and keys of every width, from one seed."""
    rng = np.random.default_rng(0)
    raw, scaled = [], []
    for width in WIDTHS:
        query = rng.standard_normal((QUERIES, 1, width))
        key = rng.standard_normal((QUERIES, width, KEYS))
        scores = (query @ key)[:, 0]
        raw.append(_consequences(scores))
        scaled.append(_consequences(scores * Heads(width, 1).score_scale))
    return Measurements(_by_width(raw), _by_width(scaled), _score_variances())


def _by_width(rows: list[tuple[float, float, float]]) -> Scale:
    return Scale(*np.array(rows).T)


def _consequences(scores: NDArray[np.float64]) -> tuple[float, float, float]:
    """Variance, largest weight and gradient of scores (queries, keys)."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    # ‖diag(p) - p pᵀ‖² = Σ p² - 2 Σ p³ + (Σ p²)²
    squares = (weights**2).sum(axis=1)
    norms = np.sqrt(np.maximum(squares - 2 * (weights**3).sum(axis=1) + squares**2, 0))
    return float(scores.var()), float(weights.max(axis=1).mean()), float(norms.mean())


def _score_variances() -> NDArray[np.float64]:
    """Of each head of example-gpt, over all pairs that its causal mask keeps."""
    read = read_prompt()
    kept = np.tril(np.ones((len(read.tokens),) * 2, bool))
    return np.array([[head[kept].var() for head in layer] for layer in read.scores])


def draw(data: Measurements) -> Canvas:
    """Three panels over the width of a head."""
    figure, ((first, second, third),) = style.canvas(8.4, 2.6, 1, 3)
    for scale, name, colour in (
        (data.raw, "q · k", "tab:red"),
        (data.scaled, "q · k / √K", "tab:blue"),
    ):
        first.loglog(WIDTHS, scale.variance, "o-", ms=3, color=colour, label=name)
        second.semilogx(WIDTHS, scale.largest, "o-", ms=3, color=colour, label=name)
        third.semilogx(WIDTHS, scale.gradient, "o-", ms=3, color=colour, label=name)
    heads = data.trained.size
    first.loglog(
        [32] * heads, data.trained.ravel(), "x", ms=4, color="gray", label="example-gpt's heads"
    )
    second.axhline(1 / KEYS, color="gray", lw=0.8, ls=":")
    first.set_title("variance of the scores")
    second.set_title(f"largest of {KEYS} weights, mean")
    third.set_title("norm of softmax's Jacobian, mean")
    for axis in (first, second, third):
        axis.set_xlabel("K, width of a head")
        axis.set_xticks(WIDTHS, map(str, WIDTHS))
        axis.minorticks_off()
    first.legend()
    return figure


def facts(data: Measurements) -> Facts:
    """At the width of the paper's heads, and over the heads of a trained model."""
    at = WIDTHS.index(LARGE)
    return {
        "variance of q · k at K = 64": f"{data.raw.variance[at]:.1f}",
        "variance of q · k / √K at K = 64": f"{data.scaled.variance[at]:.2f}",
        "mean largest weight at K = 64, unscaled": f"{data.raw.largest[at]:.2f}",
        "mean largest weight at K = 64, scaled": f"{data.scaled.largest[at]:.2f}",
        "Jacobian's norm at K = 512, unscaled": f"{data.raw.gradient[-1]:.3f}",
        "Jacobian's norm at K = 512, scaled": f"{data.scaled.gradient[-1]:.3f}",
        "smallest variance of a head's scaled scores in example-gpt": f"{data.trained.min():.1f}",
        "largest variance of a head's scaled scores in example-gpt": f"{data.trained.max():.1f}",
    }


FIGURE = Figure(measure, draw, facts)
