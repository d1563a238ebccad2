"""Prompts with images between their words: where they are, and how a model reads that.

The texts of an image's tiles are written before the prompt is tokenised, as the checkpoint's
processor does: words beside an image share tokens with what is written for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from pydantic import Field

from inference.engine.codec import SOURCE_IDS
from inference.errors import InvalidRequest, TooLong
from inference.processing.prepared_image import Grid, ImageLayout
from inference.tasks.shared.loaded_model import LoadedModel, naming
from inference.tasks.shared.model_calls import Array
from inference.tasks.shared.served_task import TaskConfig


class TileTexts(TaskConfig):
    """What a model reads for an image in tiles, with a place for each of them."""

    first: str = ""
    """In front of the tiles: for the whole image, where that comes first."""
    tile: str
    """For the tile at `{row}` and `{column}`, counted from 1."""
    between: str = ""
    """Between two tiles of a row."""
    row_end: str = ""
    """Behind each row of tiles."""
    whole: str = ""
    """For the whole image behind its tiles."""
    single: str
    """For an image without tiles."""
    edge: str | None = None
    """At both ends of what is written for an image: once between two in a row, and with a space
    between it and a word behind it. None: neither."""

    def write(self, grid: Grid) -> str:
        """The text of one image."""
        rows, columns = grid
        if not rows:
            return self.single
        text = self.first
        for row in range(1, rows + 1):
            text += self.between.join(
                self.tile.replace("{row}", str(row)).replace("{column}", str(column))
                for column in range(1, columns + 1)
            )
            text += self.row_end
        return text + self.whole


class ImagePlaces(TaskConfig):
    """How a text says where its images are."""

    place: str
    """What stands for an image in a request."""
    around: str | None = None
    """What the model reads before and behind each image, once between two in a row. None: a text is
    read as it is written, with the special tokens of the tokenizer."""
    begin: str = ""
    """What the model reads first; of a text that is read as it is written, behind the images in
    front of its words, unless it holds that already."""
    is_leading: bool = False
    """Whether images stand in front of all words, and of special tokens: `begin`, or those of the
    tokenizer where that is empty."""
    end: str = ""
    """What the model reads last, where images are leading; its answer follows."""
    tiles: TileTexts | None = None
    """What the model reads for each image; None: its place."""
    sentences: Mapping[str, str] = Field(default_factory=dict)
    """Name of a task in a text → what the model reads in its place, with `{input}` for the rest of
    the text; a sentence without it is for a text that is the name alone."""
    video: str | None = None
    """What stands for a video in the texts of a model that was trained with them; refused."""

    def count(self, text: str) -> int:
        """Images that a text has places for."""
        return text.count(self.place)

    def laid_out(self, text: str, grids: Sequence[Grid] = ()) -> str:
        """A text as the model reads it.

        Spaces beside an image are dropped, as `transformers` does with the parts of a prompt.

        Args:
            grids: Of the images of all places.
        """
        if self.tiles is not None:
            first, *rest = text.split(self.place)
            texts = map(self.tiles.write, grids)
            written = first + "".join(map("".join, zip(texts, rest, strict=True)))
            if (edge := self.tiles.edge) is None:
                return written
            written = written.replace(edge * 2, edge)
            return re.sub(rf"{re.escape(edge)}(?=[^\s<])", lambda _: f"{edge} ", written)
        if self.around is None:
            if self.begin in text:
                return text
            words = self._words(text)
            return text.removesuffix(words) + self.begin + words
        first, *rest = (part.strip(" ") for part in text.split(self.place))
        written, is_behind_image = self.begin + first, False
        for part in rest:
            written += ("" if is_behind_image else self.around) + self.place + self.around + part
            is_behind_image = not part
        return written

    def parts(self, text: str) -> list[dict[str, str]]:
        """A message's content as templates of models with images take it.

        Spaces beside an image are dropped.
        """
        first, *rest = (part.strip(" ") for part in text.split(self.place))
        texts = [{"type": "text", "text": part} if part else None for part in (first, *rest)]
        between = [part for each in texts[1:] for part in ({"type": "image"}, each)]
        return [part for part in (texts[0], *between) if part is not None]

    def encode(
        self,
        text: str,
        field: str,
        model: LoadedModel,
        *,
        layouts: Sequence[ImageLayout] = (),
        is_complete: bool = False,
    ) -> list[int]:
        """A text's ids, with as many of them for each image as the model reads.

        Args:
            field: The request's field that it comes from.
            layouts: Of the images of all places, where texts hold them in different ways.
            is_complete: Whether the text has all special tokens; none are added.

        Raises:
            InvalidRequest: an image behind words, where images are leading; words beside the name
                of a task without input; a video; a token that stands for an image and is no place.
            TooLong: more than the gateway takes.
        """
        if self.video is not None and self.video in text:
            raise InvalidRequest(
                f"{field} holds {self.video}: videos are not read, send their frames as images, "
                f"each in place of {self.place}",
                field=field,
            )
        images = model.manifest.text_images
        if self.is_leading:
            assert images is not None
            words = self._sentence(self._behind_images(text, field), field)
            before = [images.token_id] * (self.count(text) * images.tokens)
            special = not is_complete and not self.begin
            ids = model.encode(self.begin + words + self.end, field, special=special)
            self._check_count(ids.count(images.token_id), 0, field)
            return before + ids
        special = self.around is None and not is_complete
        written = self.laid_out(text, [layout.grid for layout in layouts])
        ids = model.encode(written, field, special=special)
        if images is None:
            return ids
        sizes = [layout.size for layout in layouts for _ in range(1 + prod(layout.grid))]
        self._check_count(ids.count(images.token_id), len(sizes) or self.count(text), field)
        return images.expanded(ids, sizes)

    def instruction(self, text: str, field: str, model: LoadedModel) -> dict[str, Array]:
        """What the image encoder reads of a text, as an input of its call; {} where it reads none.

        Raises:
            TooLong: more than it takes.
        """
        if model.instruction_tokenizer is None:
            return {}
        words = self._behind_images(text, field)
        model.check_characters(len(words), field)
        with naming(field):
            ids = model.instruction_tokenizer.encode(words)
        longest = model.manifest.limits.max_input_tokens
        if longest is not None and len(ids) > longest:
            raise TooLong(
                f"{field} has {len(ids)} tokens, {model.name} reads {longest} beside an image: "
                "shorten it",
                field=field,
            )
        start = model.manifest.instruction_start or 0
        return {SOURCE_IDS: np.array(ids, dtype=np.int64) + start}

    def _check_count(self, tokens: int, wanted: int, field: str) -> None:
        """Raises InvalidRequest where a text itself has tokens that stand for an image."""
        if tokens > wanted:
            raise InvalidRequest(
                f"{field} has a token that the model reads for an image: write {self.place} where "
                "one is, and nothing else",
                field=field,
            )

    def _sentence(self, words: str, field: str) -> str:
        """Words, or the sentence of the task that they name.

        Raises:
            InvalidRequest: a task without input has some.
        """
        for name, sentence in self.sentences.items():
            if name not in words:
                continue
            if "{input}" not in sentence and words != name:
                raise InvalidRequest(
                    f"{field} has text beside {name}, which takes none: leave it out", field=field
                )
            return sentence.replace("{input}", words.replace(name, "").strip())
        return words

    def _words(self, text: str) -> str:
        """A text without the images in front."""
        while text.startswith(self.place):
            text = text.removeprefix(self.place)
        return text

    def _behind_images(self, text: str, field: str) -> str:
        """The words of a text that begins with its images."""
        words = self._words(text)
        if self.count(words):
            raise InvalidRequest(
                f"{field} has {self.place} behind other text: the model reads images first",
                field=field,
            )
        return words


class WithImages(TaskConfig):
    """The section of a task whose prompts may hold images."""

    images: ImagePlaces | None = None
    """None for models whose prompts are text alone."""


def with_instruction(
    inputs: Mapping[str, Array], instruction: Mapping[str, Array]
) -> dict[str, Array]:
    """The inputs of a call; an encoder's text stands behind the instruction of its image.

    Args:
        instruction: What `ImagePlaces.instruction` returned.
    """
    texts = [each[SOURCE_IDS] for each in (instruction, inputs) if SOURCE_IDS in each]
    return {**inputs, **({SOURCE_IDS: np.concatenate(texts)} if texts else {})}
