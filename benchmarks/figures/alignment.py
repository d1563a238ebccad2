"""Alignments of two translators: additive attention, and cross-attention of a Transformer.

Bahdanau et al. 2015, §5.2 and figure 3 (arXiv 1409.0473). The responses are those of
`/v1/translate` with `return_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from benchmarks.figures import style, words
from benchmarks.figures.figure import Facts, Figure, percent
from examples.demo.encoders import AGREEMENT
from examples.en_fr import scores as score_gazette
from examples.es_en import scores as score_inversions
from export.training.functions import Reading
from triptych import Client
from triptych.tasks.translate import Alignment

SPANISH = "El gato negro de Pedro está durmiendo en la cocina."
APOSTROPHE = "'"
COUNT = 200  # sentences behind the shares
_BATCH = 8  # a response has a limit of weights
_SPLIT = "held_out"


@dataclass(frozen=True)
class Measurements:
    """One sentence's alignment by each model, and shares over held-out sentences.

    Attributes:
        recurrent: example-en-fr.
        transformer: example-es-en.
        reversed_share: example-en-fr: nouns and adjectives of reversed phrases that are aligned
            best with their own word.
        inverted_share: The same of example-es-en.
        peaks: Mean of the largest weight of a row, by model, over the same sentences.
        ends: Mean weight on the end token of the source, by model.
    """

    recurrent: Alignment
    transformer: Alignment
    reversed_share: float
    inverted_share: float
    peaks: tuple[float, float]
    ends: tuple[float, float]


def measure(client: Client) -> Measurements:
    """Translates the two sentences, then the held-out ones."""
    french, english = Reader(client, "example-en-fr"), Reader(client, "example-es-en", words=True)
    reversed_share = score_gazette.alignment_share(french.read, _SPLIT, COUNT, only_reversed=True)
    inverted_share, _ = score_inversions.inversion_shares(english.read, _SPLIT, COUNT)
    readers = (french, english)
    return Measurements(
        french.align([AGREEMENT])[0][1],
        english.align([SPANISH])[0][1],
        reversed_share,
        inverted_share,
        (readers[0].peak, readers[1].peak),
        (readers[0].end, readers[1].end),
    )


class Reader:
    """Greedy translations with alignments, over the API.

    Args:
        words: Whether the scores count words, not tokens.
    """

    def __init__(self, client: Client, model: str, *, words: bool = False) -> None:
        self._client, self._model, self._joins = client, model, words
        self._rows: list[tuple[float, float]] = []

    @property
    def peak(self) -> float:
        """Mean over the rows of all `read`, without end tokens, of their largest weight."""
        return float(np.mean([peak for peak, _ in self._rows]))

    @property
    def end(self) -> float:
        """Mean over the same rows of their weight on the end token."""
        return float(np.mean([end for _, end in self._rows]))

    def align(self, texts: Sequence[str]) -> list[tuple[str, Alignment]]:
        """Translations and their alignments."""
        asked: dict[str, Any] = {"model": self._model, "num_beams": 1, "return_attention": True}
        return [
            (str(item.text), item.alignment)
            for start in range(0, len(texts), _BATCH)
            for item in self._client.translate(texts[start : start + _BATCH], **asked).data
        ]

    def read(self, texts: list[str]) -> list[Reading]:
        """Translations as the scores read them."""
        return [Reading(text, self._matrix(found)) for text, found in self.align(texts)]

    def _matrix(self, found: Alignment) -> NDArray[Any]:
        weights = np.array(found.weights)
        tokens = weights[:-1]  # without the row of the end token
        self._rows += zip(tokens.max(axis=1), tokens[:, -1], strict=True)
        if not self._joins:
            return weights
        _, rows = words.by_row(found.target_tokens, weights)
        return words.by_column(found.source_tokens, rows)


def draw(data: Measurements) -> Canvas:
    """Both matrices, target tokens down and source tokens across."""
    figure, ((left, right),) = style.canvas(8.4, 4.4, 1, 2)
    for axis, found, title in (
        (left, data.recurrent, "example-en-fr: GRU with additive attention"),
        (right, data.transformer, "example-es-en: Transformer, last layer, mean over heads"),
    ):
        bar = style.matrix(axis, found.weights, title, vmin=0, vmax=1)
        style.label(axis, found.target_tokens, found.source_tokens)
    figure.colorbar(bar, ax=[left, right], shrink=0.6)
    return figure


def facts(data: Measurements) -> Facts:
    """Shares of the words aligned right, and how sharp and how idle the rows are."""
    return {
        "example-en-fr, reversed words aligned with their own": percent(data.reversed_share),
        "example-es-en, inverted words aligned with their own": percent(data.inverted_share),
        "example-en-fr, mean largest weight of a row": f"{data.peaks[0]:.2f}",
        "example-es-en, mean largest weight of a row": f"{data.peaks[1]:.2f}",
        "weight of zone's article on Area": f"{weight(data.recurrent, 'la', 'Area'):.2f}",
        "weight of the preposition en on August": f"{weight(data.recurrent, 'en', 'August'):.2f}",
        "weight of ' on de": f"{weight(data.transformer, APOSTROPHE, 'de'):.2f}",
        "example-en-fr, mean weight on the end token": f"{data.ends[0]:.2f}",
        "example-es-en, mean weight on the end token": f"{data.ends[1]:.2f}",
    }


def weight(found: Alignment, target: str, source: str) -> float:
    """Of one pair of tokens, the first of these words."""
    row = [token.strip() for token in found.target_tokens].index(target)
    column = [token.strip() for token in found.source_tokens].index(source)
    return found.weights[row][column]


FIGURE = Figure(measure, draw, facts, is_served=True)
