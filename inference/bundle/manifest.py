"""Contract 1: the versioned folder that `export` writes and `serving` reads.

Weights, preprocessing and generation defaults are one unit, so they cannot disagree.

```
model_repository/
  example-es-en/              the bundle's name is the name of its first Triton model
    config.pbtxt
    1/  bundle.json           the manifest; written last: a version without it is incomplete
        admit.onnx step.onnx  engine graphs          (or model.onnx for a stateless part)
        source.spm vocab.json tokenizer files, report.json
  example-clip-text/          a further part: its own Triton model, same version numbers
```
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from inference.bundle.inputs import AlignmentSpec, Frozen, ImageSpec, PromptImages, TokenizerSpec
from inference.generation import Generation

MANIFEST = "bundle.json"
_VIDEO_RANK = 5  # (B, frames, height, width, 3)
Dtype = Literal["float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]


class Role(StrEnum):
    """Meaning of a graph's input or output (`docs/architecture.md`, decoder and stateless graphs).

    A stateless graph takes TOKENS (B, T) with LENGTHS (B,), PIXELS (B, height, width, 3), or both,
    and returns any of EMBEDDING, HIDDEN, LOGITS and ATTENTION, or of each of N regions of an image
    its box and what scores it; of PIXELS with CONDITIONS it returns MASKS. PIXELS of videos are (B,
    frames, height, width, 3), and their HIDDEN may change CONDITIONS into other EMBEDDINGs; of R
    regions that a detector found they are (B, R, 1, F): features, perhaps a box behind. A graph
    that scores the vocabulary at single positions takes POSITIONS and CHOICES too, and returns
    TOP_TOKENS, TOP_SCORES and CHOICE_SCORES: the vocabulary-wide scores stay inside.
    """

    TOKENS = "tokens"  # (R, T) int64: step: new tokens; stateless: the text; right-padded
    LENGTHS = "lengths"  # (R,) int32: step: row length after this call; stateless: text length
    TOTAL = "total"  # step, () int32: the largest of LENGTHS
    LAST = "last"  # step, (R,) int64: index in T of each row's last real token
    SOURCE_TOKENS = "source_tokens"  # admit, (B, S) int64, right-padded
    SOURCE = "source"  # admit and step, (B,) int32: source lengths
    SEGMENTS = "segments"  # stateless, (B, T) int64: 0 first text, 1 second
    PIXELS = "pixels"  # admit, stateless, (B, height, width, 3), mostly uint8; or (B, I, …), (I, …)
    STATE = "state"  # named by a `State`
    LOGITS = "logits"  # step, (R, V) float32, before any processing; stateless, (B, C) or (B, T, C)
    EMIT = "emit"  # step, (R, …): kept per token, follows beams
    EMBEDDING = "embedding"  # stateless, (B, D) float32; of CONDITIONS (B, K, D)
    POSITIONS = "positions"  # stateless, (B, M) int64: indices in T; the row's first one as padding
    CHOICES = "choices"  # stateless, (B, N) int64: tokens to score at every position
    TOP_TOKENS = "top_tokens"  # stateless, (B, M, K) int64: the most likely tokens, best first
    TOP_SCORES = "top_scores"  # stateless, (B, M, K) float32: their probabilities
    CHOICE_SCORES = "choice_scores"  # stateless, (B, M, N) float32: the choices' probabilities
    HIDDEN = "hidden"  # stateless, (B, T, D) float32; of a video (B, N, D), of its patches
    BOXES = "boxes"  # stateless, (B, N, 4) float32: centre x, y, width, height; parts of the image
    REGIONS = "regions"  # stateless, (B, N, E) float32: whose product with a text's EMBEDDING …
    REGION_BIASES = "region_biases"  # stateless, (B, N) float32: … plus these is a logit
    OBJECTNESS = "objectness"  # stateless, (B, N) float32: logit of a region being any object
    TOKEN_LOGITS = "token_logits"  # stateless, (B, N, T) float32: of regions and a text's tokens
    CHOSEN = "chosen"  # stateless, (B, N) int64: the places of an image that became regions, …
    CHOSEN_SCORES = "chosen_scores"  # … (B, N) float32: by these scores, the best first
    CONDITIONS = "conditions"  # stateless, (B, K, E) float32: texts' EMBEDDINGs for an image
    MASKS = "masks"  # stateless, (B, K, height, width) float32: logits of parts of the image
    ATTENTION = "attention"  # stateless, (B, rows, columns) float32: of image patches, sum 1


class Growth(StrEnum):
    """How a state changes from step to step."""

    APPEND = "append"  # (R, H, P, K): one position longer each step; P begins with the prefix
    REPLACE = "replace"  # (R, …): a new value each step
    HOLD = "hold"  # (B, …): written at admission, then only read


class Tensor(Frozen):
    """One input or output of a graph. A string in `shape` names a dynamic dimension.

    Rows of a step are R = B x beam width; HOLD states and SOURCE keep one entry a sequence (B), so
    beams share one copy. Dimension names in use: B R T P S V; I, the images of a sequence; height
    and width of images of any size.
    """

    name: str
    dtype: Dtype
    shape: tuple[int | str, ...]
    role: Role | None = None


class Profile(Frozen):
    """Shapes that a TensorRT plan takes."""

    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
    """Input → its least shape, the one that the plan is tuned for, and its largest."""


class Graph(Frozen):
    """One ONNX file and its interface, in the file's order."""

    file: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_tokens_per_call: int | None = None
    """1 for decoders that cannot take a padded T (recurrent ones): prompts go token by token. None:
    any T, several tokens on a past for one row alone."""
    whole_prompts: bool = False
    """step: the tokens of a row's first call see each other in both directions, so that it holds
    exactly the row's prompt."""
    whole_images: bool = False
    """step: the tokens of an image see each other in both directions, which a row's first call does
    for the images that it holds whole."""
    profiles: tuple[Profile, ...] = ()
    """For TensorRT: together they take every shape that is served."""

    @property
    def frames(self) -> int | None:
        """Of each video, where PIXELS are videos; a generator's are any number of images."""
        pixels = self.input(Role.PIXELS)
        count = None if pixels is None or len(pixels.shape) < _VIDEO_RANK else pixels.shape[1]
        return count if isinstance(count, int) else None

    def input(self, role: Role) -> Tensor | None:
        """The input with that role, if the graph has one."""
        for tensor in self.inputs:
            if tensor.role is role:
                return tensor
        return None

    def output(self, role: Role) -> Tensor | None:
        """The output with that role, if the graph has one."""
        for tensor in self.outputs:
            if tensor.role is role:
                return tensor
        return None


class State(Frozen):
    """One state tensor of a decoder: where `step` reads it, where it comes from."""

    name: str
    growth: Growth
    dtype: Dtype
    shape: tuple[int | str, ...]
    """Full shape with names, e.g. `("R", 4, "P", 32)` or `("B", 4, "S", 32)`."""
    step_input: str
    step_output: str | None = None
    """APPEND and REPLACE: the output that holds the new value; HOLD has none."""
    admit_output: str | None = None
    """HOLD, REPLACE with a computed initial value, APPEND with a prefix; otherwise zeros."""
    prefix: int = 0
    """APPEND: positions in front of the first token, e.g. of an image, which `admit` computes.
    LENGTHS and TOTAL count them, everything else counts tokens."""
    counted_token: int | None = None
    """REPLACE: the state is the number of these tokens so far, where it is that."""
    layout: Literal["in_place", "concat"] | None = None
    """APPEND only. in_place: one buffer is bound as past and present."""


class Limits(Frozen):
    """The model's limits; the gateway may only lower them."""

    max_input_tokens: int | None = None
    """Source or prompt tokens, special tokens included."""
    max_total_tokens: int | None = None
    """Decoder positions: prompt (or start tokens) plus generated."""


class Placement(Frozen):
    """How a stateless part is run on the CPU."""

    instances: int = Field(ge=1)
    threads: int = Field(ge=1)
    """Of each instance."""


class SourceInfo(Frozen):
    """Origin of the weights."""

    name: str
    revision: str | None = None
    content_hash: str
    """SHA-256 over the checkpoint's files and our exporter's version of the graphs."""
    location: str | None = None
    """Folder or hub name that it was exported from, for `triptych verify`."""
    checkpoint_hash: str | None = None
    """SHA-256 over the checkpoint's files alone."""


class Manifest(Frozen):
    """`bundle.json`: everything that serving reads about a bundle."""

    format: Literal[2] = 2
    name: str
    version: int = Field(ge=1)
    architecture: str
    """Informative; no code branches on it."""
    source: SourceInfo
    licence: str | None = None
    precision: str
    runtime: Literal["onnxruntime", "openvino", "tensorrt"] = "onnxruntime"
    """What runs the graphs of a stateless bundle."""
    device: Literal["cpu", "cuda"] = "cpu"
    """What the graphs are for: on the other device their types or operators may have no kernels."""
    placement: Placement | None = None
    """Instances and threads of each stateless part, where the export measured them."""
    tasks: dict[str, dict[str, Any]] = Field(min_length=1)
    """Task → its settings beyond graphs, in the fields of that task's own section model
    (`inference/tasks`); the first task is the default. Tasks without a section are derived from the
    graphs' roles and are not listed."""
    default: bool = False
    parts: dict[str, str]
    """Part → Triton model. Names are the exporter's; stateless parts are found by role (`part`)."""
    graphs: dict[str, Graph]
    """Generators: admit (optional), step, align (optional). Stateless bundles: one graph a part,
    same keys."""
    states: tuple[State, ...] = ()
    generation: Generation | None = None
    limits: Limits = Limits()
    tokenizer: TokenizerSpec | None = None
    image: ImageSpec | None = None
    images: PromptImages | None = None
    """Generators that take prompts with images; None for those that take one image or none."""
    source_image: PromptImages | None = None
    """Generators whose encoder reads images with a text: SOURCE_TOKENS holds the images' tokens.
    PIXELS is (B, height, width, 3) where each text has one image; (I, height, width, 3), those of
    all texts in their order, where it has any number of them."""
    instruction_start: int | None = None
    """Where the encoder reads the image for an instruction, which SOURCE_TOKENS holds in front of
    the text: the number that is added to the instruction's ids, so that no token is of both."""
    alignment: AlignmentSpec | None = None
    vocabulary_size: int | None = None
    """Number of tokens that a decoder scores."""
    source_vocabulary_size: int | None = None
    """Number of tokens of a text encoder; None for a decoder's own."""
    report: str = "report.json"
    """The verification report's file name."""

    @property
    def prefix(self) -> int:
        """Positions in front of a generator's first token."""
        return max((state.prefix for state in self.states), default=0)

    @property
    def text_images(self) -> PromptImages | None:
        """How texts hold images, the decoder's or the encoder's."""
        return self.images or self.source_image

    @property
    def takes_image_lists(self) -> bool:
        """Whether a request has any number of images, (I, height, width, 3), else one or none."""
        admit = self.graphs.get("admit")
        pixels = None if admit is None else admit.input(Role.PIXELS)
        return self.images is not None or (pixels is not None and pixels.shape[0] == "I")

    @property
    def whole_image_token(self) -> int | None:
        """The token whose images a row's first call must hold whole; None without such images."""
        step = self.graphs.get("step")
        has_whole = self.images is not None and step is not None and step.whole_images
        return self.images.token_id if self.images is not None and has_whole else None

    @property
    def takes_source(self) -> bool:
        """Whether an encoder, or what reads images, takes tokens of its own (SOURCE_TOKENS)."""
        admit = self.graphs.get("admit")
        return admit is not None and admit.input(Role.SOURCE_TOKENS) is not None

    @property
    def reads_source(self) -> bool:
        """Whether texts are an encoder's source; otherwise they are the decoder's prompt."""
        return self.images is None and self.takes_source

    @property
    def source_rows(self) -> int | None:
        """Rows of the table that a text encoder's tokens are looked up in."""
        return self.source_vocabulary_size or self.vocabulary_size

    @property
    def text_rows(self) -> int | None:
        """Rows of the table that the tokens of texts are looked up in: an encoder's or a decoder's.

        A tokenizer may have more tokens; texts with those are refused.
        """
        is_source = self.generator is None or self.reads_source
        return self.source_rows if is_source else self.prompt_rows

    @property
    def prompt_rows(self) -> int | None:
        """Rows of the table that a prompt's tokens are looked up in: those of the tokens that are
        scored, and that of an image.
        """
        size, images = self.vocabulary_size, self.images
        if size is None or images is None or images.is_scored:
            return size
        return max(size, images.token_id + 1)

    @property
    def generator(self) -> str | None:
        """Triton model of a generator; None for a stateless bundle."""
        return next(iter(self.parts.values())) if "step" in self.graphs else None

    def part(self, *, takes: Role, returns: Role) -> Part | None:
        """The first stateless part with an input and an output of these roles."""
        if self.generator is not None:
            return None
        instances = self.placement.instances if self.placement else 1
        return next(
            (
                Part(self.parts[key], self.version, graph, instances)
                for key, graph in self.graphs.items()
                if graph.input(takes) and graph.output(returns)
            ),
            None,
        )


@dataclass(frozen=True)
class Part:
    """One stateless graph and the Triton model that runs it."""

    model: str
    version: int
    graph: Graph
    instances: int = 1
    """Calls that it runs at the same time."""


@dataclass(frozen=True)
class Bundle:
    """A manifest and the version folder that it lies in."""

    folder: Path
    manifest: Manifest

    @property
    def version(self) -> int:
        """The version's number."""
        return int(self.folder.name)

    @property
    def models(self) -> list[str]:
        """Names of its Triton models, the one with the manifest last."""
        own = self.manifest.name
        return [*sorted({*self.manifest.parts.values()} - {own}), own]

    def path(self, file: str) -> Path:
        """Full path of a file that the manifest names."""
        return self.folder / file
