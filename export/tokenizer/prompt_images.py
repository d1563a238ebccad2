"""The section of a task whose prompts hold images: how text says where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.image_recipe import COMBINED_FILE
from export.tokenizer.tokenizer import special_text, special_tokens
from inference.errors import CheckpointError

IMAGE_TOKEN = "image_token_id"
"""Field of `config.json` that takes precedence over the tokenizer."""
PLACE, AROUND = "<image>", "<fake_token_around_image>"


def image_places(network: nn.Module, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """`images` of the section, with the tokens that `IdeficsProcessor` writes around an image.

    Raises:
        CheckpointError: the tokenizer lacks one of them.
    """
    known = special_tokens(checkpoint)
    for token in (PLACE, AROUND):
        if token not in known:
            raise CheckpointError(f"{checkpoint.folder}: the tokenizer has no token {token}")
    begin = special_text(checkpoint, "bos_token") or ""
    return {"images": {"place": PLACE, "around": AROUND, "begin": begin}}


def image_tokens(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """`images` of the section of a model that reads a text as it is written, images apart.

    A network that reads images as tiles, or between tokens of their own, has `tile_texts`:
    checkpoint and the text that stands for an image → fields of `TileTexts`; and, where that is not
    the token of its vectors, `place_id`. One that was trained with videos has `video_token`; one
    whose processor writes the first token behind leading images, `begins_behind_images`.

    Raises:
        CheckpointError: the tokenizer has no token of the id that stands for an image.
    """
    place = text_of_token(checkpoint, getattr(network, "place_id", network.images.token_id))
    texts, video = getattr(network, "tile_texts", None), getattr(network, "video_token", None)
    found: dict[str, Any] = {"place": place}
    if texts is not None:
        found["tiles"] = texts(checkpoint, place)
    if video is not None and video in special_tokens(checkpoint).values():
        found["video"] = text_of_token(checkpoint, video)
    if getattr(network, "begins_behind_images", False):
        found["begin"] = special_text(checkpoint, "bos_token") or ""
    return {"images": found}


def check_tokens(
    checkpoint: Checkpoint, tokens: int, field: str, default: int, whole: str = "a tile"
) -> None:
    """Refuses a processor that writes another number of tokens than a tile, or an image, has.

    Args:
        field: Of the processor's file, and `default` its default.

    Raises:
        CheckpointError: names both numbers.
    """
    processor = checkpoint.json(COMBINED_FILE)
    given = processor.get(field, default)
    if processor and given != tokens:
        raise CheckpointError(
            f"{COMBINED_FILE}: {field} = {given}, but {whole} has {tokens} tokens by config.json"
        )


def text_of_token(checkpoint: Checkpoint, token_id: int) -> str:
    """The text of a special token.

    Raises:
        CheckpointError: the tokenizer has no such token.
    """
    found = [text for text, token in special_tokens(checkpoint).items() if token == token_id]
    if not found:
        raise CheckpointError(f"{checkpoint.folder}: the tokenizer has no token of id {token_id}")
    return found[0]


def leading_images(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """`images` of the section of a model that reads images before a text's own special tokens.

    Raises:
        CheckpointError: the tokenizer has no token of the id that stands for an image.
    """
    places = image_tokens(network, checkpoint)["images"]
    return {"images": {**places, "is_leading": True}}


def prefix_images(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The same, of one whose texts begin with the first special token and end with a line break.

    As `PaliGemmaProcessor` writes them.

    Raises:
        CheckpointError: see `leading_images`; the tokenizer has no first token.
    """
    begin = special_text(checkpoint, "bos_token")
    if begin is None:
        raise CheckpointError(f"{checkpoint.folder}: the tokenizer has no bos_token")
    places = leading_images(network, checkpoint)["images"]
    return {"images": {**places, "begin": begin, "end": "\n"}}
