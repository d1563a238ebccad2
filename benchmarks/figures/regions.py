"""What a captioner looks at for each word: Show, Attend and Tell beside ViT and GPT-2.

Xu et al. 2015, §5.4 and figure 3 (arXiv 1502.03044). The responses are those of `/v1/caption` with
`return_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from PIL import Image

from benchmarks.figures import pictures, style, words
from benchmarks.figures.figure import Facts, Figure, percent
from benchmarks.panel import BATCH, as_pngs
from examples.scenes.scores import TEST_SEED, TokenMap, attention_scores
from triptych import Client

MODELS = ("example-show-attend-tell", "example-captioner")
PICTURE = "scene-1.png"
COUNT = 200  # pictures behind the shares
SKIPPED = ("a", "on", "background")
"""Words of the caption that are not drawn."""


@dataclass(frozen=True)
class Measurements:
    """By model: the words of one caption with their maps, and shares over held-out pictures."""

    captions: dict[str, list[TokenMap]]
    shares: dict[str, dict[str, float]]


def measure(client: Client) -> Measurements:
    """Captions of one picture, then of the held-out ones."""
    observers = {model: Observer(client, model) for model in MODELS}
    picture = pictures.scene(PICTURE)
    return Measurements(
        {model: observer.observe([picture])[0] for model, observer in observers.items()},
        {
            model: attention_scores(observer.observe, COUNT, TEST_SEED)
            for model, observer in observers.items()
        },
    )


class Observer:
    """Captions with the map of each word, over the API."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self._model = client, model

    def observe(self, images: list[Image.Image]) -> list[list[TokenMap]]:
        """The words of each picture's caption."""
        asked: dict[str, Any] = {"model": self._model, "num_beams": 1, "return_attention": True}
        return [
            _words(item)
            for start in range(0, len(images), BATCH)
            for item in self._client.caption(as_pngs(images[start : start + BATCH]), **asked).data
        ]


def _words(item: Any) -> list[TokenMap]:
    """Words of a caption, without its end token."""
    texts, maps = words.by_row(item.attention.tokens, item.attention.weights)
    known = set(item.text.split())
    grid: NDArray[Any] = maps.reshape(-1, *item.attention.grid)
    return [TokenMap(text, grid[i]) for i, text in enumerate(texts) if text in known]


def draw(data: Measurements) -> Canvas:
    """A row for each model, a picture for each word."""
    picture = pictures.scene(PICTURE)
    kept = {
        model: [token for token in tokens if token.word not in SKIPPED]
        for model, tokens in data.captions.items()
    }
    columns = max(map(len, kept.values())) + 1
    figure, axes = style.canvas(8.4, 2.1, len(kept), columns)
    for row, (model, tokens) in zip(axes, kept.items(), strict=True):
        pictures.show(row[0], np.asarray(picture))
        row[0].set_ylabel(model.removeprefix("example-"), fontsize=6)
        for axis, token in zip(row[1:], tokens, strict=False):
            pictures.show(axis, pictures.lit(picture, token.map))
            axis.set_title(token.word, fontsize=7)
        for axis in row[len(tokens) + 1 :]:
            axis.remove()
    return figure


def facts(data: Measurements) -> Facts:
    """The shares of both models."""
    return {
        f"{model}, {name}": percent(share)
        for model, shares in data.shares.items()
        for name, share in shares.items()
    }


FIGURE = Figure(measure, draw, facts, is_served=True)
