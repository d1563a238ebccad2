"""Random texts as a tokenizer completes them: special tokens around them, segments of pairs.

A trained model has seen no text without its special tokens. Without them a classifier's scores are
small and arbitrary, and activations have other ranges than in service; int8 with fixed scales is
therefore calibrated on, and compared on, framed texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Bundle, Graph, Manifest, Role
from inference.processing.tokenizer import EncodedText
from inference.processing.tokenizer_kinds import FastTokenizer, load_tokenizer
from inference.tasks.shared.length_buckets import fixed_width

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Template:
    """A text or a pair with its special tokens; None stands for the tokens of one text.

    Attributes:
        tokens: Id of each special token.
        segments: Of each entry of `tokens`.
    """

    tokens: tuple[int | None, ...]
    segments: tuple[int, ...]

    @classmethod
    def of(cls, text: EncodedText) -> Template:
        """The template of an encoded example."""
        entries: list[tuple[int | None, int]] = []
        tokens = zip(text.ids, text.segments, text.sequences, strict=True)
        for sequence, group in groupby(tokens, key=lambda token: token[2]):
            members = [(index, segment) for index, segment, _ in group]
            if sequence is None:
                entries += members
            else:
                entries.append((None, members[0][1]))
        return cls(tuple(index for index, _ in entries), tuple(part for _, part in entries))

    @property
    def least(self) -> int:
        """Tokens of the shortest text: one for each place."""
        return len(self.tokens)

    def filled(self, content: Ids) -> tuple[Ids, Ids]:
        """Ids and segments of one text, from `least` tokens on.

        Args:
            content: (length,), of which the first are used.
        """
        places = self.tokens.count(None)
        free = len(content) - (len(self.tokens) - places)
        texts = iter(np.array_split(content[:free], max(places, 1)))
        ids: list[int] = []
        segments: list[int] = []
        for token, segment in zip(self.tokens, self.segments, strict=True):
            drawn = [token] if token is not None else next(texts).tolist()
            ids += drawn
            segments += [segment] * len(drawn)
        return np.array(ids, np.int64), np.array(segments, np.int64)


@dataclass(frozen=True)
class Framing:
    """How a bundle's tokenizer completes texts.

    Attributes:
        single: Of a text; of a pair where no graph reads anything else.
        classified: Of what a classifier reads: a text, or a pair where it reads nothing else.
        mask: The token at the positions that a masked-word head scores.
        pad: Fills graphs of one fixed width.
    """

    single: Template
    classified: Template
    mask: int | None
    pad: int

    @classmethod
    def of(cls, bundle: Bundle) -> Framing | None:
        """The bundle's; None without texts, or with a tokenizer that encodes no pairs."""
        spec = bundle.manifest.tokenizer
        if spec is None or "tokenizer" not in spec.files:
            return None
        tokenizer = load_tokenizer(bundle)
        assert isinstance(tokenizer, FastTokenizer)
        second = "a" if reads_only_pairs(bundle.manifest) else None
        classified = Template.of(tokenizer.encode_text("a", second))
        answers = "answer" in bundle.manifest.tasks
        return cls(
            classified if answers else Template.of(tokenizer.encode_text("a")),
            classified,
            mask_token_id(bundle.manifest),
            spec.pad_token_id,
        )

    def lengths(self, graph: Graph, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """Lengths of the texts of a batch, none shorter than its frame."""
        return np.maximum(lengths, np.int32(self._template(graph).least))

    def framed(
        self, graph: Graph, feeds: Mapping[str, Ids], random: np.random.Generator
    ) -> dict[str, Ids]:
        """Random inputs (B, T) of a graph with special tokens, segments and masks in place.

        Args:
            feeds: Inputs by name, of lengths that `lengths` returned.
        """
        ports = {role: graph.input(role) for role in Role}
        named = {role: port.name for role, port in ports.items() if port is not None}
        found = dict(feeds)
        if Role.TOKENS not in named:
            return found
        tokens = feeds[named[Role.TOKENS]].copy()
        segments = np.zeros_like(tokens)
        for row in range(len(tokens)):
            length = self._length(named, feeds, row)
            filled = self._template(graph).filled(tokens[row, :length])
            tokens[row, :length], segments[row, :length] = filled
            if fixed_width(graph) is not None:
                tokens[row, length:] = self.pad
            if Role.POSITIONS in named:
                positions = self._positions(length, feeds[named[Role.POSITIONS]].shape[1], random)
                found[named[Role.POSITIONS]][row] = positions
                if self.mask is not None:
                    tokens[row, positions] = self.mask
        found[named[Role.TOKENS]] = tokens
        if Role.SEGMENTS in named:
            found[named[Role.SEGMENTS]] = segments
        return found

    def _template(self, graph: Graph) -> Template:
        return self.classified if classifies_texts(graph) else self.single

    def _length(self, named: Mapping[Role, str], feeds: Mapping[str, Ids], row: int) -> int:
        if Role.LENGTHS in named:
            return int(feeds[named[Role.LENGTHS]][row])
        return int(feeds[named[Role.TOKENS]].shape[1])

    def _positions(self, length: int, count: int, random: np.random.Generator) -> Ids:
        """Some positions of the text itself."""
        start = next(i for i, token in enumerate(self.single.tokens) if token is None)
        room = length - (self.single.least - 1)
        return start + random.integers(0, room, count)


def classifies_texts(graph: Graph) -> bool:
    """Whether a graph returns the scores of a text's or a pair's classes."""
    logits = graph.output(Role.LOGITS)
    return graph.input(Role.TOKENS) is not None and logits is not None and len(logits.shape) == 2


def reads_only_pairs(manifest: Manifest) -> bool:
    """Whether a bundle reads pairs alone: query and document, question and passage, sentences."""
    tasks = manifest.tasks
    pairs: str | None = tasks.get("classify", {}).get("pairs")
    return "rerank" in tasks or "answer" in tasks or pairs == "required"


def mask_token_id(manifest: Manifest) -> int | None:
    """The token that stands for a masked word; None for models that fill none in."""
    index: int | None = manifest.tasks.get("fill-mask", {}).get("mask_token_id")
    return index
