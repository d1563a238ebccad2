"""Scores, windows and entities of tasks that classify texts or tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from inference.errors import InvalidRequest
from inference.processing.tokenizer import EncodedText

Scores = npt.NDArray[np.float32]
Activation: TypeAlias = Literal["softmax", "sigmoid", "none"]
"""softmax: probabilities among the labels; sigmoid: of each label by itself; none: the logits."""


def activate(logits: Scores, activation: Activation) -> Scores:
    """Scores of the last axis."""
    if activation == "none":
        return logits
    if activation == "sigmoid":
        return np.asarray(np.exp(-np.logaddexp(0, -logits)), dtype=np.float32)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)


def best_first(scores: Scores, count: int | None = None) -> list[int]:
    """Indices of a vector's scores, the best first; equal scores in their order."""
    return [int(index) for index in np.argsort(-scores, kind="stable")[:count]]


MAX_TOKENS = 65_536
"""Of all windows of a text: with a stride close to their length, there is one for each token."""


def windows(
    text: EncodedText, limit: int, stride: int, field: str, sequence: int = 0
) -> list[list[int]]:
    """Positions of the tokens of each window: as many as fit between the special tokens.

    As tokenizers of `transformers` do with `return_overflowing_tokens`: every window has the
    special tokens of the whole text, and of a pair the other text; it begins `stride` tokens before
    the end of the last one.

    Args:
        text: One text or a pair, of any length.
        limit: Tokens of a window, special tokens included.
        stride: Tokens that two windows share.
        field: The request's field that holds the stride.
        sequence: Of a pair, the text that is divided: the first (0) or the second (1).

    Raises:
        InvalidRequest: windows would not advance, or there would be too many.
    """
    content = [i for i, which in enumerate(text.sequences) if which == sequence]
    room = limit - (len(text) - len(content))
    if len(content) <= room:
        return [list(range(len(text)))]
    if stride >= room:
        raise InvalidRequest(
            f"{field} is {stride}, a window has {room} tokens of the text: give at most {room - 1}",
            field=field,
        )
    first, last = content[0], content[-1]
    before, after = range(first), range(last + 1, len(text))
    starts = range(0, len(content) - stride, room - stride)
    if len(starts) > (most := MAX_TOKENS // limit):
        raise InvalidRequest(
            f"{field} is {stride}, which makes {len(starts)} windows of {limit} tokens, at most "
            f"{most}: give less",
            field=field,
        )
    return [[*before, *content[start : start + room], *after] for start in starts]


OUTSIDE = "O"
"""The label of tokens that belong to no entity."""
_BEGIN, _INSIDE = "B-", "I-"


@dataclass(frozen=True, eq=False)
class LabelledToken:
    """One token of a text and the probabilities of its labels."""

    start: int
    end: int
    scores: Scores
    continues: bool
    """Whether it continues the word of the token before it."""


@dataclass(frozen=True)
class Entity:
    """Characters `start` to `end` (excluded) of a text, and their label."""

    start: int
    end: int
    label: str
    score: float


def entities(
    tokens: Sequence[LabelledToken], labels: Sequence[str], aggregation: str
) -> list[Entity]:
    """The entities of one window of a text.

    Args:
        tokens: Without special tokens, in order.
        labels: The model's, in the order of the scores.
        aggregation: `none`: a label for each token. `simple`: adjacent tokens of one entity are
            joined. `first`, `average`, `max`: the same for words, which have the label of their
            first token, of the average of their tokens, or of their most certain token.
    """
    if aggregation in ("none", "simple"):
        single = [_label([token], token.scores, labels) for token in tokens]
    else:
        single = [_label(word, _word_scores(word, aggregation), labels) for word in _words(tokens)]
    return single if aggregation == "none" else _join_words(single)


def without_overlaps(found: Iterable[Entity]) -> list[Entity]:
    """The entities of a text's windows: of two that overlap the longer one, then the better one."""
    ordered = sorted(found, key=lambda entity: entity.start)
    kept: list[Entity] = []
    for entity in ordered:
        last = kept[-1] if kept else None
        # Tokens of no width overlap nothing, but two windows may both have one.
        is_same = last is not None and (entity.start, entity.end) == (last.start, last.end)
        if last is None or not (is_same or last.start <= entity.start < last.end):
            kept.append(entity)
        elif _rank(entity) > _rank(last):
            kept[-1] = entity
    return kept


def _rank(entity: Entity) -> tuple[int, float]:
    return entity.end - entity.start, entity.score


def _words(tokens: Sequence[LabelledToken]) -> list[list[LabelledToken]]:
    words: list[list[LabelledToken]] = []
    for token in tokens:
        if words and token.continues:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _word_scores(word: Sequence[LabelledToken], aggregation: str) -> Scores:
    if aggregation == "first":
        return word[0].scores
    if aggregation == "max":
        return max(word, key=lambda token: float(token.scores.max())).scores
    return np.asarray(np.mean([token.scores for token in word], axis=0))


def _label(word: Sequence[LabelledToken], scores: Scores, labels: Sequence[str]) -> Entity:
    best = int(scores.argmax())
    return Entity(word[0].start, word[-1].end, labels[best], float(scores[best]))


def _join_words(words: Sequence[Entity]) -> list[Entity]:
    """Adjacent words of one entity as one; a label `B-…` begins another entity."""
    groups: list[list[Entity]] = []
    for word in words:
        is_next = groups and _kind(word.label) == _kind(groups[-1][-1].label)
        if is_next and not word.label.startswith(_BEGIN):
            groups[-1].append(word)
        else:
            groups.append([word])
    return [_group(group) for group in groups]


def _group(words: Sequence[Entity]) -> Entity:
    label = words[0].label.split("-", 1)[-1]
    score = float(np.mean([word.score for word in words]))
    return Entity(words[0].start, words[-1].end, label, score)


def _kind(label: str) -> str:
    """A label without the prefix for its place in an entity."""
    return label[2:] if label.startswith((_BEGIN, _INSIDE)) else label
