"""Prompts with images as `transformers` takes them: pixels, and the image that each token reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.models.idefics import processing_idefics
from transformers.models.mllama import processing_mllama
from transformers.models.mllama.image_processing_pil_mllama import (
    convert_aspect_ratios_to_ids_np,
    split_to_tiles_np,
)

from inference.bundle.inputs import ImageSpec, PromptImages
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.protocol import Runner
from tests.export.conftest import TwinPair

IMAGES = 3
"""The most of a prompt."""
_PLACES = ((1, 3, 4), (0, 4), ())
_END = (1, 2)
"""(row, place) of an end token between two images."""


class _Tokenizer:
    """What the processor reads of a tokenizer."""

    def __init__(self, image: int, end: int) -> None:
        self._image = image
        self.eos_token_id = end

    def convert_tokens_to_ids(self, token: str) -> int:
        assert token == "<image>"
        return self._image


def prompt_images(pair: TwinPair) -> PromptImages | None:
    """How the prompts of a twin hold images, where they do."""
    images: PromptImages | None = pair.architecture.details(pair.network).get("images")
    return images


def planted(target: Tensor, images: PromptImages) -> Tensor:
    """Tokens (3, T) with three images, two, and none in their rows, and an end token.

    Of images that take several tokens, the first row begins with one and the second has one.
    """
    target = target.masked_fill(target == images.token_id, 3)
    if images.tokens > 1:
        target[0, : images.tokens] = target[1, 1 : 1 + images.tokens] = images.token_id
        return target
    for row, places in enumerate(_PLACES):
        target[row, list(places)] = images.token_id
    target[_END] = 2
    return target


def interleaved_inputs(
    pixels: Tensor, tokens: Tensor, image: ImageSpec, images: PromptImages, end: int
) -> dict[str, Any]:
    """`pixel_values` and `image_attention_mask` of one row.

    Args:
        pixels: (I, height, width, 3) uint8, not fewer than the tokens have places.
        tokens: (T,).
    """
    mask = image_mask([tokens.tolist()], len(pixels), images.token_id, end)
    return {"pixel_values": normalised(pixels, image)[None], "image_attention_mask": mask}


def prompt_inputs(
    pair: TwinPair, pixels: Tensor, tokens: Tensor, image: ImageSpec, images: PromptImages
) -> dict[str, Any]:
    """The images of one row as its reference takes them.

    Args:
        pixels: (I, height, width, 3) uint8, not fewer than the tokens have places.
        tokens: (T,).
    """
    if pair.architecture.name == "idefics":
        end = pair.checkpoint.config["eos_token_id"]
        return interleaved_inputs(pixels, tokens, image, images, end)
    count = int((tokens == images.token_id).sum()) // images.tokens
    count = count or int(requires_pixels(pair.reference))  # which no token reads
    return _values(pixels[:count], image, pair, tokens) if count else {}


def requires_pixels(reference: Any) -> bool:
    """Whether a model of `transformers` takes no prompt without an image."""
    given = inspect.signature(reference.forward).parameters["pixel_values"]
    return given.default is inspect.Parameter.empty


def types_of_tokens(pair: TwinPair, tokens: Tensor, prompt: int | None = None) -> dict[str, Tensor]:
    """`token_type_ids` of prompts that are read in both directions, whole or at their images.

    Args:
        tokens: (R, T).
        prompt: Tokens of it; all when not given.
    """
    graph, images = pair.graphs().lowerings["step"].graph, prompt_images(pair)
    is_prompt = torch.arange(tokens.shape[1]) < (tokens.shape[1] if prompt is None else prompt)
    if graph.whole_prompts:
        return {"token_type_ids": (~is_prompt).long().expand(tokens.shape)}
    if graph.whole_images and images is not None:
        return {"token_type_ids": ((tokens == images.token_id) & is_prompt).long()}
    return {}


def image_mask(rows: Sequence[Sequence[int]], images: int, token: int, end: int) -> Tensor:
    """(R, T, I) bool as `IdeficsProcessor` makes it."""
    tokenizer = _Tokenizer(token, end)
    numbers, _ = processing_idefics.image_attention_mask_for_packed_input_ids(
        torch.tensor(rows), tokenizer, "pt"
    )
    mask: Tensor = processing_idefics.incremental_to_binary_attention_mask(
        numbers, "pt", num_classes=max(1, images)
    )
    return mask


def of_request(
    pair: TwinPair,
    source_ids: np.ndarray[Any, Any] | None,
    pixels: np.ndarray[Any, Any] | None,
    ids: Sequence[int],
    image: ImageSpec,
    images: PromptImages,
    end: int,
) -> dict[str, Any]:
    """Inputs of one prompt; one without images may have a black one that no token reads."""
    tokens = torch.tensor(ids)
    if pair.architecture.name != "idefics":
        if pixels is None and requires_pixels(pair.reference):
            pixels = np.zeros((1, *image.shape), np.uint8)
        given = {"input_ids": tokens[None]}
        given |= types_of_tokens(pair, tokens[None])
        if pixels is None:
            return given
        if source_ids is not None:
            given["qformer_input_ids"] = torch.from_numpy(source_ids)[None].expand(len(pixels), -1)
        return given | _values(torch.from_numpy(pixels), image, pair, tokens)
    if pixels is None:
        pixels = np.zeros((1, *image.shape), np.uint8)
    return {"input_ids": tokens[None]} | interleaved_inputs(
        torch.from_numpy(pixels), tokens, image, images, end
    )


def assert_left_padded(
    reference: Any,
    runner: Runner,
    requests: Sequence[EngineRequest],
    inputs: Callable[[Tensor], Mapping[str, Any]],
) -> None:
    """Asserts that the engine generates what `transformers` does for one left-padded batch.

    Args:
        inputs: Tokens (R, T) → further inputs, those of the images.
    """
    prompts, rules = [request.prompt_ids for request in requests], requests[0].rules
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    tokens = torch.tensor([[0] * n + list(p) for n, p in zip(padding, prompts, strict=True)])
    output = reference.generate(
        input_ids=tokens,
        attention_mask=torch.tensor([[0] * n + [1] * (longest - n) for n in padding]),
        **inputs(tokens),
        max_new_tokens=rules.max_new_tokens,
        num_beams=rules.num_beams,
        do_sample=False,
        pad_token_id=0,
    )
    for found, sequence in zip(decode(runner, requests), output.tolist(), strict=True):
        generated = list(found.hypotheses[0].token_ids)
        assert generated
        assert generated == sequence[longest:][: len(generated)]


def _values(pixels: Tensor, image: ImageSpec, pair: TwinPair, tokens: Tensor) -> dict[str, Tensor]:
    """The images of one prompt: as a list, for Idefics3 as a batch, for LLaVA-NeXT as tiles.

    For Qwen2-VL as patches.
    """
    values = normalised(pixels, image)
    if pair.architecture.name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"):
        return patches(pair, values, tokens[None])
    if pair.architecture.name in ("idefics2", "idefics3"):
        return {"pixel_values": values[None]}
    if pair.architecture.name == "mllama":
        return canvases(pair, values, tokens.tolist())
    if pair.architecture.name in ("llava_next", "llava_onevision"):  # smallest canvases
        edge = values.shape[-1]
        tiles = values.unflatten(2, (2, edge)).transpose(1, 2)  # (I, 2, 3, E, E)
        return {"pixel_values": tiles, "image_sizes": torch.full((len(values), 2), edge)}
    return {"pixel_values": values}


def patches(pair: TwinPair, images: Sequence[Tensor] | Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Images as Qwen2-VL takes them: their patches, square by square, and rows and columns.

    Args:
        images: (3, height, width) each.
        tokens: (R, T) of the prompts that hold them.
    """
    tower, rows, sizes = pair.source.configuration.tower, [], []
    merge, side = tower.merge, tower.patch
    for image in images:
        height, width = image.shape[1] // side, image.shape[2] // side
        shape = (3, height // merge, merge, side, width // merge, merge, side)
        frame = image.reshape(shape).permute(1, 4, 2, 5, 0, 3, 6).reshape(height * width, 3, 1, -1)
        rows.append(frame.expand(-1, -1, tower.frames, -1).flatten(1))
        sizes.append([1, height, width])
    is_image = (tokens == pair.source.configuration.image_token).int()
    values = {"pixel_values": torch.cat(rows), "image_grid_thw": torch.tensor(sizes)}
    return values | {"mm_token_type_ids": is_image}


def canvases(
    pair: TwinPair, images: Sequence[Tensor] | Tensor, tokens: Sequence[int]
) -> dict[str, Tensor]:
    """Images as Llama 3.2 takes them: tiles, the numbers of their grids, and what tokens read.

    Args:
        images: (3, height, width) each.
        tokens: Of the prompt that holds them.
    """
    config = pair.source.configuration.image
    edge, most = config.edge, config.most
    values = torch.zeros(1, len(images), most, 3, edge, edge)
    ids = torch.zeros(1, len(images), dtype=torch.long)
    real = torch.zeros(1, len(images), most, dtype=torch.long)
    for place, image in enumerate(images):
        tiles = split_to_tiles_np(image.numpy(), image.shape[1] // edge, image.shape[2] // edge)
        grid = image.shape[1] // edge, image.shape[2] // edge
        values[0, place, : len(tiles)] = torch.from_numpy(tiles)
        ids[0, place] = int(convert_aspect_ratios_to_ids_np([[grid]], most)[0, 0])
        real[0, place, : len(tiles)] = 1
    spans = processing_mllama.get_cross_attention_token_mask(
        list(tokens), pair.source.configuration.image_token
    )
    counts = real.sum(dim=-1).tolist()
    mask = processing_mllama.convert_sparse_cross_attention_mask_to_dense(
        [spans], counts, most, len(tokens)
    )
    return {
        "pixel_values": values,
        "aspect_ratio_ids": ids,
        "aspect_ratio_mask": real,
        "cross_attention_mask": torch.from_numpy(mask),
    }


def normalised(pixels: Tensor, image: ImageSpec) -> Tensor:
    """Prepared pixels after `transformers`' image processors."""
    scaled = pixels.float() * image.rescale
    return ((scaled - torch.tensor(image.mean)) / torch.tensor(image.std)).movedim(-1, -3)
