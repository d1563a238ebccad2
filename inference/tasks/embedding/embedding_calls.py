"""Texts and images to calls of a bundle's embedding parts, and to their embeddings afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np

from inference.bundle.manifest import Role
from inference.errors import InvalidRequest, ServingError
from inference.processing.prepared_image import PreparedImage
from inference.processing.tokenizer import EncodedText
from inference.tasks.shared.embedding_cache import Embedded, Vector
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.length_buckets import ROWS
from inference.tasks.shared.loaded_model import LoadedModel, check_is_not_blank
from inference.tasks.shared.model_calls import Array, InferCall, Outcome, attempt_each, unwrap
from inference.tasks.shared.rows import Row, image_rows
from inference.tasks.shared.text_rows import TextRows
from triptych.messages import TruncationDirection
from triptych.task import FRAME_COUNTS, IMAGES


class EmbeddingPlace(Protocol):
    """Where the embedding of one item is: a `Row`, or `Frames`."""

    def read(self, outcomes: Sequence[Outcome], role: Role) -> Array:
        """The embedding (D,)."""


@dataclass
class EmbeddingCalls:
    """The calls of one request, filled by `add_text`, `batch_texts` and `add_images`."""

    model: LoadedModel
    calls: list[InferCall] = field(default_factory=list)
    cut_end: TruncationDirection | None = None
    """The end at which texts are cut that are too long; None: they are refused."""
    _known: dict[str, Embedded] = field(default_factory=dict)
    _encoded: dict[str, tuple[int, EncodedText]] = field(default_factory=dict)
    """Text → its number among the different rows, and its tokens."""
    _texts: TextRows = field(init=False)

    def __post_init__(self) -> None:
        self._texts = TextRows(self.model)

    def add_text(self, text: str, name: str, what: str = "", prompt: str = "") -> str:
        """Encode one text unless its embedding is cached or it was added before.

        Args:
            name: The request's field that it comes from.
            what: Follows the field in an error, e.g. " in its template".
            prompt: Stands before the text.

        Returns:
            The text with its prompt, by which `EmbeddedTexts` has it.

        Raises:
            InvalidRequest: the text is empty.
            TooLong: the text is longer than the model takes.
        """
        whole = prompt + text
        if (entry := self.model.embeddings.get(whole)) is not None:
            self._known[whole] = entry
        if whole in self._known or whole in self._encoded:
            check_is_not_blank(text, name)  # the prompt alone may have been another's text
            return whole
        encoded = self.model.encode_text(text, name, what=what, cut_end=self.cut_end, prompt=prompt)
        self._encoded[whole] = self._texts.add(encoded), encoded
        return whole

    def add_labels(self, labels: Sequence[str]) -> None:
        """Encode the field `labels` of a request, see `add_text`.

        Raises:
            InvalidRequest: one of them is empty.
            TooLong: one of them is longer than the model takes.
        """
        for index, label in enumerate(labels):
            self.add_text(label, f"labels.{index}")

    def batch_texts(self) -> EmbeddedTexts:
        """Calls for the texts that were encoded, in batches of equal padded length."""
        rows: dict[str, tuple[Row, EncodedText]] = {}
        if self._encoded:
            part = self.model.part(takes=Role.TOKENS, returns=Role.EMBEDDING)
            found = self._texts.batch(part, (Role.EMBEDDING,), self.calls)
            rows = {
                text: (found[number], encoded) for text, (number, encoded) in self._encoded.items()
            }
        return EmbeddedTexts(self.model, self._known, rows)

    def add_images(
        self,
        images: Sequence[ImageInput],
        frame_counts: Sequence[int] | None,
        returns: tuple[Role, ...] = (Role.EMBEDDING,),
    ) -> tuple[EmbeddingPlace | ServingError, ...]:
        """Calls for the readable images: each item's place, or its error.

        Args:
            frame_counts: Images of each item; None: one.
            returns: Outputs, of which the place of a video has them all.

        Raises:
            InvalidRequest: too many images, or other numbers of frames than of images.
            ServingError: no item could be read; the first one's error.
        """
        if frame_counts is not None and sum(frame_counts) != len(images):
            raise InvalidRequest(
                f"{FRAME_COUNTS} adds up to {sum(frame_counts)}, {IMAGES} holds {len(images)}: "
                "give the number of frames of each item",
                field=FRAME_COUNTS,
            )
        prepared = prepare_images(images, self.model)
        part = self.model.part(takes=Role.PIXELS, returns=Role.EMBEDDING)
        if (read := part.graph.frames) is not None:
            items = _divide(prepared, frame_counts or [1] * len(prepared))
            videos = attempt_each(items, lambda _, item: choose_frames(item, read))
            return image_rows(videos, part, returns, self.calls, most=max(1, ROWS // read))
        rows = image_rows(prepared, part, returns, self.calls)
        if frame_counts is None:
            return rows
        items = _divide(rows, frame_counts)
        return attempt_each(items, lambda _, item: Frames(tuple(map(unwrap, item))))


def _divide(items: Sequence[Any], counts: Sequence[int]) -> list[tuple[Any, ...]]:
    remaining = iter(items)
    return [tuple(islice(remaining, count)) for count in counts]


def choose_frames(frames: Sequence[PreparedImage | ServingError], count: int) -> PreparedImage:
    """The frames in the middle of equal parts of a video, as one image (count, height, width, 3).

    A video with fewer frames shows some of them several times. Either is what the authors of X-CLIP
    test with (arXiv 2208.02816: `SampleFrames` of their code).

    Raises:
        ServingError: a frame could not be read.
    """
    images = [unwrap(frame) for frame in frames]
    chosen = [images[(2 * part + 1) * len(images) // (2 * count)] for part in range(count)]
    return replace(chosen[0], pixels=np.stack([image.pixels for image in chosen]))


@dataclass(frozen=True)
class Frames:
    """Where the embeddings of the frames of one item are."""

    rows: tuple[Row, ...]

    def read(self, outcomes: Sequence[Outcome], role: Role) -> Vector:
        """(D,): the mean of the frames' unit vectors, at unit length.

        It is CLIP4Clip's parameter-free similarity (arXiv 2104.08860, section 3.3).

        Raises:
            ServingError: the call of one frame failed.
        """
        vectors = [scale_to_unit(row.read(outcomes, role)) for row in self.rows]
        return scale_to_unit(np.mean(vectors, axis=0, dtype=np.float64))


def scale_to_unit(vector: Array) -> Vector:
    """The vector at length 1; one of zeros stays so."""
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-12), dtype=np.float32)


@dataclass(frozen=True)
class EmbeddedTexts:
    """The texts of one request: those that were cached, and the rows of the others."""

    model: LoadedModel
    known: Mapping[str, Embedded]
    rows: Mapping[str, tuple[Row, EncodedText]]

    def find_embedding(self, text: str, outcomes: Sequence[Outcome]) -> Embedded:
        """A text's embedding; a new one enters the cache, unless the text was cut.

        Raises:
            ServingError: its call failed.
        """
        if text in self.known:
            return self.known[text]
        row, encoded = self.rows[text]
        cut = encoded.cut_characters
        entry = Embedded(row.read(outcomes, Role.EMBEDDING).copy(), len(encoded), cut)
        if not cut:
            self.model.embeddings.put(text, entry)
        return entry
