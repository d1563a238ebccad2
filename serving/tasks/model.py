"""A bundle made ready for tasks: its manifest, its tokenizer, and the limits that hold for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from serving.bundle import AlignmentSpec, Bundle, ImageSpec, Manifest, Part, Role
from serving.errors import BundleError, InvalidRequest, TooLong
from serving.generation import Generation, Overrides
from serving.processing.image import ImageLimits
from serving.processing.text import Tokenizer, load_tokenizer

_CHARACTERS_PER_TOKEN = 100  # more than any vocabulary's: longer texts are refused unread


@dataclass(frozen=True)
class TaskLimits:
    """What one request may ask for; a model's own limits may be tighter."""

    max_input_tokens: int = 4096
    """Tokens of one text, all its sentences together."""
    max_client_batch_size: int = 32
    """Texts or pictures in one request."""
    max_best_of: int = 16
    """Answers to one prompt that are generated at once."""
    max_stop_sequences: int = 4
    """Texts that may end an answer."""
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
    """What a task needs to know of a model; the graphs are Triton's."""

    manifest: Manifest
    tokenizer: Tokenizer
    """Every task of today has text on one side."""

    @property
    def name(self) -> str:
        """The bundle's name, which users know."""
        return self.manifest.name

    @property
    def generator(self) -> str:
        """Triton model of a generator; `load_model` has checked that there is one."""
        assert self.manifest.generator is not None
        return self.manifest.generator

    def part(self, *, takes: Role, returns: Role) -> Part:
        """A stateless part by its roles; `load_model` has checked that there is one."""
        part = self.manifest.part(takes=takes, returns=returns)
        assert part is not None
        return part

    @property
    def languages(self) -> tuple[tuple[str, str], ...]:
        """(source, target) pairs of a translator, ISO 639-1; empty where none are declared."""
        pairs = self.manifest.tasks.get("translate", {}).get("languages", ())
        return tuple((source, target) for source, target in pairs)

    @property
    def image(self) -> ImageSpec:
        """How pictures are prepared; `load_model` has checked that tasks with pictures have it."""
        assert self.manifest.image is not None
        return self.manifest.image

    @property
    def generation(self) -> Generation:
        """The generator's defaults; `load_model` has checked that generators have them."""
        assert self.manifest.generation is not None
        return self.manifest.generation

    @property
    def reads_source(self) -> bool:
        """Whether texts go to an encoder; otherwise they are what the decoder continues."""
        admit = self.manifest.graphs.get("admit")
        return admit is not None and admit.input(Role.SOURCE_TOKENS) is not None

    def alignment(self, over: Literal["tokens", "patches"], field: str) -> AlignmentSpec:
        """What the model can tell of where it looked.

        Raises:
            InvalidRequest: nothing of that kind.
        """
        spec = self.manifest.alignment
        if spec is None or spec.over != over:
            raise InvalidRequest(
                f"{self.name} does not tell what its tokens looked at: leave {field} out",
                field=field,
            )
        return spec

    def encode(
        self, text: str, field: str, limits: TaskLimits, *, special: bool = True
    ) -> list[int]:
        """Token ids of one sequence; what cannot be short enough is refused unread.

        Raises:
            TooLong: names the tightest limit and the length.
        """
        own = self.manifest.limits
        tokens = min(
            limits.max_input_tokens,
            own.max_input_tokens or limits.max_input_tokens,
            (not self.reads_source and own.max_total_tokens) or limits.max_input_tokens,
        )
        characters = tokens * _CHARACTERS_PER_TOKEN
        if len(text) > characters:
            raise TooLong(
                f"{field} has {len(text)} characters, at most {tokens} tokens "
                f"(never more than {characters} characters) are taken: split it",
                field=field,
            )
        return self.tokenizer.encode(text, add_special_tokens=special)

    def check_length(self, tokens: int, field: str, what: str = "") -> None:
        """Raises TooLong when a sequence is longer than the model's own limit."""
        limit = self.manifest.limits.max_input_tokens
        if limit is not None and tokens > limit:
            raise TooLong(
                f"{field}{what} has {tokens} tokens, {self.name} takes at most {limit}: shorten it",
                field=field,
            )

    def overrides(
        self,
        *,
        num_beams: int | None,
        alternatives: int | None,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
        return_alignment: bool | None = None,
        stream: bool | None = None,
    ) -> Overrides:
        """What a request changes in the model's way of generating.

        Asking for alternatives widens the beam as far as it takes, unless `num_beams` is given.

        Raises:
            InvalidRequest: more alternatives than beams, or beams or what they tell in a stream.
        """
        hypotheses = alternatives or 1
        if num_beams is not None and hypotheses > num_beams:
            raise InvalidRequest(
                f"alternatives is {hypotheses}, but num_beams is {num_beams}: "
                "ask for as many beams at least",
                field="alternatives",
            )
        beams = num_beams or max(self.generation.num_beams, hypotheses)
        if stream and beams > 1:
            who = "num_beams is" if num_beams else f"{self.name} searches with num_beams"
            raise InvalidRequest(
                f"{who} {beams}, and beams cannot stream: ask for num_beams 1", field="num_beams"
            )
        return Overrides(
            num_beams=beams,
            num_return_sequences=hypotheses,
            length_penalty=length_penalty,
            max_new_tokens=max_new_tokens,
            return_alignment=return_alignment,
        )


_NEEDS = {
    "translate": ("generate",),
    "generate": ("generate",),
    "caption": ("generate", "image recipe"),
    "zero-shot": ("an image part", "a text part", "image recipe", "logit_scale"),
}
"""What a task needs of a manifest: parts by name, and what stands beside them."""


def load_model(bundle: Bundle) -> LoadedModel:
    """A bundle with its tokenizer loaded.

    Raises:
        BundleError: the tokenizer is damaged, or something that a task needs is missing.
    """
    manifest = bundle.manifest
    tokenizer = load_tokenizer(bundle)
    if tokenizer is None:
        raise BundleError(f"{bundle.folder}: {', '.join(manifest.tasks)} needs a tokenizer")
    has = {
        "an image part": manifest.part(takes=Role.PIXELS, returns=Role.EMBEDDING) is not None,
        "a text part": manifest.part(takes=Role.TOKENS, returns=Role.EMBEDDING) is not None,
        "generate": manifest.generator is not None and manifest.generation is not None,
        "image recipe": manifest.image is not None,
        "logit_scale": "logit_scale" in manifest.tasks.get("zero-shot", {}),
    }
    for task in manifest.tasks:
        missing = [need for need in _NEEDS.get(task, ()) if not has.get(need)]
        if missing:
            raise BundleError(f"{bundle.folder}: {task} needs {', '.join(missing)} in the manifest")
    return LoadedModel(manifest, tokenizer)
