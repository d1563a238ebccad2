"""A bundle as tasks use it: manifest, tokenizer, task sections, limits and cached embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, cast

from pydantic import BaseModel

from inference.bundle.inputs import AlignmentSpec, ImageSpec
from inference.bundle.manifest import Graph, Manifest, Part, Role
from inference.errors import InvalidRequest, TooLong
from inference.generation import Generation, Overrides
from inference.processing.cancellation import check_abandoned
from inference.processing.image import ImageLimits
from inference.processing.sentences import is_blank
from inference.processing.tokenizer import EncodedText, SpanTokenizer, Tokenizer, cut_texts
from inference.tasks.shared.embedding_cache import EmbeddingCache
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.length_buckets import JOINED, BucketSizes, Padding
from inference.tasks.shared.model_calls import Array, GenerateCall
from inference.tasks.shared.needs import Need
from triptych.messages import TruncationDirection

CHARACTERS_PER_TOKEN = 100
"""More than in any vocabulary: longer texts are refused unread."""


@dataclass(frozen=True)
class TaskLimits:
    """Limits of one request; a model's own limits may be tighter."""

    max_input_tokens: int = 4096
    """Tokens of one text, all its sentences together."""
    max_client_batch_size: int = 32
    """Texts or images in one request."""
    max_best_of: int = 16
    """Sequences generated for one prompt."""
    max_stop_sequences: int = 4
    """Stop strings of one request."""
    max_prompt_images: int = 16
    """Images between the words of one prompt."""
    image: ImageLimits = field(default_factory=ImageLimits)

    def check_batch(self, items: int, name: str) -> None:
        """Raises InvalidRequest when a request holds too many items."""
        if items > self.max_client_batch_size:
            raise InvalidRequest(
                f"{name} holds {items} items, at most {self.max_client_batch_size}: "
                "send several requests",
                field=name,
            )


@dataclass(frozen=True)
class LoadedModel:
    """One version of a bundle, checked for its tasks; its graphs are loaded by Triton."""

    manifest: Manifest
    sections: Mapping[str, BaseModel]
    """Task → its section of the manifest; the keys are the tasks that the bundle serves."""
    optional_tokenizer: Tokenizer | None
    instruction_tokenizer: Tokenizer | None = None
    """Of the image encoder, where it reads instructions."""
    embeddings: EmbeddingCache = field(default_factory=EmbeddingCache)
    """Embeddings of texts of earlier requests."""
    sizes: BucketSizes = JOINED
    """Of the calls of a stateless graph with texts."""
    task_limits: TaskLimits = field(default_factory=TaskLimits)
    """Of one request; the manifest's may be tighter."""
    _met: dict[Need, bool] = field(default_factory=dict, init=False, compare=False, repr=False)
    _parts: dict[tuple[Role, Role], Part] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def name(self) -> str:
        """The bundle's name, `model` in requests."""
        return self.manifest.name

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; tasks that use it have declared that they need one."""
        assert self.optional_tokenizer is not None
        return self.optional_tokenizer

    @property
    def spans(self) -> SpanTokenizer:
        """The tokenizer, of tasks that have declared that they need one with offsets."""
        return cast(SpanTokenizer, self.tokenizer)

    @property
    def pad_token_id(self) -> int:
        """The padding token."""
        assert self.manifest.tokenizer is not None
        return self.manifest.tokenizer.pad_token_id

    def padding(self, graph: Graph) -> Padding:
        """How texts of a graph become equally long."""
        assert self.manifest.tokenizer is not None
        return Padding.of(graph, self.manifest.tokenizer)

    @property
    def image(self) -> ImageSpec:
        """The image recipe; tasks that use it have declared that they need one."""
        assert self.manifest.image is not None
        return self.manifest.image

    @property
    def generation(self) -> Generation:
        """A generator's defaults."""
        assert self.manifest.generation is not None
        return self.manifest.generation

    @property
    def reads_source(self) -> bool:
        """Whether texts are an encoder's source; otherwise they are the decoder's prompt."""
        return self.manifest.reads_source

    @property
    def reads_instructions(self) -> bool:
        """Whether a prompt's words are the source, too: they decide what is read of its images."""
        return self.manifest.images is not None and self.manifest.takes_source

    @property
    def beginning(self) -> list[int]:
        """First token of a decoder that has neither a source nor a prompt, if there is one."""
        spec = self.manifest.tokenizer
        if self.reads_source or self.generation.decoder_start_ids or not spec:
            return []
        return [] if spec.bos_token_id is None else [spec.bos_token_id]

    def part(self, *, takes: Role, returns: Role) -> Part:
        """A stateless part by its roles; tasks that use it have declared that they need it."""
        roles = takes, returns
        part = self._parts.get(roles) or self.manifest.part(takes=takes, returns=returns)
        assert part is not None
        self._parts[roles] = part
        return part

    def meets(self, need: Need) -> bool:
        """Whether the manifest meets a need, looked up once."""
        if (met := self._met.get(need)) is None:
            met = self._met[need] = need.is_met(self.manifest)
        return met

    def generate_call(
        self,
        inputs: Mapping[str, Array],
        options: Overrides,
        read: Callable[[], IncrementalText] | None = None,
    ) -> GenerateCall:
        """A call of the bundle's generator."""
        assert self.manifest.generator is not None
        return GenerateCall(self.manifest.generator, self.manifest.version, inputs, options, read)

    def alignment(self, over: Literal["tokens", "patches"], field: str) -> AlignmentSpec:
        """How the model returns alignments.

        Raises:
            InvalidRequest: it has none of that kind.
        """
        spec = self.manifest.alignment
        if spec is None or spec.over != over:
            raise InvalidRequest(
                f"{self.name} does not return attention over {over}: leave {field} out", field=field
            )
        return spec

    def encode(self, text: str, field: str, *, special: bool = True) -> list[int]:
        """Token ids of one sequence; a text far over the limit is refused before tokenising.

        Raises:
            InvalidRequest: the model has no embedding of a token.
            TooLong: names the tightest limit and the length.
        """
        check_abandoned()
        self.check_characters(len(text), field)
        with naming(field):
            return self.tokenizer.encode(text, add_special_tokens=special)

    def check_characters(self, length: int, field: str) -> None:
        """Raises TooLong for a text that `encode` would refuse unread.

        Args:
            field: The request's field of the text.
        """
        check_characters(length, field, self._most_tokens)

    @property
    def longest_text(self) -> int:
        """Characters of the longest text that `encode` reads."""
        return self._most_tokens * CHARACTERS_PER_TOKEN

    @property
    def _most_tokens(self) -> int:
        """Tokens of one sequence, whichever limit is the tightest."""
        own = None if self.reads_source else self.manifest.limits.max_total_tokens
        return min(self.text_limit, own or self.task_limits.max_input_tokens)

    @property
    def text_limit(self) -> int:
        """Tokens of one text, special tokens included."""
        most = self.task_limits.max_input_tokens
        return min(most, self.manifest.limits.max_input_tokens or most)

    def encode_text(
        self,
        text: str,
        field: str,
        *,
        second: str | None = None,
        second_field: str | None = None,
        what: str = "",
        with_offsets: bool = False,
        is_whole: bool = True,
        cut_end: TruncationDirection | None = None,
        prompt: str = "",
    ) -> EncodedText:
        """A text, or a pair of texts, for a stateless part.

        Args:
            field: The request's field that it comes from.
            second: The second text of a pair.
            second_field: Its field, where it has one of its own; errors of the pair name it.
            what: Follows the field in an error, e.g. " in its template".
            with_offsets: Also return where the tokens lie.
            is_whole: Refuse what is longer than the model takes; otherwise, the caller divides it
                and only the gateway's limit holds.
            cut_end: Cut what is longer than the model takes, at this end.
            prompt: Stands before the text.

        Raises:
            InvalidRequest: a text is blank, the tokenizer leaves no token of it, or one of them
                has no embedding.
            TooLong: names the limit and the length.
        """
        check_abandoned()
        fields = (field, second_field or field)
        texts = (text,) if second is None else (text, second)
        whole = (prompt + text, *texts[1:])
        limit = self.text_limit if is_whole else self.task_limits.max_input_tokens
        for part, own, name in zip(whole, texts, fields, strict=False):
            if cut_end is None:
                check_characters(len(part), name, limit)
            check_is_not_blank(own, name)
        with naming(field, what):
            if cut_end is None:
                with_offsets = with_offsets or bool(prompt)
                encoded = self.spans.encode_text(*whole, with_offsets=with_offsets)
            else:
                encoded = self._encode_cut(whole, fields, cut_end)
        is_read = [sequence in encoded.sequences for sequence in range(len(texts))]
        if prompt and not encoded.cut_characters:
            is_read[0] = any(end > len(prompt) for _, end in encoded.places(0))
        for is_any, name in zip(is_read, fields, strict=False):
            if not is_any:
                raise InvalidRequest(f"{name} is empty: it has no tokens", field=name)
        if len(encoded) > limit:
            taker = f"{self.name} takes" if is_whole else "the gateway takes"
            name = fields[len(texts) - 1]
            raise TooLong(
                f"{name}{what} has {len(encoded)} tokens, {taker} at most {limit}: shorten it",
                field=name,
            )
        return encoded

    def _encode_cut(
        self, texts: tuple[str, ...], fields: tuple[str, str], end: TruncationDirection
    ) -> EncodedText:
        """A text or a pair, cut to the tokens that the model takes.

        Of a long text only so many characters are tokenised as have enough tokens.

        Raises:
            TooLong: the characters that the gateway takes do not have enough tokens.
        """
        most = self.task_limits.max_input_tokens
        for tokens in (self.text_limit, most):
            check_abandoned()
            room = tokens * CHARACTERS_PER_TOKEN
            cut = cut_texts(self.spans, texts, self.text_limit, end, room)
            if cut is not None:
                return cut
        for text, name in zip(texts, fields, strict=False):
            check_characters(len(text), name, most)
        raise AssertionError("texts within the gateway's limit are read whole")

    def check_has_no_image(self, ids: Sequence[int], field: str) -> None:
        """Raises InvalidRequest for a text that writes an image's token, where no image is read."""
        images = self.manifest.text_images
        if images is not None and images.token_id in ids:
            raise InvalidRequest(
                f"{field} has the token of an image, and no image is read there: leave it out",
                field=field,
            )

    def check_length(self, tokens: int, field: str, what: str = "") -> None:
        """Raises TooLong when a sequence is longer than the model's own limit."""
        limit = self.manifest.limits.max_input_tokens
        if limit is not None and tokens > limit:
            raise TooLong(
                f"{field}{what} has {tokens} tokens, {self.name} takes at most {limit}: shorten it",
                field=field,
            )

    def prompt_bounds(self) -> Iterator[tuple[int, str]]:
        """Maximum lengths of a prompt in tokens, each with the words that name its limit."""
        most = self.task_limits.max_input_tokens
        yield most, f"at most {most} are taken"
        own = self.manifest.limits
        if own.max_input_tokens is not None:
            yield own.max_input_tokens, f"{self.name} takes at most {own.max_input_tokens}"
        if own.max_total_tokens is not None and not self.reads_source:
            left = own.max_total_tokens - len(self.generation.decoder_start_ids)
            yield left - 1, f"{self.name} holds {left} with its output"


@contextmanager
def naming(field: str, what: str = "") -> Iterator[None]:
    """Names the field of a text in what its tokenizer refuses.

    Args:
        what: Follows the field in the message.
    """
    try:
        yield
    except InvalidRequest as error:
        if error.field is not None:
            raise
        raise InvalidRequest(f"{field}{what}: {error.message}", field=field) from None


def check_is_not_blank(text: str, field: str) -> None:
    """Raises InvalidRequest for a text that has nothing to read.

    Args:
        field: The request's field of the text.
    """
    if is_blank(text):
        raise InvalidRequest(f"{field} is empty", field=field)


def check_characters(length: int, field: str, tokens: int) -> None:
    """Raises TooLong for a text that is far over the limit, before anything reads it.

    Args:
        field: The request's field of the text.
    """
    characters = tokens * CHARACTERS_PER_TOKEN
    if length > characters:
        raise TooLong(
            f"{field} has {length} characters, at most {tokens} tokens "
            f"(never more than {characters} characters) are taken: split it",
            field=field,
        )
