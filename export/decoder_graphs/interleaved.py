"""The engine's graphs of a decoder whose prompts hold images between their words.

`admit` reads the images of a sequence, and what it computes is held: the source positions of a
sequence are those of its images, one image after the other. `step` counts the image tokens that a
row has seen, a small state that each call replaces, so that every token attends to the last image
before it and to no other; engines need to know nothing of this.

Legend: B sequences, R rows (B x W beams), T new positions, I images of a sequence, S source
positions, L positions of one image, P cache positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from export.architecture import Graphs, Lowering
from export.decoder_graphs.image_tokens import encode_each, image_counter
from export.decoder_graphs.source import LENGTHS, held_state
from export.decoder_graphs.transformer import cache_states, final_vectors, layer_ports, step_graph
from export.layers.attention.gated_cross import GatedCrossBlock, ImageMask
from export.layers.attention.heads import KeyValue, Rows
from export.layers.decoder import TransformerDecoder
from export.layers.images.vision import pixels_port, traced_sizes
from inference.bundle.inputs import ImageSpec, PromptImages
from inference.bundle.manifest import Graph
from inference.bundle.manifest import Tensor as Port


class InterleavedDecoder(TransformerDecoder):
    """A decoder some of whose layers attend to images.

    Attributes:
        gated_blocks: These layers.
        order: Which of all layers they are.
    """

    gated_blocks: nn.ModuleList
    order: Sequence[bool]

    def project_images(self, vectors: Tensor) -> list[KeyValue]:
        """Vectors of images (B, S, E) → keys and values of each layer that reads them."""
        blocks = cast(list[GatedCrossBlock], list(self.gated_blocks))
        return [each.attention.project_kv(vectors) for each in blocks]

    def read(
        self,
        tokens: Tensor,
        rows: Rows,
        past: Sequence[KeyValue],
        images: Sequence[KeyValue],
        mask: ImageMask,
    ) -> tuple[Tensor, list[KeyValue]]:
        """(R, T) → hidden states (R, T, D) and the caches with the new positions.

        Args:
            images: What `project_images` computed.
        """
        x = self.embed(tokens, rows.positions(tokens.shape[1]))
        present = list[KeyValue]()
        gated = iter(zip(self.gated_blocks, images, strict=True))
        for reads_images in self.order:
            if reads_images:
                block, held = next(gated)
                x = block(x, held, mask)
            else:
                x, written = self.blocks[len(present)](x, rows, past[len(present)])
                present.append(written)
        return self.norm(x), present


@dataclass(frozen=True)
class ImageCounter:
    """Counts the images that the tokens of a row have passed.

    Attributes:
        image_token: Stands for an image.
        positions: L.
        end_token: Ends a document: what follows attends to no image until the next one.
        width: Numbers of the state that counts.
        held: What else a mask is made of: outputs of `admit` in front of the keys.
    """

    image_token: int
    positions: int
    end_token: int | None = None
    width: ClassVar[int] = 2
    held: ClassVar[tuple[Port, ...]] = ()

    def mask(
        self, tokens: Tensor, seen: Tensor, source: Tensor, last: Tensor, room: int, *held: Tensor
    ) -> tuple[ImageMask, Tensor]:
        """What each token attends to, and the new state.

        Args:
            source: (B,) int32, source positions of each sequence.
            room: S.
        """
        number, after = self.count(tokens, seen, source.long() // self.positions, last)
        return ImageMask.of(number, self.positions, room), after

    def count(
        self, tokens: Tensor, seen: Tensor, images: Tensor, last: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The number of each token's image, (B, W, T) from 1, 0 for none; and the new state.

        Tokens that stand for more images than a sequence has are ordinary ones.

        Args:
            tokens: (R, T).
            seen: (R, 2) int64: images so far, and 1 where an end token came behind the last.
            images: (B,) int64.
            last: (R,) index of each row's last real token.
        """
        count, width = images.shape[0], tokens.shape[1]
        rows = tokens.reshape(count, -1, width)
        before, ended = seen[:, 0].reshape(count, -1, 1), seen[:, 1].reshape(count, -1, 1) > 0
        passed = before + (rows == self.image_token).long().cumsum(-1)
        number = torch.minimum(passed, images[:, None, None])  # (B, W, T)
        is_end = rows == (-1 if self.end_token is None else self.end_token)
        places = torch.arange(width, device=tokens.device)
        earlier = places[:, None] > places[None]  # (T, T): the second before the first
        same_image = number[..., :, None] == number[..., None, :]
        ends = (same_image & is_end[..., None, :] & earlier).any(dim=-1)
        ended = ends | (ended & (number == before))
        after = torch.stack([number, (ended | is_end).long()], dim=-1).reshape(*tokens.shape, 2)
        index = last[:, None, None].expand(-1, 1, 2)
        return torch.where(ended, 0, number), after.gather(1, index).squeeze(1)


class AdmitImages(nn.Module):
    """`admit`: the images of each sequence → what the decoder's layers read of them."""

    def __init__(self, encoder: nn.Module, decoder: InterleavedDecoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """(B, I, height, width, 3) uint8 → keys and values of each reading layer, (B, G, S, K)."""
        images = pixels.float().flatten(0, 1)  # TensorRT reshapes no uint8
        vectors = encode_each(self.encoder, images)  # (B·I, L, E)
        joined = vectors.reshape(pixels.shape[0], -1, vectors.shape[-1])
        return tuple(part for pair in self.decoder.project_images(joined) for part in pair)


class InterleavedStep(nn.Module):
    """`step`: the decoder as the engine calls it."""

    def __init__(self, decoder: InterleavedDecoder, counter: ImageCounter) -> None:
        super().__init__()
        self.decoder = decoder
        self.counter = counter

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor,
        total: Tensor,
        last: Tensor,
        source: Tensor,
        seen: Tensor,
        *states: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits (R, V) after each row's last token, the count of images, then the caches.

        Args:
            source: (B,) int32, source positions of each sequence.
            seen: Of the `ImageCounter`, int64.
            states: What it holds, caches, then keys and values of the images; key before value.
        """
        held, states = states[: len(self.counter.held)], states[len(self.counter.held) :]
        pairs = list(zip(states[::2], states[1::2], strict=True))
        past, images = pairs[: self.decoder.layers], pairs[self.decoder.layers :]
        room = images[0][0].shape[2]
        mask, after = self.counter.mask(tokens, seen, source, last, room, *held)
        rows = Rows(lengths, total, last)
        hidden, present = self.decoder.read(tokens, rows, past, images, mask)
        logits = self.decoder.logits(final_vectors(hidden, last))
        return logits, after, *(part for pair in present for part in pair)


def interleaved_graphs(
    encoder: nn.Module,
    decoder: InterleavedDecoder,
    image: ImageSpec,
    images: PromptImages,
    counter: ImageCounter,
    admitting: type[AdmitImages] = AdmitImages,
) -> Graphs:
    """`admit` (B, I dynamic) and `step` (R, T, P, B, S dynamic; caches in place).

    Args:
        encoder: Images (B, height, width, 3) → vectors (B, L, E).
        admitting: Also makes what the counter holds.
    """
    heads = decoder.heads
    read = layer_ports(len(decoder.gated_blocks), "image", ("B", heads.groups, "S", heads.width))
    held, grid = (*counter.held, *read), images.grid
    pixels = pixels_port(image, has_many=True, has_sizes=grid is not None)
    admit = Graph(file="admit.onnx", inputs=(pixels,), outputs=held)
    seen, before, after = image_counter("images_seen", counter.width)
    step = step_graph(decoder, (LENGTHS, before, *counter.held), read, (after,))
    lowerings = {
        "admit": Lowering(admitting(encoder, decoder), admit, traced_sizes=traced_sizes(grid)),
        "step": Lowering(InterleavedStep(decoder, counter), step),
    }
    states = (seen, *cache_states(decoder), *(held_state(port) for port in held))
    return Graphs(lowerings, states)
