"""The engine's graphs of a language model whose tokens may stand for parts of images.

An image is a fixed number of tokens of its own kind in the prompt, and each has a vector of the
image in place of its embedding. `admit` computes the vectors, which are held: the source positions
of a sequence are those of its images, one image after the other. `step` counts the image tokens of
a row, a small state that each call replaces, and takes the next vectors; chunks, beams and greedy
steps in one call need nothing further.

Paper: Wang et al. 2024, "Qwen2-VL", §2.1 (arXiv 2409.12191). A word is at one position in all axes.
The vectors of an image have its first position in time, and differ in height and width; what
follows continues behind its longer side, so a token's position is not its place in the row.

`admit` returns three offsets and a shift for each vector of an image. `step` adds them to the
places, which follow from a row's length and its count of image tokens: the engine passes nothing.

Legend: B sequences, R rows (B x W beams), T new positions, I images of a sequence, L tokens of an
image, each with a vector, S source positions (I · L of the sequence with the most images), D width,
P cache positions.

Decision D104.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.onnx import is_in_onnx_export

from export.architecture import Graphs, Lowering
from export.decoder_graphs.source import LENGTHS, held_state
from export.decoder_graphs.transformer import cache_states, final_vectors, step_graph
from export.layers.attention.heads import Rows
from export.layers.decoder import TransformerDecoder
from export.layers.images.vision import pixels_port, traced_sizes
from inference.bundle.inputs import ImageSpec, PatchGrid, PromptImages
from inference.bundle.manifest import Graph, Growth, Role, State
from inference.bundle.manifest import Tensor as Port

AXES = 3
"""Time, height and width."""


def image_places(rows: int, columns: int) -> Tensor:
    """(L, 4) int64 of an image of rows and columns of vectors: three offsets, and a shift.

    The shift, which the first vector has alone, is by how much positions behind the image differ
    from places: an image takes as many positions as its longer side. The offsets are from a
    vector's place, shift included, to its position in each axis.
    """
    number = torch.arange(rows * columns)
    row = torch.arange(rows)[:, None].expand(rows, columns).flatten()
    column = torch.arange(columns)[None].expand(rows, columns).flatten()
    shift = torch.maximum(row, column).max() + 1 - rows * columns
    start = -number - shift  # from a vector's place back to the image's first position
    axes = [start, start + row, start + column]
    return torch.stack([*axes, torch.where(number == 0, shift, 0)], dim=-1)


def axis_positions(
    positions: Tensor, passed: Tensor, is_image: Tensor, source: Tensor, places: Tensor
) -> Tensor:
    """(3, R, T) int64: the position of each new token in each axis.

    Args:
        positions: (R, T) places in the rows.
        passed: (R, T) image tokens of each row, each new token included.
        is_image: (R, T, 1) which tokens stand for images.
        source: (B,) vectors of each sequence's images; tokens beyond them are words.
        places: (B, S, 4), see `image_places`.
    """
    count, room = places.shape[0], places.shape[1]
    shifts = places[..., AXES].cumsum(dim=1)  # (B, S): behind each vector
    number = passed.reshape(count, -1).minimum(source.long()[:, None])  # (B, W·T), from 1
    first = torch.arange(count, device=places.device)[:, None] * room
    index = (first + (number - 1).clamp(min=0, max=room - 1)).flatten()
    shift = shifts.flatten()[index] * (number > 0).flatten()  # (R·T,)
    offsets = places.flatten(0, 1)[index][:, :AXES] * is_image.reshape(-1, 1)  # (R·T, 3)
    moved = (positions.flatten() + shift)[:, None] + offsets
    return moved.T.reshape(AXES, *positions.shape)


_SEEN, _VECTORS, _PLACES = "image_tokens_seen", "image_vectors", "image_places"
_INSTRUCTION = (
    Port(name="source_tokens", dtype="int64", shape=("B", "T"), role=Role.SOURCE_TOKENS),
    Port(name="source_lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
)
"""Inputs of `admit`: what an image is read for."""


class AdmitImageVectors(nn.Module):
    """`admit`: the images of each sequence → the vectors of their tokens."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """(B, I, height, width, 3) uint8, images of one size → (B, S, D).

        Args:
            inputs: Pixels; then, where the encoder reads instructions, their tokens (B, T) and
                lengths (B,).
        """
        pixels, *instruction = inputs
        images = pixels.float().flatten(0, 1)  # TensorRT reshapes no uint8
        rows = torch.arange(images.shape[0], device=pixels.device) // pixels.shape[1]  # (B·I,)
        each = [part.index_select(0, rows) for part in instruction]
        vectors = encode_each(self.encoder, images, *each)  # (B·I, L, D)
        return (vectors.reshape(pixels.shape[0], -1, vectors.shape[-1]),)


def encode_each(encoder: nn.Module, *inputs: Tensor) -> Tensor:
    """An encoder's vectors of several images; a graph computes all in one call.

    PyTorch, which graphs are compared with, takes one image at a time: scores of all patches to
    each other, in float64 and several times over, are held for one image and not for a batch.

    Args:
        inputs: Of the encoder, each with images along its first dimension.
    """
    if is_in_onnx_export():
        vectors: Tensor = encoder(*inputs)
        return vectors
    rows = zip(*(each.split(1) for each in inputs), strict=True)
    return torch.cat([encoder(*row) for row in rows])


class AdmitPlacedImages(AdmitImageVectors):
    """`admit` of a decoder with positions in three axes.

    Args:
        edge: Pixels of a vector's square.
    """

    def __init__(self, encoder: nn.Module, edge: int) -> None:
        super().__init__(encoder)
        self.edge = edge

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """(B, I, height, width, 3) uint8, images of one size → (B, S, D) and places (B, S, 4)."""
        (pixels,), (vectors,) = inputs, super().forward(*inputs)
        places = image_places(pixels.shape[2] // self.edge, pixels.shape[3] // self.edge)
        each = places[None, None].expand(pixels.shape[0], pixels.shape[1], -1, -1)
        return vectors, each.flatten(1, 2)


class ImageTokenStep(nn.Module):
    """`step`: the decoder as the engine calls it.

    Args:
        image_token: Stands for a part of an image.
        has_blocks: Whether image tokens in a row attend to each other in both directions.
        has_axes: Whether positions have three axes.
    """

    def __init__(
        self,
        decoder: TransformerDecoder,
        image_token: int,
        *,
        has_blocks: bool = False,
        has_axes: bool = False,
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.image_token = image_token
        self.has_blocks = has_blocks
        self.has_axes = has_axes

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor,
        total: Tensor,
        last: Tensor,
        source: Tensor,
        seen: Tensor,
        vectors: Tensor,
        *states: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits (R, V) after each row's last token, the count of image tokens, then the caches.

        Args:
            source: (B,) int32, image tokens of each sequence's prompt.
            seen: (R, 1) int64, image tokens of each row so far.
            vectors: (B, S, D), or (B, S, k · D): then those behind the first D are added to the
                outputs of the first blocks.
            states: Places (B, S, 4) where positions have axes; then caches, key before value.
        """
        rows = Rows(lengths, total, last)
        positions = rows.positions(tokens.shape[1])
        passed = seen + (tokens == self.image_token).long().cumsum(-1)  # (R, T)
        found, is_image = self._images(tokens, passed, source, vectors)
        width = self.decoder.heads.model_width
        # as slices: OpenVINO reads no split of this kind
        read, *levels = (
            found.narrow(-1, place, width) for place in range(0, found.shape[-1], width)
        )
        added = [torch.where(is_image, level, 0.0) for level in levels]
        placed = self.decoder.place(read, positions)
        x = torch.where(is_image, placed, self.decoder.embed(tokens, positions))
        if self.has_blocks:
            is_in_block = is_image.squeeze(-1) & rows.is_first[:, None]
            rows = replace(rows, blocks=number_runs(is_in_block))
        if self.has_axes:
            axes = axis_positions(positions, passed, is_image, source, states[0])
            states = states[1:]
            rows = replace(rows, axes=axes)
        past = list(zip(states[::2], states[1::2], strict=True))
        hidden, present = self.decoder.run_blocks(x, positions, rows, past, added=added)
        final = final_vectors(hidden, last)
        after = passed.gather(1, last[:, None])
        return self.decoder.logits(final), after, *(part for pair in present for part in pair)

    def _images(
        self, tokens: Tensor, passed: Tensor, source: Tensor, vectors: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The images' vectors (R, T, k · D), and at which tokens (R, T, 1) they stand.

        A token that stands for no part of a sequence's images is an ordinary one: a model may
        generate it.

        Args:
            passed: (R, T) image tokens of each row, each new token included.
        """
        count, room = vectors.shape[0], vectors.shape[1]
        number = passed.reshape(count, -1)  # (B, W·T), from 1
        is_image = tokens.reshape(count, -1) == self.image_token
        is_image = is_image & (number <= source.long()[:, None])
        first = torch.arange(count, device=tokens.device)[:, None] * room
        place = first + (number - 1).clamp(min=0, max=room - 1)
        read = vectors.flatten(0, 1)[place.flatten()].reshape(*tokens.shape, -1)  # (R, T, D)
        return read, is_image.reshape(*tokens.shape, 1)


def number_runs(is_inside: Tensor) -> Tensor:
    """(R, T) bool → int64: 1, 2, … in the runs of true ones of each row, 0 elsewhere."""
    inside = is_inside.long()
    before = torch.cat([torch.zeros_like(inside[:, :1]), inside[:, :-1]], dim=1)
    return (inside * (1 - before)).cumsum(-1) * inside


def image_token_graphs(
    encoder: nn.Module,
    decoder: TransformerDecoder,
    image: ImageSpec,
    images: PromptImages,
    instruction_vocabulary: int | None = None,
    *,
    has_blocks: bool = False,
    levels: int = 1,
) -> Graphs:
    """`admit` (B, I dynamic) and `step` (R, T, P, B, S dynamic; caches in place).

    Args:
        encoder: Images (B, height, width, 3) → vectors (B, L, k · D).
        instruction_vocabulary: Tokens of the encoder's own table, where it reads an instruction
            (B, T) and its lengths (B,) with each image.
        has_blocks: See `ImageTokenStep`.
        levels: k.
    """
    width = decoder.heads.model_width * levels
    rotary, grid = decoder.heads.rotary, images.grid
    pixels = pixels_port(image, has_many=True, has_sizes=grid is not None)
    has_axes = rotary is not None and bool(rotary.sections)
    held = [Port(name=_VECTORS, dtype="float32", shape=("B", "S", width), role=Role.STATE)]
    if has_axes:
        shape = ("B", "S", AXES + 1)
        held.append(Port(name=_PLACES, dtype="int64", shape=shape, role=Role.STATE))
    texts = () if instruction_vocabulary is None else _INSTRUCTION
    admit = Graph(file="admit.onnx", inputs=(pixels, *texts), outputs=tuple(held))
    seen, before, after = image_counter(_SEEN, 1, counted_token=images.token_id)
    step = step_graph(
        decoder,
        (LENGTHS, before, *held),
        written=(after,),
        whole_prompts=decoder.heads.is_prefix_lm,
        whole_images=has_blocks,
    )
    module = AdmitImageVectors(encoder)
    if has_axes:
        assert isinstance(grid, PatchGrid)
        module = AdmitPlacedImages(encoder, grid.edge)
    step_module = ImageTokenStep(decoder, images.token_id, has_blocks=has_blocks, has_axes=has_axes)
    lowerings = {
        "admit": Lowering(module, admit, traced_sizes=traced_sizes(grid)),
        "step": Lowering(step_module, step),
    }
    states = (seen, *map(held_state, held), *cache_states(decoder))
    return Graphs(lowerings, states, source_vocabulary=instruction_vocabulary)


def image_counter(name: str, width: int, **fields: Any) -> tuple[State, Port, Port]:
    """A state (R, width) int64 that counts a row's images, and its ports before and after a call.

    Args:
        fields: Of the state.
    """
    before, after = (
        Port(name=each, dtype="int64", shape=("R", width), role=Role.STATE)
        for each in (name, f"next_{name}")
    )
    state = State(
        name=name,
        growth=Growth.REPLACE,
        dtype="int64",
        shape=before.shape,
        step_input=before.name,
        step_output=after.name,
        **fields,
    )
    return state, before, after
