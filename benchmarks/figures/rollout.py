"""Attention roll-out of a ViT classifier (Abnar & Zuidema 2020, §3, arXiv 2005.00928).

The responses are those of `/v1/classify` with `return_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from PIL import Image

from benchmarks.figures import pictures, style
from benchmarks.figures.figure import Facts, Figure, percent
from benchmarks.panel import BATCH, as_pngs
from examples.vit.scores import TEST_SEED, attention_shares
from triptych import Client

MODEL = "example-vit"
PICTURES = ("scene-1.png", "scene-2.png", "scene-3.png", "scene-4.png", "scene-5.jpg")
COUNT = 200  # pictures behind the shares


@dataclass(frozen=True)
class Measurements:
    """The best class and the map of each picture, and shares over held-out pictures."""

    labels: list[str]
    maps: list[NDArray[Any]]
    shares: dict[str, float]


def measure(client: Client) -> Measurements:
    """Classifies the demo's pictures, then the held-out ones."""

    def classify(images: list[Image.Image]) -> list[Any]:
        asked: dict[str, Any] = {"model": MODEL, "top_k": 1, "return_attention": True}
        return [
            item
            for start in range(0, len(images), BATCH)
            for item in client.classify(images=as_pngs(images[start : start + BATCH]), **asked).data
        ]

    def attend(images: list[Image.Image]) -> list[NDArray[Any]]:
        return [np.array(item.attention) for item in classify(images)]

    items = classify([pictures.scene(name) for name in PICTURES])
    return Measurements(
        [f"{item.labels[0].label}, {item.labels[0].score:.0%}" for item in items],
        [np.array(item.attention) for item in items],
        attention_shares(attend, COUNT, TEST_SEED),
    )


def draw(data: Measurements) -> Canvas:
    """Each picture above its map."""
    figure, axes = style.canvas(8.4, 3.6, 2, len(PICTURES))
    for column, (name, label, weights) in enumerate(
        zip(PICTURES, data.labels, data.maps, strict=True)
    ):
        picture = pictures.scene(name)
        pictures.show(axes[0, column], np.asarray(picture), label)
        pictures.show(axes[1, column], pictures.lit(picture, weights))
    return figure


def facts(data: Measurements) -> Facts:
    """Where the roll-out's attention is."""
    return {name: percent(share) for name, share in data.shares.items()}


FIGURE = Figure(measure, draw, facts, is_served=True)
