"""Random inputs for comparing graphs: ragged, padded, batched and alone.

Shapes differ from the traced ones, so that a dimension which tracing froze fails here.

The same seed draws the same inputs, whatever the graphs return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.layers.images.vision import checked_shape
from export.tokenizer.special_token_templates import Framing
from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Graph, Growth, Manifest, Role, State, Tensor
from inference.tasks.shared.length_buckets import fixed_width

_IMAGE_TOKENS = 0.3  # share of a prompt's tokens
_MOST_IMAGES = 3  # of a prompt
_MOST_PIXELS = 1 << 20  # of a call: nine images of 336 by 336
_DELIMITERS = 0.3  # share of the tokens of a text whose labels end in some

Array = NDArray[Any]
Feeds = dict[str, Array]
Run = Callable[[str, Feeds], dict[str, Array]]
"""(graph name, inputs by name) → outputs by name: PyTorch or ONNX Runtime."""


@dataclass(frozen=True)
class Observation:
    """One tensor that must be equal on both sides."""

    place: str
    value: Array


class Probe:
    """Draws inputs, the same ones for the same seed.

    Args:
        source_vocabulary: Tokens that the source's table holds.
        vocabulary: Tokens that the decoder's table holds.
        framing: Completes texts as the tokenizer does; when not given, they are any tokens.
        images: How prompts hold images, where they do: some of the tokens are then images.
    """

    def __init__(
        self,
        source_vocabulary: int,
        vocabulary: int,
        seed: int = 0,
        framing: Framing | None = None,
        images: PromptImages | None = None,
    ) -> None:
        self.images = images
        self.source_vocabulary = source_vocabulary
        self.vocabulary = vocabulary
        self.framing = framing
        self.random = np.random.default_rng(seed)

    def lengths(self, longest: int, count: int) -> NDArray[np.int32]:
        """(count,) of which the first is `longest`, the others at most that."""
        drawn = self.random.integers(1, longest + 1, count)
        drawn[0] = longest
        return drawn.astype(np.int32)

    def tokens(self, rows: int, columns: int, vocabulary: int) -> NDArray[np.int64]:
        """(rows, columns) of any token, in the padding too: it must not matter."""
        drawn = self.random.integers(0, vocabulary, (rows, columns))
        if self.images is not None:
            drawn[self.random.random(drawn.shape) < _IMAGE_TOKENS] = self.images.token_id
        return drawn

    def words(self, rows: int, columns: int) -> NDArray[np.int64]:
        """(rows, columns) of any token of the source's table."""
        return self.random.integers(0, self.source_vocabulary, (rows, columns))

    def image_counts(self, count: int, most: int) -> NDArray[np.int32]:
        """(count,) of images in a prompt; with several prompts, one of them has none."""
        drawn = self.random.integers(1, most + 1, count)
        drawn[1:2] = 0
        return drawn.astype(np.int32)

    def pixels(self, count: int, shape: Sequence[int]) -> NDArray[np.uint8]:
        """(count, height, width, 3)."""
        return self.random.integers(0, 256, (count, *shape), dtype=np.uint8)

    def patches(self, count: int, shape: Sequence[int]) -> NDArray[np.float32]:
        """(count, N, A + 1, 3): patches of images of any aspect ratio, with their places."""
        drawn = self.pixels(count, shape).astype(np.float32)
        drawn[:, :, -1] = 0
        for image in drawn:
            rows = int(self.random.integers(1, len(image) + 1))
            columns = len(image) // rows
            places = np.indices((rows, columns)).reshape(2, -1).T + 1
            image[: len(places), -1, :2] = places
        return drawn

    def regions(self, count: int, shape: Sequence[int], has_boxes: bool) -> NDArray[np.float32]:
        """(count, R, 1, F or F + 4): what a detector's ReLU leaves, and perhaps boxes."""
        drawn = self.random.standard_normal((count, *shape), np.float32).clip(min=0)
        if has_boxes:
            corners = self.random.random((2, count, *shape[:-1], 2), np.float32)
            drawn[..., -4:-2], drawn[..., -2:] = corners.min(axis=0), corners.max(axis=0)
        return drawn


def limit_images(shape: Sequence[int], prompts: int = 1) -> int:
    """Of a prompt, if so many prompts have images of that (height, width, 3): fewer large ones,
    whose time in float64 grows with their pixels.
    """
    height, width, _ = shape
    return min(_MOST_IMAGES, max(1, _MOST_PIXELS // (prompts * height * width)))


def observe_stateless(run: Run, manifest: Manifest, probe: Probe) -> Iterator[Observation]:
    """Outputs of every graph at several batch sizes and lengths."""
    for key, graph in manifest.graphs.items():
        for count, length in ((1, 4), (3, 7), (5, 2), (2, 1), (1, 9), (4, 5)):
            feeds = stateless_feeds(graph, manifest, probe, count, length)
            outputs = comparable(graph, run(key, feeds), probe.source_vocabulary)
            for port in graph.outputs:
                if port.role is Role.CHOSEN:  # near ties have no order: `Choices`
                    continue
                value = without_padding(graph, feeds, port, outputs[port.name])
                yield Observation(f"{key} B={count} T={length} {port.name}", value)


def stateless_feeds(
    graph: Graph, manifest: Manifest, probe: Probe, count: int, length: int
) -> Feeds:
    """Images, or texts of mixed lengths that end in the end token, for the roles of the inputs.

    Args:
        length: Of the longest text, where the model's limits allow it.
    """
    length = min(length, manifest.limits.max_input_tokens or length)
    lengths = probe.lengths(length, count)
    if probe.framing is not None:
        lengths = probe.framing.lengths(graph, lengths)
        length = max(length, int(lengths.max()))
    feeds: Feeds = {}
    for port in graph.inputs:
        if port.role is Role.PIXELS:
            size = stateless_shape(port, manifest, count, length)
            image = manifest.image
            if image is not None and image.regions is not None:
                feeds[port.name] = probe.regions(count, size, image.regions.has_boxes)
                continue
            has_places = image is not None and image.resize == "patches"
            draw = probe.patches if has_places else probe.pixels
            feeds[port.name] = draw(count, size).astype(port.dtype)
        elif port.role is Role.TOKENS:
            columns = fixed_width(graph) or length
            tokens = probe.tokens(count, columns, probe.source_vocabulary)
            end = manifest.tokenizer.eos_token_id if manifest.tokenizer else None
            if end is not None and end < probe.source_vocabulary and columns == length:
                tokens[np.arange(count), lengths - 1] = end
            for section in manifest.tasks.values():
                if delimiters := section.get("delimiters"):
                    is_end = probe.random.random(tokens.shape) < _DELIMITERS
                    tokens[is_end] = probe.random.choice(delimiters, int(is_end.sum()))
            feeds[port.name] = tokens
        elif port.role in (Role.CONDITIONS, Role.HIDDEN):
            shape = count, *(3 if isinstance(size, str) else size for size in port.shape[1:])
            feeds[port.name] = probe.random.standard_normal(shape).astype(np.float32)
        elif port.role is Role.SEGMENTS:
            feeds[port.name] = probe.tokens(count, length, 2)
        elif port.role is Role.POSITIONS:
            drawn = probe.random.integers(0, lengths[:, None], (count, 3))
            feeds[port.name] = drawn.astype(np.int64)
        elif port.role is Role.CHOICES:
            feeds[port.name] = probe.tokens(count, 2, probe.source_vocabulary)
        elif port.role is Role.LENGTHS:
            feeds[port.name] = lengths
        else:
            raise AssertionError(f"{graph.file}: no probe for an input of role {port.role}")
    if probe.framing is not None:
        return probe.framing.framed(graph, feeds, probe.random)
    return feeds


def stateless_shape(port: Tensor, manifest: Manifest, count: int, length: int) -> list[int]:
    """(height, width, 3) of images; of a graph that takes any size, others for other numbers."""
    if all(isinstance(size, int) for size in port.shape[1:]):
        return [int(size) for size in port.shape[1:]]
    assert manifest.image is not None
    height, width, channels = manifest.image.shape
    if manifest.image.regions is None:
        width += 11 * (count - 1)
    return [height + 5 * length, width, channels]


def comparable(graph: Graph, outputs: Feeds, vocabulary: int) -> Feeds:
    """Outputs of a stateless graph, TOP_TOKENS as scores of the whole vocabulary.

    Tokens whose scores are nearly equal have no order, so ids cannot be compared. Each token's
    score is counted from the last one of the list, where one token may take another's place.
    """
    tokens, scores = graph.output(Role.TOP_TOKENS), graph.output(Role.TOP_SCORES)
    if tokens is None or scores is None:
        return outputs
    best, values = outputs[tokens.name], outputs[scores.name]
    by_token = np.zeros((*best.shape[:2], vocabulary), values.dtype)
    np.put_along_axis(by_token, best, values - values[..., -1:], axis=-1)
    return outputs | {tokens.name: by_token}


def without_padding(graph: Graph, feeds: Feeds, port: Tensor, value: Array) -> Array:
    """An output with zeros at the padding of each of its T axes, where values are undefined."""
    lengths = graph.input(Role.LENGTHS)
    if lengths is None:
        return value
    for axis in _text_axes(port):
        inside = np.arange(value.shape[axis]) < feeds[lengths.name][:, None]  # (B, T)
        shape = [1] * value.ndim
        shape[0], shape[axis] = inside.shape
        value = np.where(inside.reshape(shape), value, 0).astype(value.dtype)
    return value


def output_row(graph: Graph, feeds: Feeds, port: Tensor, value: Array, row: int) -> Array:
    """One row of a batch's output, without padding: what `single_row` alone should give."""
    lengths = graph.input(Role.LENGTHS)
    single = value[row : row + 1]
    if lengths is not None:
        for axis in _text_axes(port):
            single = single.take(range(int(feeds[lengths.name][row])), axis)
    return single


def _text_axes(port: Tensor) -> list[int]:
    return [axis for axis, size in enumerate(port.shape) if size == "T"]


def single_row(graph: Graph, feeds: Feeds, row: int) -> Feeds:
    """One row of a stateless batch, alone and without padding."""
    alone = {name: value[row : row + 1] for name, value in feeds.items()}
    lengths = graph.input(Role.LENGTHS)
    if lengths is not None:
        size = feeds[lengths.name][row]
        for port in graph.inputs:
            if port.role in (Role.TOKENS, Role.SEGMENTS):
                alone[port.name] = alone[port.name][:, :size]
    return alone


def observe_decoder(
    run: Run, manifest: Manifest, probe: Probe, source: int | None = None
) -> Iterator[Observation]:
    """Outputs of admission, ragged prefill, steps with beams, and a second chunk.

    Decoders of one token a call are prefilled with one. All sources are admitted first: the graphs
    of a large model are not in memory together (`export/parity/verify.py`).

    Args:
        source: Positions of one more source, of several blocks where the encoder divides it.
    """
    step = manifest.graphs["step"]
    longest = min(4, step.max_tokens_per_call or 4)
    longest = 1 if manifest.prefix else longest  # several tokens behind it: one row at a time
    sizes = (1, 4, 1, 1), (3, 9, longest, 2), (4, 6, 1, 3)
    cases = [_Case.draw(manifest, probe, *each) for each in sizes]
    chunks = ((4, 4), (3, 7)) if step.max_tokens_per_call != 1 else ()
    if chunks:  # several tokens on a past, which engines use at batch one only
        sources = _Sources.draw(manifest, probe, 1, 5)
        tokens = [probe.tokens(1, new, probe.vocabulary) for new, _ in chunks]
    if source is not None:
        source = min(source, manifest.limits.max_input_tokens or source)
        cases.append(_Case.draw(manifest, probe, 1, source, 1, 1))
    admissions = [case.sources.admit(run, manifest) for case in cases]
    admitted = sources.admit(run, manifest) if chunks else None
    for case, each in zip(cases, admissions, strict=True):
        yield from case.observe(run, manifest, each)
    if admitted is not None:
        call = StepLoop(run, manifest, admitted, room=8)
        for (new, total), ids in zip(chunks, tokens, strict=True):
            logits = call(ids, np.array([total], np.int32), new)
            yield Observation(f"chunk of {new} ending at {total}", logits)


def observe_alignment(run: Run, manifest: Manifest, probe: Probe) -> Iterator[Observation]:
    """Outputs of `align`, if there is one, for sources and hypotheses of several lengths."""
    graph = manifest.graphs.get("align")
    if graph is None:
        return
    for source, tokens in ((1, 1), (4, 1), (1, 3), (9, 6)):
        lengths = np.array([source], np.int32)
        feeds = {
            port.name: probe.tokens(1, tokens, probe.vocabulary)
            if port.role is Role.TOKENS
            else _source(port, probe, lengths)
            for port in graph.inputs
        }
        for name, value in run("align", feeds).items():
            yield Observation(f"align S={source} T={tokens} {name}", value)


@dataclass(frozen=True)
class _Sources:
    """Random sources.

    Attributes:
        feeds: Of `admit`; None for a decoder without it.
        lengths: (count,) of the sources, of images the positions.
    """

    feeds: Feeds | None
    lengths: NDArray[np.int32]

    @classmethod
    def draw(cls, manifest: Manifest, probe: Probe, count: int, longest: int) -> _Sources:
        graph = manifest.graphs.get("admit")
        if graph is None or manifest.images is None:
            lengths = probe.lengths(longest, count)
            images = manifest.source_image if manifest.takes_image_lists else None
            has_images = images is not None and (count > 1 or manifest.device == "cuda")
            if images is not None and has_images:
                lengths += images.tokens
            inputs = () if graph is None else graph.inputs
            feeds = {port.name: _source(port, probe, lengths) for port in inputs}
            for port in inputs:
                if images is not None and port.role is Role.SOURCE_TOKENS:
                    _plant_images(feeds[port.name], lengths if has_images else (), images, probe)
                elif images is not None and port.role is Role.PIXELS and not has_images:
                    feeds[port.name] = feeds[port.name][:0]
            return cls(feeds if graph else None, lengths)
        assert manifest.image is not None
        shape = checked_shape(manifest.image, manifest.images, longest)
        counts = probe.image_counts(count, limit_images(shape, count))
        lengths = probe.lengths(longest, count) if len(graph.inputs) > 1 else counts
        feeds = {}
        for port in graph.inputs:
            if port.role is Role.PIXELS:
                feeds[port.name] = probe.pixels(count, (int(counts.max()), *shape))
            elif port.role is Role.LENGTHS:
                feeds[port.name] = lengths
            else:
                feeds[port.name] = probe.words(count, int(lengths.max()))
        positions = np.int32(manifest.images.positions_of(*shape[:2]))
        return cls(feeds, counts * positions)

    def admit(self, run: Run, manifest: Manifest) -> Admitted:
        outputs = {} if self.feeds is None else run("admit", self.feeds)
        return Admitted(outputs, self.lengths, manifest.states)


@dataclass(frozen=True)
class _Case:
    """A batch of sources, each with `width` rows behind a prompt of `lengths`."""

    place: str
    sources: _Sources
    lengths: NDArray[np.int32]
    width: int
    tokens: Sequence[NDArray[np.int64]]
    """Of the prefill, then of three steps."""

    @classmethod
    def draw(
        cls, manifest: Manifest, probe: Probe, count: int, source: int, prompt: int, width: int
    ) -> _Case:
        sources = _Sources.draw(manifest, probe, count, source)
        lengths = probe.lengths(prompt, count)
        shapes = (count, prompt), *[(count * width, 1)] * 3
        tokens = [probe.tokens(*shape, probe.vocabulary) for shape in shapes]
        return cls(f"B={count} S={source} T={prompt} W={width}", sources, lengths, width, tokens)

    def observe(self, run: Run, manifest: Manifest, admitted: Admitted) -> Iterator[Observation]:
        for name, value in admitted.observed():
            yield Observation(f"admit {self.place} {name}", value)
        prompt, *steps = self.tokens
        call, lengths = StepLoop(run, manifest, admitted, room=prompt.shape[1] + 5), self.lengths
        yield Observation(f"prefill {self.place}", call(prompt, lengths))
        yield from call.observed(f"prefill {self.place}")
        call.widen(self.width)
        lengths = np.repeat(lengths, self.width)
        for index, tokens in enumerate(steps):
            lengths = lengths + 1
            yield Observation(f"step {index} {self.place}", call(tokens, lengths))
            yield from call.observed(f"step {index} {self.place}")


@dataclass(frozen=True)
class Admitted:
    """Outputs of `admit` for some sources."""

    outputs: Feeds
    source: NDArray[np.int32]
    states: tuple[State, ...]

    @classmethod
    def make(cls, run: Run, manifest: Manifest, probe: Probe, count: int, longest: int) -> Admitted:
        """Runs `admit` on random sources."""
        return _Sources.draw(manifest, probe, count, longest).admit(run, manifest)

    def observed(self) -> Iterator[tuple[str, Array]]:
        """The states, without padding; prefixes are observed by what `step` makes of them."""
        for state in self.states:
            if state.admit_output is None or state.prefix:
                continue
            value = self.outputs[state.admit_output]
            if "S" in state.shape:
                axis = state.shape.index("S")
                inside = np.arange(value.shape[axis]) < self.source[:, None]  # (B, S)
                value = np.moveaxis(value, axis, 1)[inside]
            yield state.name, value


class StepLoop:
    """Consecutive calls of `step`, each on the states of the call before."""

    def __init__(self, run: Run, manifest: Manifest, admitted: Admitted, room: int) -> None:
        self.run = run
        self.graph: Graph = manifest.graphs["step"]
        self.states = manifest.states
        self.source = admitted.source
        sizes = {"R": len(admitted.source), "B": len(admitted.source), "P": room}
        self.prefix = manifest.prefix
        self.values = {
            state.step_input: _with_room(state, admitted.outputs[state.admit_output], room)
            if state.admit_output
            else np.zeros([sizes[d] if isinstance(d, str) else d for d in state.shape], state.dtype)
            for state in self.states
        }
        self.emitted: Feeds = {}

    def observed(self, place: str) -> Iterator[Observation]:
        """EMIT outputs of the last call."""
        for name, value in self.emitted.items():
            yield Observation(f"{place} {name}", value)

    def widen(self, width: int) -> None:
        """Makes `width` rows of each sequence, with equal states."""
        for state in self.states:
            if state.growth is not Growth.HOLD:
                self.values[state.step_input] = np.repeat(self.values[state.step_input], width, 0)

    def __call__(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int32], new: int | None = None
    ) -> Array:
        """Logits (R, V).

        Args:
            lengths: (R,) after this call.
            new: Real tokens of each row in this call, when not all of T or all of the row.
        """
        columns = tokens.shape[1]
        last = np.full(len(lengths), (new or columns) - 1, np.int64)
        if new is None and columns > 1:  # a ragged first prefill
            last = lengths.astype(np.int64) - 1
        controls: dict[Role, Array] = {
            Role.TOKENS: tokens,
            Role.LENGTHS: lengths + np.int32(self.prefix),
            Role.TOTAL: np.array(lengths.max() + self.prefix, np.int32),
            Role.LAST: last,
            Role.SOURCE: self.source,
        }
        feeds = {
            port.name: self.values[port.name] if port.role is Role.STATE else controls[port.role]
            for port in self.graph.inputs
            if port.role is not None
        }
        outputs = self.run("step", feeds)
        for state in self.states:
            if state.step_output is not None:
                self.values[state.step_input] = outputs[state.step_output]
        self.emitted = {p.name: outputs[p.name] for p in self.graph.outputs if p.role is Role.EMIT}
        logits = self.graph.output(Role.LOGITS)
        assert logits is not None
        return outputs[logits.name]


def _with_room(state: State, value: Array, room: int) -> Array:
    """An output of `admit` as `step` takes it: a prefix with room for tokens behind it."""
    if not state.prefix:
        return value
    return np.pad(value, [(0, 0), (0, 0), (0, room), (0, 0)])


def _plant_images(
    tokens: NDArray[np.int64], lengths: Iterable[int], images: PromptImages, probe: Probe
) -> None:
    """An image in each text of these lengths, and its token in their padding; none elsewhere."""
    tokens[tokens == images.token_id] = 0
    for row, length in zip(tokens, lengths, strict=False):
        start = int(probe.random.integers(length - images.tokens + 1))
        row[start : start + images.tokens] = row[length:] = images.token_id


def _source(port: Tensor, probe: Probe, lengths: NDArray[np.int32]) -> Array:
    if port.role is Role.SOURCE:
        return lengths
    if port.role is Role.PIXELS:
        return probe.pixels(len(lengths), [int(size) for size in port.shape[1:]]).astype(port.dtype)
    return probe.tokens(len(lengths), int(lengths.max()), probe.source_vocabulary)
