"""Validation of requests before they share a batch: one bad request must not fail others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Bundle, Manifest, Role
from inference.engine.runners.protocol import images_of
from inference.engine.search.request import EngineRequest, Grammar
from inference.errors import InvalidRequest, TooLong
from inference.generation import Generation
from inference.processing.grammars import GrammarCompiler
from inference.processing.terms import WordEdges
from inference.processing.text import load_tokenizer


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
        self._source_image = manifest.source_image
        self._limits = manifest.limits
        self._has_alignment = manifest.alignment is not None
        self._vocabulary_size = manifest.vocabulary_size or 0
        self._source_rows = manifest.source_rows or 0

    def validate(self, request: EngineRequest) -> EngineRequest:
        """The request, `max_new_tokens` lowered to the free positions.

        Raises:
            InvalidRequest: an input is missing, not accepted or out of range.
            TooLong: more tokens than the model accepts.
        """
        self._check_source(request)
        if self._images is None:
            self._check_pixels(request)
        else:
            self._check_images(request, self._images)
            request = replace(request, images=self._images)
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
            if places != image.tokens:
                raise InvalidRequest(
                    f"source_ids has {places} tokens of an image, expected {image.tokens}",
                    field="source_ids",
                )

    def _check_pixels(self, request: EngineRequest) -> None:
        if self._pixel_shape is None:
            if request.pixels is not None:
                raise InvalidRequest("this model takes no pixels", field="pixels")
            return
        shape = None if request.pixels is None else request.pixels.shape
        if shape != self._pixel_shape:
            raise InvalidRequest(
                f"pixels has shape {shape}, expected {self._pixel_shape}", field="pixels"
            )

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
        _check_ids(np.array(request.decoder_ids), self._vocabulary_size, "prompt_ids")

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


def bundle_validator(bundle: Bundle) -> RequestValidator:
    """Checks requests of one bundle; takes phrases and grammars where its tokenizer can."""
    return RequestValidator(
        bundle.manifest, lambda: _word_edges(bundle), GrammarCompiler(bundle).compile_rules
    )


def _word_edges(bundle: Bundle) -> WordEdges:
    """Edges of words in the bundle's vocabulary."""
    tokenizer, size = load_tokenizer(bundle), bundle.manifest.vocabulary_size
    if tokenizer is None or size is None:
        raise InvalidRequest(f"{bundle.manifest.name} has no tokenizer: it takes no phrases")
    return WordEdges.of(tokenizer, size)
