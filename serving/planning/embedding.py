"""Texts and images to calls of a bundle's embedding parts, and to their embeddings afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from serving.bundle import Role
from serving.errors import ServingError
from serving.planning.buckets import ROWS, buckets
from serving.planning.calls import Array, InferCall, Outcome
from serving.planning.embedding_cache import Embedded, Vector
from serving.planning.image_inputs import ImageInput, prepare_images
from serving.planning.items import unwrap
from serving.planning.limits import TaskLimits
from serving.planning.loaded_model import LoadedModel


@dataclass(frozen=True)
class Row:
    """Position of one embedding in the outcomes of a plan."""

    call: int
    row: int

    def vector(self, outcomes: Sequence[Outcome]) -> Vector:
        """The embedding (D,).

        Raises:
            ServingError: its call failed.
        """
        outputs = unwrap(outcomes[self.call])
        assert isinstance(outputs, Mapping)
        row: Vector = outputs[Role.EMBEDDING][self.row]
        return row


@dataclass
class EmbeddingCalls:
    """The calls of one request, filled by `add_text`, `batch_texts` and `add_images`."""

    model: LoadedModel
    limits: TaskLimits
    calls: list[InferCall] = field(default_factory=list)
    _known: dict[str, Embedded] = field(default_factory=dict)
    _encoded: dict[str, list[int]] = field(default_factory=dict)

    def add_text(self, text: str, name: str, what: str = "") -> None:
        """Encode one text unless its embedding is cached or it was added before.

        Args:
            text: The text.
            name: The request's field that it comes from.
            what: Follows the field in an error, e.g. " in its template".

        Raises:
            TooLong: the text is longer than the model takes.
        """
        if text in self._known or text in self._encoded:
            return
        if (entry := self.model.embeddings.get(text)) is not None:
            self._known[text] = entry
            return
        ids = self.model.encode(text, name, self.limits)
        self.model.check_length(len(ids), name, what)
        self._encoded[text] = ids

    def batch_texts(self) -> TextRows:
        """Calls for the texts that were encoded, in batches of equal padded length."""
        texts, sequences = list(self._encoded), list(self._encoded.values())
        rows: dict[str, tuple[Row, int]] = {}
        limit = self.model.manifest.limits.max_input_tokens
        for bucket in buckets(sequences, self.model.pad_token_id, limit):
            for position, number in enumerate(bucket.rows):
                rows[texts[number]] = Row(len(self.calls), position), len(sequences[number])
            text: dict[Role, Array] = {
                Role.TOKENS: bucket.token_ids,
                Role.LENGTHS: bucket.lengths,
            }
            self._add(Role.TOKENS, text)
        return TextRows(self.model, self._known, rows)

    def add_images(self, images: Sequence[ImageInput]) -> tuple[Row | ServingError, ...]:
        """Calls for the readable images: each one's row, or its error.

        Raises:
            InvalidRequest: too many images.
            ServingError: none could be read; the first one's error.
        """
        pixels = prepare_images(images, self.model, self.limits)
        readable = [image for image in pixels if not isinstance(image, ServingError)]
        rows: list[Row] = []
        for start in range(0, len(readable), ROWS):
            batch = readable[start : start + ROWS]
            rows.extend(Row(len(self.calls), position) for position in range(len(batch)))
            self._add(Role.PIXELS, {Role.PIXELS: np.stack(batch)})
        remaining = iter(rows)
        return tuple(
            image if isinstance(image, ServingError) else next(remaining) for image in pixels
        )

    def _add(self, takes: Role, inputs: Mapping[Role, Array]) -> None:
        """One call of the part that takes `takes`, with those inputs that its graph has."""
        part = self.model.part(takes=takes, returns=Role.EMBEDDING)
        used = {role: array for role, array in inputs.items() if part.graph.input(role)}
        self.calls.append(InferCall.of(part, used, returns=(Role.EMBEDDING,)))


@dataclass(frozen=True)
class TextRows:
    """The texts of one request: those that were cached, and the rows of the others."""

    model: LoadedModel
    known: Mapping[str, Embedded]
    rows: Mapping[str, tuple[Row, int]]
    """Text → its row and its number of tokens."""

    def embedded(self, text: str, outcomes: Sequence[Outcome]) -> Embedded:
        """A text's embedding; a new one enters the cache.

        Raises:
            ServingError: its call failed.
        """
        if text in self.known:
            return self.known[text]
        row, tokens = self.rows[text]
        entry = Embedded(row.vector(outcomes).copy(), tokens)
        self.model.embeddings.put(text, entry)
        return entry
