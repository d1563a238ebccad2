"""One sequence's request, and the events that are its response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inference.bundle.inputs import PromptImages
from inference.engine.runners.protocol import Prompt, images_of
from inference.generation import Generation
from inference.processing.terms import WordEdges
from inference.sequences import Finished, TokenChunk


class GrammarState(Protocol):
    """A grammar after the tokens of one output."""

    def banned(self) -> NDArray[np.int64]:
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
