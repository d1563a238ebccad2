"""Training tasks of the recurrent examples: fresh texts of the training splits, and their loss."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from random import Random
from typing import ClassVar, Generic, TypeVar

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from examples.bert.reviews import SENTIMENTS, Review, reviews
from examples.gpt.train import paragraphs
from examples.history.recurrent.everyday_sentences import (
    LANGUAGES,
    Spoken,
    everyday_sentences,
    typed,
)
from examples.history.recurrent.networks import (
    CLASSES,
    END,
    NEXT,
    PADDING,
    TAGGING,
    UNKNOWN,
    Network,
    characters,
    plain_words,
    reversible_words,
)
from examples.history.recurrent.parts_of_speech import TaggedSentence, tagged_sentences
from examples.history.recurrent.review_templates import template_reviews
from examples.history.recurrent.tagged_phrases import TAGS

_IGNORED = -100  # labels that cross entropy skips
_HIDDEN_SHARE = 0.05  # of words, which training replaces by the unknown one
_TEMPLATE_SHARE = 0.35  # of reviews
_SHORTENED_SHARE = 0.6  # of sentences, to a random number of characters
_SHORTEST = 3  # characters of them

Row = TypeVar("Row")


class RecurrentTask(ABC, Generic[Row]):
    """Rows of one task, and the loss of a network on them.

    Attributes:
        kind: Of the network.
        labels: Of a classifier or tagger.
        longest: Tokens of the longest text.
        vocabulary_texts: The first rows, of which the tokenizer has its vocabulary.
    """

    kind: ClassVar[str]
    labels: ClassVar[tuple[str, ...]] = ()
    longest: ClassVar[int]
    vocabulary_texts: ClassVar[int] = 12_000

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"{type(self).__name__} {seed}")
        drawn = self.rows(seed)
        first = list(islice(drawn, self.vocabulary_texts))
        self.tokenizer = self.build_tokenizer(map(self.text_of, first))
        self._rows = chain(first, drawn)

    def loss(self, network: Network, batch: int) -> Tensor:
        """Mean cross entropy of the next rows."""
        rows = list(islice(self._rows, batch))
        tokens = [each.ids for each in self.tokenizer.encode_batch([*map(self.text_of, rows)])]
        return self.loss_of(network, rows, [ids[: self.longest] for ids in tokens])

    def rows(self, seed: int) -> Iterator[Row]:
        """Endless training rows."""
        raise NotImplementedError

    @abstractmethod
    def text_of(self, row: Row) -> str:
        """What the network reads."""

    @abstractmethod
    def build_tokenizer(self, texts: Iterable[str]) -> Tokenizer:
        """With a vocabulary of these texts."""

    @abstractmethod
    def loss_of(self, network: Network, rows: list[Row], tokens: list[list[int]]) -> Tensor:
        """Mean cross entropy of rows, given the tokens of their texts."""

    def hidden(self, ids: list[int]) -> list[int]:
        """Some tokens replaced by the unknown one."""
        return [UNKNOWN if self._rng.random() < _HIDDEN_SHARE else one for one in ids]


class Characters(RecurrentTask[str]):
    """The next character of a paragraph."""

    kind = NEXT
    longest = 254
    vocabulary_texts = 3_000

    def rows(self, seed: int) -> Iterator[str]:
        """Those of `example-gpt`."""
        return paragraphs(seed)

    def text_of(self, row: str) -> str:
        """All of it."""
        return row

    def build_tokenizer(self, texts: Iterable[str]) -> Tokenizer:
        """Characters."""
        return characters(texts)

    def loss_of(self, network: Network, rows: list[str], tokens: list[list[int]]) -> Tensor:
        """Over every character and the end; half of the rows begin with the end token too."""
        whole = [[END] * (at % 2) + ids + [END] for at, ids in enumerate(tokens)]
        given, lengths = padded([ids[:-1] for ids in whole], PADDING)
        following, _ = padded([ids[1:] for ids in whole], _IGNORED)
        return _cross_entropy(network(given, lengths), following)


class Words(Characters):
    """The next word of a paragraph."""

    longest = 126
    vocabulary_texts = 12_000

    def build_tokenizer(self, texts: Iterable[str]) -> Tokenizer:
        """Words."""
        return reversible_words(texts)


class PartsOfSpeech(RecurrentTask[TaggedSentence]):
    """The part of speech of each word."""

    kind = TAGGING
    labels = TAGS
    longest = 128

    def rows(self, seed: int) -> Iterator[TaggedSentence]:
        """Sentences with gold tags."""
        return tagged_sentences("train", seed)

    def text_of(self, row: TaggedSentence) -> str:
        """As it is written."""
        return row.text

    def build_tokenizer(self, texts: Iterable[str]) -> Tokenizer:
        """Words in lower case."""
        return plain_words(texts)

    def loss_of(
        self, network: Network, rows: list[TaggedSentence], tokens: list[list[int]]
    ) -> Tensor:
        """Over every word."""
        given, lengths = padded([self.hidden(ids) for ids in tokens], PADDING)
        truth, _ = padded([[TAGS.index(tag) for _, tag in row.words] for row in rows], _IGNORED)
        return _cross_entropy(network(given, lengths), truth)


class RecurrentSentiments(RecurrentTask[Review]):
    """The sentiment of a review."""

    kind = CLASSES
    labels = SENTIMENTS
    longest = 128

    def rows(self, seed: int) -> Iterator[Review]:
        """Those of `example-bert-sentiment`, and reviews of templates."""
        rng = Random(f"kinds of reviews {seed}")
        sources = reviews("train", seed), template_reviews("train", seed)
        while True:
            yield next(sources[rng.random() < _TEMPLATE_SHARE])

    def text_of(self, row: Review) -> str:
        """As it is written."""
        return row.text

    def build_tokenizer(self, texts: Iterable[str]) -> Tokenizer:
        """Words in lower case; made-up names are seldom and so unknown."""
        return plain_words(texts, least=5)

    def loss_of(self, network: Network, rows: list[Review], tokens: list[list[int]]) -> Tensor:
        """Of the three sentiments."""
        truth = torch.tensor([SENTIMENTS.index(row.sentiment) for row in rows])
        return _cross_entropy(network(*padded(tokens, PADDING)), truth)


class Languages(RecurrentTask[Spoken]):
    """The language of a sentence, or of its first characters."""

    kind = CLASSES
    labels = LANGUAGES
    longest = 256

    def rows(self, seed: int) -> Iterator[Spoken]:
        """Sentences as users type them, some of them cut off."""
        rng = Random(f"typing {seed}")
        for spoken in everyday_sentences("train", seed):
            text = typed(spoken.text, rng)
            if rng.random() < _SHORTENED_SHARE:
                text = text[: rng.randint(_SHORTEST, max(_SHORTEST, len(text)))]
            yield Spoken(text, spoken.language, spoken.pairs)

    def text_of(self, row: Spoken) -> str:
        """As it is typed."""
        return row.text

    def build_tokenizer(self, texts: Iterable[str]) -> Tokenizer:
        """Characters."""
        return characters(texts)

    def loss_of(self, network: Network, rows: list[Spoken], tokens: list[list[int]]) -> Tensor:
        """Of the six languages."""
        truth = torch.tensor([LANGUAGES.index(row.language) for row in rows])
        return _cross_entropy(network(*padded(tokens, PADDING)), truth)


def padded(rows: list[list[int]], value: int) -> tuple[Tensor, Tensor]:
    """(B, T) with this value behind each row, and lengths (B,)."""
    tensors = [torch.tensor(row) for row in rows]
    together = nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
    return together, torch.tensor([*map(len, rows)])


def _cross_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """(…, C), (…) → the mean."""
    return nn.functional.cross_entropy(logits.float().flatten(0, -2), truth.flatten())
