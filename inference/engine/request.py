"""One sequence's request, the events that are its response, and what the model accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Manifest, Role
from inference.engine.runners.protocol import Prompt, images_of
from inference.errors import InvalidRequest, TooLong
from inference.generation import Finished, Generation, TokenChunk
from inference.processing.terms import WordEdges


class GrammarState(Protocol):
    """A grammar after the tokens of one output."""

    def find_banned(self) -> NDArray[np.int64]:
        """Tokens that cannot follow, in order; end tokens where the output is not complete.

        Equal ones are often the same array.

        Raises:
            InvalidRequest: the step would take too long.
        """

    def take(self, token_id: int) -> None:
        """Takes a token that is not banned.

        Raises:
            InvalidRequest: it cannot follow.
        """

    @property
    def accepts(self) -> bool:
        """Whether the output matches as it is."""

    @property
    def is_complete(self) -> bool:
        """Whether it matches and nothing can follow."""


class Grammar(Protocol):
    """A compiled grammar."""

    def start(self) -> GrammarState:
        """A state without tokens; independent of others."""


_PATCH_SIZE = 16 * 16 * 3  # pixels per token of most image encoders


@dataclass(frozen=True, eq=False)
class EngineRequest:
    """One sequence to generate.

    Attributes:
        rules: Resolved generation rules.
        source_ids: (S,) int64 encoder tokens.
        pixels: (height, width, 3) uint8; (I, height, width, 3) where prompts hold images.
        prompt_ids: Decoder tokens after the rules' start tokens.
        deadline_s: Time on the engine's clock (`time.monotonic`) when the request is aborted.
        stream: Emit tokens as they are generated; one beam only.
        priority: Higher runs first; waiting raises the effective priority.
        images: How the model's prompts hold images, if they do; validation sets it.
        word_edges: Of the vocabulary, where phrases are required; validation sets it.
        grammar: What the output matches, where the rules say it; validation sets it.
        image_sizes: (I, 2) height and width of each image, where they differ.
    """

    rules: Generation
    source_ids: NDArray[np.int64] | None = None
    pixels: NDArray[np.uint8] | None = None
    prompt_ids: tuple[int, ...] = ()
    deadline_s: float | None = None
    stream: bool = False
    priority: int = 0
    images: PromptImages | None = None
    word_edges: WordEdges | None = None
    grammar: Grammar | None = None
    image_sizes: NDArray[np.int64] | None = None

    @cached_property
    def decoder_ids(self) -> tuple[int, ...]:
        """The decoder's prompt: start tokens, then the request's tokens."""
        return (*self.rules.decoder_start_ids, *self.prompt_ids)

    @cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """`decoder_ids` as the prefix cache compares them: an image's tokens name its content.

        And what it is read for, where the model reads instructions. Empty where it is not known
        which tokens are an image's: nothing is shared.
        """
        if self.pixels is None:
            return self.decoder_ids
        if self.images is None:
            return ()
        names: list[int] = []
        for image in images_of(self.pixels, self.image_sizes):
            count = self.images.tokens_of(*image.shape[:2])
            names += [_content_name(image, self.source_ids)] * count
        left, token_id = iter(names), self.images.token_id
        return tuple(
            next(left, token) if token == token_id else token for token in self.decoder_ids
        )

    @property
    def unscored_token(self) -> int | None:
        """The token of its images, where the decoder has no score of it."""
        return None if self.images is None or self.images.is_scored else self.images.token_id

    @property
    def prompt(self) -> Prompt:
        """The runner's inputs."""
        ids = np.array(self.decoder_ids, np.int64)
        return Prompt(ids, self.source_ids, self.pixels, self.image_sizes)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the user's source and prompt, without the model's start tokens.

        The source that images are read for is the prompt's words again.
        """
        if self.images is not None or self.source_ids is None:
            return len(self.prompt_ids)
        return len(self.prompt_ids) + len(self.source_ids)

    @property
    def source_length(self) -> int:
        """Positions of the source: its tokens, or those of the prompt's images; 0 without one."""
        if self.images is not None:
            sizes = (image.shape[:2] for image in images_of(self.pixels, self.image_sizes))
            return sum(self.images.positions_of(*size) for size in sizes)
        return 0 if self.source_ids is None else len(self.source_ids)

    @property
    def final_length(self) -> int:
        """The most decoder positions it may fill; its last token is never fed back."""
        return len(self.decoder_ids) + self.rules.max_new_tokens - 1

    @property
    def prefill_tokens(self) -> int:
        """Tokens of encoder and decoder that admission prefills."""
        return len(self.decoder_ids) + self.encoder_tokens

    @property
    def encoder_tokens(self) -> int:
        """Tokens that the encoder reads; an image counts as its patches."""
        tokens = 0 if self.source_ids is None else len(self.source_ids)
        return tokens + (0 if self.pixels is None else self.pixels.size // _PATCH_SIZE)


def _content_name(pixels: NDArray[np.uint8], source_ids: NDArray[np.int64] | None) -> int:
    """A negative number that is another one for other pixels, sizes or texts; no token has it."""
    size = np.array(pixels.shape[:2], np.int64).tobytes()
    digest = blake2b(np.ascontiguousarray(pixels).data, digest_size=16, salt=size)
    if source_ids is not None:
        digest.update(np.ascontiguousarray(source_ids).data)
    return -1 - int.from_bytes(digest.digest(), "big")


@dataclass(frozen=True)
class Failed:
    """The request ended with an error."""

    error: Exception


@dataclass(frozen=True)
class Cancelled:
    """The request was aborted by its caller; nothing follows."""


Event = TokenChunk | Finished | Failed | Cancelled
"""A request emits any number of chunks, then exactly one of the others."""

Listener = Callable[[Event], None]
"""Called by the engine's thread; must return at once."""


class RequestValidator:
    """Checks requests against one bundle's manifest.

    Args:
        word_edges: Returns those of the vocabulary; called once, at the first request that requires
            phrases. Without it every token is a word.
        grammar: Compiles what the rules say that an output matches; without it they are refused.
    """

    def __init__(
        self,
        manifest: Manifest,
        word_edges: Callable[[], WordEdges] | None = None,
        grammar: Callable[[Generation], Grammar] | None = None,
    ) -> None:
        self._grammar = grammar
        self._word_edges = None if word_edges is None else lru_cache(maxsize=1)(word_edges)
        admit = manifest.graphs.get("admit")
        pixels = admit.input(Role.PIXELS) if admit else None
        self._takes_source = manifest.takes_source
        self._pixel_shape = pixels.shape[1:] if pixels else None
        self._images = manifest.images
        self._takes_image_lists = manifest.takes_image_lists
        self._source_image = manifest.source_image
        self._limits = manifest.limits
        self._has_alignment = manifest.alignment is not None
        self._vocabulary_size = manifest.vocabulary_size or 0
        self._prompt_rows = manifest.prompt_rows or 0
        self._source_rows = manifest.source_rows or 0

    def validate(self, request: EngineRequest) -> EngineRequest:
        """The request, `max_new_tokens` lowered to the free positions.

        Raises:
            InvalidRequest: an input is missing, not accepted or out of range.
            TooLong: more tokens than the model accepts.
        """
        if self._images is None:
            self._check_pixels(request)
        else:
            self._check_images(request, self._images)
            request = replace(request, images=self._images)
        self._check_source(request)
        self._check_prompt(request)
        self._check_rules(request)
        if request.rules.force_words_ids and self._word_edges is not None:
            request = replace(request, word_edges=self._word_edges())
        if request.rules.has_structure:
            if self._grammar is None:
                raise InvalidRequest("this model takes no choices, regex or json_schema")
            request = replace(request, grammar=self._grammar(request.rules))
        return self._within_positions(request)

    def _check_source(self, request: EngineRequest) -> None:
        ids = request.source_ids
        if not self._takes_source:
            if ids is not None:
                raise InvalidRequest("this model takes no source_ids", field="source_ids")
            return
        if ids is None or not len(ids):
            raise InvalidRequest("source_ids is missing or empty", field="source_ids")
        self._check_length(len(ids), "source_ids")
        _check_ids(ids, self._source_rows, "source_ids")
        if (image := self._source_image) is not None:
            places = int(np.count_nonzero(ids == image.token_id))
            pixels = request.pixels
            count = 1 if not self._takes_image_lists else 0 if pixels is None else len(pixels)
            if places != count * image.tokens:
                raise InvalidRequest(
                    f"source_ids has {places} tokens of images, expected {count * image.tokens}",
                    field="source_ids",
                )

    def _check_pixels(self, request: EngineRequest) -> None:
        if self._pixel_shape is None:
            if request.pixels is not None:
                raise InvalidRequest("this model takes no pixels", field="pixels")
            return
        shape, wanted = None if request.pixels is None else request.pixels.shape, self._pixel_shape
        if self._takes_image_lists and shape is None:
            return
        if self._takes_image_lists:
            wanted = (*(shape or ())[:1], *wanted)
        if shape != wanted:
            raise InvalidRequest(f"pixels has shape {shape}, expected {wanted}", field="pixels")

    def _check_images(self, request: EngineRequest, images: PromptImages) -> None:
        """As many images as tokens that stand for one, each of the model's shape."""
        assert self._pixel_shape is not None
        pixels, shape = request.pixels, self._pixel_shape[1:]
        has_shape = pixels is None or (
            pixels.ndim == 4
            and all(
                isinstance(wanted, str) or size == wanted
                for size, wanted in zip(pixels.shape[1:], shape, strict=True)
            )
        )
        if pixels is not None and not has_shape:
            raise InvalidRequest(
                f"pixels has shape {pixels.shape}, expected (images, {str(shape)[1:]}",
                field="pixels",
            )
        _check_sizes(request, images)
        sizes = [image.shape[:2] for image in images_of(pixels, request.image_sizes)]
        tokens = [images.tokens_of(*size) for size in sizes]
        places = [*request.decoder_ids, *request.rules.given_ids].count(images.token_id)
        if places != sum(tokens) or 0 in tokens:
            kinds = sorted(set(tokens)) or [images.tokens]
            each = f" of {', '.join(map(str, kinds))} tokens" if kinds != [1] else ""
            raise InvalidRequest(
                f"prompt_ids has {places} places for images, pixels holds {len(sizes)} images"
                f"{each}",
                field="pixels",
            )

    def _check_prompt(self, request: EngineRequest) -> None:
        if not request.decoder_ids:
            raise InvalidRequest("prompt_ids is missing or empty", field="prompt_ids")
        if not self._takes_source and (self._pixel_shape is None or self._images is not None):
            self._check_length(len(request.decoder_ids), "prompt_ids")
        _check_ids(np.array(request.decoder_ids), self._prompt_rows, "prompt_ids")

    def _check_rules(self, request: EngineRequest) -> None:
        rules = request.rules
        if rules.return_alignment and not self._has_alignment:
            raise InvalidRequest("this model has no alignment", field="return_alignment")
        if request.stream and rules.rows > 1:
            raise InvalidRequest(
                f"a stream carries one sequence, not {rules.rows}: ask for one beam or one sample",
                field="stream",
            )
        if rules.given_ids:
            _check_ids(np.array(rules.given_ids), self._vocabulary_size, "given_ids")
        if rules.generated_ids:
            _check_ids(np.array(rules.generated_ids), self._vocabulary_size, "generated_ids")
        if rules.force_words_ids:
            tokens = {token for one in rules.force_words_ids for ids in one for token in ids}
            _check_ids(np.array(sorted(tokens)), self._vocabulary_size, "force_words_ids")
        if rules.logit_bias:
            _check_ids(np.array(list(rules.logit_bias)), self._vocabulary_size, "logit_bias")

    def _check_length(self, length: int, field: str) -> None:
        limit = self._limits.max_input_tokens
        if limit is not None and length > limit:
            raise TooLong(f"{field} has {length} tokens, the model takes {limit}", field=field)

    def _within_positions(self, request: EngineRequest) -> EngineRequest:
        limit = self._limits.max_total_tokens
        if limit is None:
            return request
        left = limit - len(request.decoder_ids)
        if left < 1:
            raise TooLong(
                f"the prompt fills all {limit} positions of the model: shorten it",
                field="prompt_ids",
            )
        if left >= request.rules.max_new_tokens:
            return request
        return replace(request, rules=request.rules.model_copy(update={"max_new_tokens": left}))


def _check_sizes(request: EngineRequest, images: PromptImages) -> None:
    """Refuses sizes that are not those of the request's images."""
    sizes = request.image_sizes
    if sizes is None:
        return
    shape = () if request.pixels is None else request.pixels.shape
    if images.grid is None or sizes.shape != (*shape[:1], 2) or not shape:
        raise InvalidRequest("image_sizes are not those of pixels", field="image_sizes")
    if (sizes < 1).any() or (sizes > shape[1:3]).any():
        raise InvalidRequest("image_sizes are outside those of pixels", field="image_sizes")


def _check_ids(ids: NDArray[np.int64], vocabulary_size: int, field: str) -> None:
    """Refuses ids outside the embedding table, which would fail the whole batch."""
    if ids.min() < 0 or ids.max() >= vocabulary_size:
        raise InvalidRequest(f"{field} holds ids outside 0 to {vocabulary_size - 1}", field=field)
