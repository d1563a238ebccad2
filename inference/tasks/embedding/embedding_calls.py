"""Texts and images to calls of a bundle's embedding parts, and to their embeddings afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference.bundle.manifest import Role
from inference.errors import InvalidRequest, ServingError
from inference.tasks.shared.embedding_cache import Embedded
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import InferCall, Outcome
from inference.tasks.shared.rows import Row, image_rows
from inference.tasks.shared.text_rows import TextRows


@dataclass
class EmbeddingCalls:
    """The calls of one request, filled by `add_text`, `batch_texts` and `add_images`."""

    model: LoadedModel
    calls: list[InferCall] = field(default_factory=list)
    _known: dict[str, Embedded] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _texts: TextRows = field(init=False)

    def __post_init__(self) -> None:
        self._texts = TextRows(self.model)

    def add_text(self, text: str, name: str, what: str = "") -> None:
        """Encode one text unless its embedding is cached or it was added before.

        Args:
            name: The request's field that it comes from.
            what: Follows the field in an error, e.g. " in its template".

        Raises:
            InvalidRequest: the text is empty.
            TooLong: the text is longer than the model takes.
        """
        if text in self._known or text in self._numbers:
            return
        if (entry := self.model.embeddings.get(text)) is not None:
            self._known[text] = entry
            return
        encoded = self.model.encode_text(text, name, what=what)
        self._numbers[text] = self._texts.add(encoded)

    def add_labels(self, labels: Sequence[str]) -> None:
        """Encode the field `labels` of a request, see `add_text`.

        Raises:
            InvalidRequest: one of them is empty.
            TooLong: one of them is longer than the model takes.
        """
        for index, label in enumerate(labels):
            if not label.strip():
                raise InvalidRequest(f"labels.{index} is empty", field=f"labels.{index}")
            self.add_text(label, f"labels.{index}")

    def batch_texts(self) -> EmbeddedTexts:
        """Calls for the texts that were encoded, in batches of equal padded length."""
        rows: dict[str, tuple[Row, int]] = {}
        if self._numbers:
            part = self.model.part(takes=Role.TOKENS, returns=Role.EMBEDDING)
            found = self._texts.batch(part, (Role.EMBEDDING,), self.calls)
            for text, number in self._numbers.items():
                rows[text] = found[number], len(self._texts.texts[number])
        return EmbeddedTexts(self.model, self._known, rows)

    def add_images(self, images: Sequence[ImageInput]) -> tuple[Row | ServingError, ...]:
        """Calls for the readable images: each one's row, or its error.

        Raises:
            InvalidRequest: too many images.
            ServingError: none could be read; the first one's error.
        """
        prepared = prepare_images(images, self.model)
        part = self.model.part(takes=Role.PIXELS, returns=Role.EMBEDDING)
        return image_rows(prepared, part, (Role.EMBEDDING,), self.calls)


@dataclass(frozen=True)
class EmbeddedTexts:
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
        entry = Embedded(row.read(outcomes, Role.EMBEDDING).copy(), tokens)
        self.model.embeddings.put(text, entry)
        return entry
