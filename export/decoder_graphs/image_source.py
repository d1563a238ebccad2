"""The engine's graphs of an encoder-decoder whose source is a text with one image, or with several.

An image's tokens in the source are a number of one kind; each has a vector of the image in place
of its embedding.

Legend: B sequences, I images of all sequences, S source positions, L tokens of an image, D width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Graphs
from export.decoder_graphs.image_tokens import encode_each
from export.decoder_graphs.source import image_source, text_source
from export.decoder_graphs.transformer import counted_source_graphs, encoder_decoder_graphs
from export.layers.attention.attention import within
from export.layers.decoder import TransformerDecoder
from inference.bundle.inputs import ImageSpec, PromptImages


def place_vectors(tokens: Tensor, embedded: Tensor, vectors: Tensor, image_token: int) -> Tensor:
    """Embeddings (B, S, D) of `tokens` (B, S) with vectors (B, L, D) at the tokens of the image.

    Tokens beyond those of the image are ordinary ones.

    Args:
        image_token: Stands for a part of the image.
    """
    is_image = tokens == image_token
    number = is_image.long().cumsum(-1)  # from 1
    place = (number - 1).clamp(min=0, max=vectors.shape[1] - 1)
    read = vectors.gather(1, place[..., None].expand(-1, -1, vectors.shape[2]))
    is_image = (is_image & (number <= vectors.shape[1]))[..., None]
    return torch.where(is_image, read, embedded)


class SourceEncoder(nn.Module):
    """An encoder over a text with an image.

    Args:
        images: Pixels (B, height, width, 3) → vectors (B, L, D).
        texts: An encoder with `embed`, tokens → (B, S, D), and `read`, which encodes those vectors.
        image_token: Stands for a part of the image.
    """

    def __init__(self, images: nn.Module, texts: Any, image_token: int) -> None:
        super().__init__()
        self.images = images
        self.texts = texts
        self.image_token = image_token

    def forward(self, tokens: Tensor, lengths: Tensor, pixels: Tensor) -> Tensor:
        """(B, S), (B,), (B, height, width, 3) uint8 → (B, S, D)."""
        vectors, embedded = self.images(pixels), self.texts.embed(tokens)
        placed = place_vectors(tokens, embedded, vectors, self.image_token)
        return self.texts.read(placed, tokens, lengths)


class ManyImagesEncoder(SourceEncoder):
    """The same, over any number of images of each text."""

    def forward(self, tokens: Tensor, lengths: Tensor, pixels: Tensor) -> Tensor:
        """(B, S), (B,), (I, height, width, 3) uint8 → (B, S, D).

        Images are those of the texts in their order; without one, none is encoded.
        """
        vectors = encode_each(self.images, pixels).flatten(0, 1)  # (I·L, D)
        embedded = self.texts.embed(tokens)
        is_image = (tokens == self.image_token) & within(lengths, tokens.shape[1])
        number = is_image.flatten().long().cumsum(0)  # (B·S,), from 1
        is_image = is_image.flatten() & (number <= vectors.shape[0])
        rows = torch.cat([vectors, vectors.new_zeros(1, vectors.shape[1])])
        read = rows[torch.where(is_image, number - 1, vectors.shape[0])].reshape(embedded.shape)
        placed = torch.where(is_image.reshape(*tokens.shape, 1), read, embedded)
        return self.texts.read(placed, tokens, lengths)


class InstructedSourceEncoder(nn.Module):
    """The same, of an image that is read for an instruction, which stands in front of the text.

    Args:
        images: Pixels, an instruction's tokens (B, T) and lengths (B,) → vectors (B, L, D).
        texts: As of `SourceEncoder`, like `image_token`.
        vocabulary: Tokens of the text's table; an instruction's count on from there.
    """

    def __init__(self, images: nn.Module, texts: Any, image_token: int, vocabulary: int) -> None:
        super().__init__()
        self.images = images
        self.texts = texts
        self.image_token = image_token
        self.vocabulary = vocabulary

    def forward(self, tokens: Tensor, lengths: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S), (B,), (B, height, width, 3) uint8 → (B, S, D), and positions of the text (B,)."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        is_text = (tokens < self.vocabulary) | (place >= lengths[:, None])
        count = (is_text.long().cumsum(-1) == 0).long().sum(-1)  # of the instruction
        instruction = (tokens - self.vocabulary).clamp(min=0)
        vectors = self.images(pixels, instruction, count.int())
        behind = (place + count[:, None]).clamp(max=tokens.shape[1] - 1)
        own = tokens.gather(1, behind).clamp(max=self.vocabulary - 1)
        placed = place_vectors(own, self.texts.embed(own), vectors, self.image_token)
        left = lengths.long() - count
        return self.texts.read(placed, own, left.int()), left


def image_source_graphs(
    encoder: nn.Module,
    texts: nn.Module,
    decoder: TransformerDecoder,
    image: ImageSpec,
    images: PromptImages,
    vocabulary: int,
    instruction_vocabulary: int | None = None,
    *,
    has_many: bool = False,
) -> Graphs:
    """`admit` (I dynamic, too) and `step` (R, T, P, B, S dynamic; in place).

    Args:
        encoder: Of images, as in `SourceEncoder`.
        texts: Of texts, likewise.
        vocabulary: Tokens of the texts' table.
        instruction_vocabulary: Tokens of the image encoder's own table, where it reads an
            instruction: see `InstructedSourceEncoder`.
        has_many: Whether a text has any number of images.
    """
    if instruction_vocabulary is not None:
        whole = text_source(vocabulary + instruction_vocabulary)
        whole = replace(whole, ports=(*whole.ports, *image_source(image, images.tokens).ports))
        reader = InstructedSourceEncoder(encoder, texts, images.token_id, vocabulary)
        made = counted_source_graphs(reader, decoder, whole, "source_positions")
        return replace(made, fields={"source_image": images, "instruction_start": vocabulary})
    kind = ManyImagesEncoder if has_many else SourceEncoder
    encoder = kind(encoder, texts, images.token_id)
    source = text_source(vocabulary)
    (pixels,) = image_source(image, images.tokens).ports
    if has_many:
        pixels = pixels.model_copy(update={"shape": ("I", *image.shape)})
    ports = (*source.ports, pixels)
    made = encoder_decoder_graphs(encoder, decoder, replace(source, ports=ports))
    lowerings = {key: made.lowerings[key] for key in ("admit", "step")}
    return replace(made, lowerings=lowerings, fields={"source_image": images})
