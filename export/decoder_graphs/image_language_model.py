"""Language models whose prompts hold images: network, names, graphs, and how one is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from export.architecture import Architecture, Graphs, Section
from export.checkpoint.generation_defaults import generation_reader
from export.config.weight_names import Names, Rename
from export.decoder_graphs.chat_section import image_caption_section, image_chat_section
from export.decoder_graphs.image_tokens import image_token_graphs
from export.layers.decoder import TransformerDecoder
from export.tokenizer.prompt_images import image_tokens
from inference.bundle.inputs import ImageSpec, PromptImages

_TASKS: Mapping[str, Section] = {
    "chat": image_chat_section,
    "generate": image_tokens,
    "caption": image_caption_section,
}


class ImageLanguageModel(nn.Module):
    """Image encoder and language model.

    Args:
        config: Has `tokens`, those of an image, and `image_token`, which stands for one of them.
    """

    def __init__(self, config: Any, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        assert isinstance(decoder, TransformerDecoder)
        self.config = config
        self.encoder = encoder
        self.decoder = decoder

    @property
    def images(self) -> PromptImages:
        """How its prompts hold images."""
        tokens = self.config.tokens
        return PromptImages(positions=tokens, token_id=self.config.image_token, tokens=tokens)


def language_names(names: Names) -> Names:
    """A language model's names inside published files, and inside those of newer versions."""
    newer = {name.replace("model.", "model.language_model.", 1): names[name] for name in names}
    return {f"language_model.{name}": entry for name, entry in names.items()} | newer


def image_language_graphs(
    model: Any,
    image: ImageSpec | None,
    *,
    tile: ImageSpec | None = None,
    has_blocks: bool = False,
) -> Graphs:
    """`admit` (B, I dynamic) and `step` (R, T, P, B, S dynamic; in place).

    Args:
        tile: Recipe of what the tower reads, where that is not the image.
        has_blocks: See `ImageTokenStep`.
    """
    assert image is not None
    model.encoder.vit.prepare(tile or image)
    return image_token_graphs(
        model.encoder, model.decoder, image, model.images, has_blocks=has_blocks
    )


def image_language_model(
    name: str,
    read_config: Callable[[Mapping[str, Any]], Any],
    build: Callable[[Any], nn.Module],
    rename: Callable[[Any], Rename],
    image_size: Callable[[Any], tuple[int, int]],
    ends: Mapping[str, Any],
    graphs: Callable[[Any, ImageSpec | None], Graphs] = image_language_graphs,
    tasks: Mapping[str, Section] = _TASKS,
) -> Architecture:
    """The declaration of such a model.

    Args:
        ends: As of `generation_reader`.
    """
    return Architecture(
        name=name,
        tasks=tasks,
        read_config=read_config,
        build=build,
        rename=rename,
        graphs=graphs,
        image_size=image_size,
        details=lambda network: {"images": network.images},
        generation=generation_reader(ends),
    )
