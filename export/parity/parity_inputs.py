"""Random inputs for comparing graphs: ragged, padded, batched and alone.

Shapes differ from the traced ones, so that a dimension which tracing froze fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.tokenizer.special_token_templates import Framing
from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Graph, Manifest, Role, Tensor
from inference.tasks.shared.length_buckets import fixed_width

_IMAGE_TOKENS = 0.3  # share of a prompt's tokens
_MOST_IMAGES = 3
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

    def image_counts(self, count: int) -> NDArray[np.int32]:
        """(count,) of images in a prompt; with several prompts, one of them has none."""
        drawn = self.random.integers(1, _MOST_IMAGES + 1, count)
        drawn[1:2] = 0
        return drawn.astype(np.int32)

    def pixels(self, count: int, shape: Sequence[int]) -> NDArray[np.uint8]:
        """(count, height, width, 3)."""
        return self.random.integers(0, 256, (count, *shape), dtype=np.uint8)

    def pixel_mask(self, count: int, height: int, width: int) -> NDArray[np.bool_]:
        """(count, height, width): True where the image is, at the upper left of its canvas."""
        heights, widths = self.lengths(height, count), self.lengths(width, count)[::-1]
        rows = np.arange(height) < heights[:, None]
        columns = np.arange(width) < widths[:, None]
        return rows[:, :, None] & columns[:, None, :]


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
            feeds[port.name] = probe.pixels(count, size).astype(port.dtype)
        elif port.role is Role.TOKENS:
            columns = fixed_width(graph) or length
            tokens = probe.tokens(count, columns, probe.source_vocabulary)
            end = manifest.tokenizer.eos_token_id if manifest.tokenizer else None
            if end is not None and columns == length:
                tokens[np.arange(count), lengths - 1] = end
            for section in manifest.tasks.values():
                if delimiters := section.get("delimiters"):
                    is_end = probe.random.random(tokens.shape) < _DELIMITERS
                    tokens[is_end] = probe.random.choice(delimiters, int(is_end.sum()))
            feeds[port.name] = tokens
        elif port.role is Role.CONDITIONS:
            shape = count, 3, int(port.shape[-1])
            feeds[port.name] = probe.random.standard_normal(shape).astype(np.float32)
        elif port.role is Role.PIXEL_MASK:
            height, width = (int(size) for size in port.shape[1:])
            feeds[port.name] = probe.pixel_mask(count, height, width)
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
    return [height + 5 * length, width + 11 * (count - 1), channels]


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
