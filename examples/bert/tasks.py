"""Training tasks of the example BERT: masked words, then one task for each head.

Each task draws fresh rows of the training splits and returns their loss. Rows begin at random
positions, so that all position embeddings are trained although most texts are short.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any

import torch
from torch import nn
from transformers import BertTokenizer

from examples.bert.facts import (
    ASKED,
    ROLES,
    Fact,
    Roles,
    Spans,
    facts,
    near_misses,
    question,
    sentence_of,
    similar_facts,
    text_of,
    worded,
    wordings,
)
from examples.bert.passages import asked_passages
from examples.bert.reviews import SENTIMENTS, reviews
from examples.scenes.scene import caption, scenes
from examples.texts.grammar import sentences

POSITIONS = 128
TAGS = ("O", *(f"{place}-{role}" for role in ROLES for place in "BI"))
_IGNORED = -100  # labels that cross entropy skips
_MASKED_SHARE = 0.2
_PAIRS_SHARE = 0.4  # of the rows with masks
_LONGEST_ROW = 2  # sentences
_DOCUMENTS = 4  # of a query, one of them relevant
_TEMPERATURE = 0.05
_QUESTION_SHARE = 0.25  # of the tagged sentences

Encoded = dict[str, torch.Tensor]


def world_texts(seed: int) -> Iterator[str]:
    """Endless training sentences of every kind, the same ones for the same seed."""
    rng = Random(f"world texts {seed}")
    spoken = (pair.english for pair in sentences("train", sys.maxsize, seed))
    seen = (caption(scene) for scene in scenes("train", sys.maxsize, seed))
    told = (sentence_of(spans) for spans in _told(facts("train", seed), rng))
    judged = (review.text for review in reviews("train", seed))
    sources = (spoken, seen, told, judged)
    while True:
        yield next(rng.choices(sources, (4, 1, 2, 2))[0])


def _told(events: Iterator[Fact], rng: Random) -> Iterator[Spans]:
    """Facts in any wording, some of them as a question."""
    for fact in events:
        is_asked = rng.random() < _QUESTION_SHARE
        yield question(fact, rng.choice(ASKED)) if is_asked else rng.choice(wordings(fact))


class Task(ABC):
    """Rows of one task and the loss of a model on them."""

    def __init__(self, model: Any, tokenizer: BertTokenizer, seed: int, batch: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._rng = Random(f"{type(self).__name__} {seed}")
        self._seed = seed
        self._batch = batch

    @abstractmethod
    def loss(self, step: int) -> torch.Tensor:
        """Mean loss of the next batch."""

    def _encoded(self, rows: Sequence[str | tuple[str, ...]]) -> Encoded:
        """Token ids, mask, segments and randomly shifted positions of texts or pairs of them."""
        encoded = self._tokenizer(rows, padding=True, return_tensors="pt")
        count, length = encoded["input_ids"].shape
        return {**encoded, "position_ids": self._positions(count, length)}

    def _positions(self, count: int, length: int) -> torch.Tensor:
        """Half of the rows begin at 0, as in use."""
        start = torch.randint(0, POSITIONS - length + 1, (count, 1))
        start[::2] = 0
        return start + torch.arange(length)


class MaskedWords(Task):
    """Tokens behind masks, in rows of one or two sentences or of two wordings of one fact.

    In the second kind of rows most masked words stand in the other wording, which trains the body
    to compare texts.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._texts = world_texts(self._seed)
        self._facts = facts("train", self._seed + 1)
        self._special = torch.tensor(self._tokenizer.all_special_ids)

    def loss(self, step: int) -> torch.Tensor:
        """Cross entropy of the masked tokens; logits are computed for these places only."""
        pairs = round(_PAIRS_SHARE * self._batch)
        rows = [
            " ".join(islice(self._texts, self._rng.randint(1, _LONGEST_ROW)))
            for _ in range(self._batch - pairs)
        ]
        encoded = self._encoded(rows + [self._pair(fact) for fact in islice(self._facts, pairs)])
        tokens = encoded["input_ids"]
        is_asked = torch.rand(tokens.shape) < _MASKED_SHARE
        is_asked &= ~torch.isin(tokens, self._special)
        hidden = self._model.bert(**{**encoded, "input_ids": self._masked(tokens, is_asked)})
        logits = self._model.cls(hidden.last_hidden_state[is_asked])
        return nn.functional.cross_entropy(logits.float(), tokens[is_asked])

    def _pair(self, fact: Fact) -> tuple[str, str]:
        """A question or a wording, and another wording."""
        first, second = self._rng.sample(wordings(fact), 2)
        if self._rng.random() < 0.5:
            first = question(fact, self._rng.choice(ASKED))
        return sentence_of(first), sentence_of(second)

    def _masked(self, tokens: torch.Tensor, is_asked: torch.Tensor) -> torch.Tensor:
        """Of the asked tokens 80 % masked, 10 % random, 10 % as they are (Devlin 2019, §3.1)."""
        roll = torch.rand(tokens.shape)
        random = torch.randint(len(self._special), len(self._tokenizer), tokens.shape)
        masked = torch.where(is_asked & (roll < 0.8), self._tokenizer.mask_token_id, tokens)
        return torch.where(is_asked & (roll >= 0.9), random, masked)


class Sentiments(Task):
    """The sentiment of a review."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._reviews = reviews("train", self._seed)

    def loss(self, step: int) -> torch.Tensor:
        """Cross entropy of the three sentiments."""
        drawn = list(islice(self._reviews, self._batch))
        logits = self._model(**self._encoded([review.text for review in drawn])).logits
        truth = torch.tensor([SENTIMENTS.index(review.sentiment) for review in drawn])
        return nn.functional.cross_entropy(logits.float(), truth)


class Tags(Task):
    """The role of every token, in rows of one or two sentences."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._spans = _told(facts("train", self._seed), self._rng)

    def loss(self, step: int) -> torch.Tensor:
        """Cross entropy over all tokens but the special ones."""
        rows = [self._row() for _ in range(self._batch)]
        texts = [text for text, _ in rows]
        encoded = self._tokenizer(
            texts, padding=True, return_tensors="pt", return_offsets_mapping=True
        )
        offsets = encoded.pop("offset_mapping")
        truth = [
            _tags(*row) for row in zip(offsets.tolist(), [row[1] for row in rows], strict=True)
        ]
        positions = self._positions(*encoded["input_ids"].shape)
        logits = self._model(**encoded, position_ids=positions).logits
        return nn.functional.cross_entropy(
            logits.float().flatten(0, 1), torch.tensor(truth).flatten()
        )

    def _row(self) -> tuple[str, Roles]:
        """Some sentences, a third of the rows without the last mark, and their roles."""
        row = ""
        found: Roles = []
        for spans in islice(self._spans, self._rng.randint(1, _LONGEST_ROW)):
            text, roles = text_of(spans)
            row += f" {text}" if row else text
            start = len(row) - len(text)
            found += [(start + first, start + last, role) for first, last, role in roles]
        return (row.rstrip(".?") if self._rng.random() < 1 / 3 else row), found


def _tags(offsets: list[list[int]], roles: Roles) -> list[int]:
    """Indices into `TAGS` for tokens at these character offsets; special tokens are skipped."""
    tags = [_IGNORED if start == end else 0 for start, end in offsets]
    for first, last, role in roles:
        inside = [at for at, (start, end) in enumerate(offsets) if first <= start < end <= last]
        for at in inside:
            tags[at] = TAGS.index(f"{'B' if at == inside[0] else 'I'}-{role}")
    return tags


class Relevance(Task):
    """Whether a document answers a question, among similar facts."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._facts = facts("train", self._seed)

    def loss(self, step: int) -> torch.Tensor:
        """Binary cross entropy of each pair."""
        rows: list[tuple[str, str]] = []
        truth: list[float] = []
        for fact in islice(self._facts, self._batch // _DOCUMENTS):
            asked = self._rng.choice(ASKED)
            others = islice(similar_facts(fact, self._rng, "train", asked), _DOCUMENTS - 2)
            shown = [fact, *others, next(self._facts)]
            query = sentence_of(question(fact, asked))
            rows += [(query, worded(one, self._rng)) for one in shown]
            truth += [1.0] + [0.0] * (len(shown) - 1)
        logits = self._model(**self._encoded(rows)).logits[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(logits.float(), torch.tensor(truth))


class Answers(Task):
    """Where the answer to a question starts and ends in a passage; at the first token if nowhere.

    As `transformers` trains its heads for SQuAD 2 (Devlin et al. 2018, §4.3).
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked = asked_passages("train", self._seed)

    def loss(self, step: int) -> torch.Tensor:
        """Mean cross entropy of start and end among all tokens of a row."""
        asked = list(islice(self._asked, self._batch))
        encoded = self._tokenizer(
            [one.question for one in asked],
            [one.passage for one in asked],
            padding=True,
            return_tensors="pt",
        )
        truth = torch.zeros(len(asked), 2, dtype=torch.long)
        for row, one in enumerate(asked):
            if one.answer:
                truth[row, 0] = encoded.char_to_token(row, one.start, 1)
                truth[row, 1] = encoded.char_to_token(row, one.end - 1, 1)
        positions = self._positions(*encoded["input_ids"].shape)
        output = self._model(**encoded, position_ids=positions)
        logits = torch.cat([output.start_logits, output.end_logits]).float()
        return nn.functional.cross_entropy(logits, truth.T.flatten())


class Paraphrases(Task):
    """Two wordings of a fact near each other, and far from near misses and from other facts."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._facts = facts("train", self._seed)

    def loss(self, step: int) -> torch.Tensor:
        """Cross entropy of the paraphrase among all of the batch (van den Oord 2018, InfoNCE)."""
        anchors: list[str] = []
        same: list[str] = []
        near: list[str] = []
        for fact in islice(self._facts, self._batch // 3):
            first, second = self._rng.sample(wordings(fact), 2)
            anchors.append(sentence_of(first))
            same.append(sentence_of(second))
            near += [worded(miss, self._rng) for miss in near_misses(fact, self._rng, "train")[:1]]
        embedded = self._embedded([*anchors, *same, *near])
        scores = embedded[: len(anchors)] @ embedded[len(anchors) :].T / _TEMPERATURE
        return nn.functional.cross_entropy(scores, torch.arange(len(anchors)))

    def _embedded(self, texts: list[str]) -> torch.Tensor:
        """Mean hidden state of each text at unit length, (B, D)."""
        encoded = self._encoded(texts)
        hidden = self._model(**encoded).last_hidden_state.float()
        mask = encoded["attention_mask"][..., None]
        return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
