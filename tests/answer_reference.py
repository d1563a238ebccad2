"""Answers by the rules of `transformers` 4's question-answering pipeline, span by span in NumPy.

Of `select_starts_ends` and `decode_spans` in `transformers/pipelines/question_answering.py`
(v4.57), which `transformers` 5 has no more; then spans that overlap a better one are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ReadWindow:
    """One window: for each token its logits, whether it is the passage's, and its characters.

    Attributes:
        null: Position of the class token.
        places: Those of whole words, where answers are widened to them.
    """

    passage: int
    text: str
    logits: NDArray[np.float32]
    is_passage: Sequence[bool]
    null: int | None
    places: Sequence[tuple[int, int]]


Found = tuple[int | None, int, int, float]
"""Passage (None: the null answer), first character, character behind the last, score."""


def reference_answers(
    windows: Sequence[ReadWindow], n: int, longest: int, threshold: float | None = None
) -> tuple[list[Found], float | None]:
    """The answers, best first, and the score of the null answer."""
    spans: list[Found] = []
    null_score = None
    for window in windows:
        undesired = np.array([not inside for inside in window.is_passage])
        if window.null is not None:
            undesired[window.null] = False
        masked = np.where(undesired[:, None], -10000.0, window.logits.astype(np.float64))
        start, end = (np.exp(masked) / np.exp(masked).sum(axis=0)).T
        if window.null is not None:
            own = float(start[window.null] * end[window.null])
            null_score = own if null_score is None else min(null_score, own)
        for first in np.flatnonzero(window.is_passage):
            spans += [
                _span(window, first, last, float(start[first] * end[last]))
                for last in range(first, min(first + longest, len(start)))
                if window.is_passage[last]
            ]
    spans.sort(key=lambda span: -span[3])
    answers: list[Found] = []
    for passage, left, right, score in spans:
        overlaps = (p == passage and left < b and right > a for p, a, b, _ in answers)
        if left < right and not any(overlaps):
            answers.append((passage, left, right, score))
    if threshold is not None and null_score is not None:
        is_before = [log(null_score) - log(score) > threshold for *_, score in answers]
        place = is_before.index(True) if True in is_before else len(answers)
        answers.insert(place, (None, 0, 0, null_score))
    return answers[:n], null_score


def _span(window: ReadWindow, first: int, last: int, score: float) -> Found:
    (left, left_end), (right_start, right) = window.places[first], window.places[last]
    while left < left_end and window.text[left].isspace():
        left += 1
    while right > right_start and window.text[right - 1].isspace():
        right -= 1
    return window.passage, left, right, score
