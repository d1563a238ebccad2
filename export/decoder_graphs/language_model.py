"""Language models, with and without images in their prompts.

A model file has the decoder, the table of its weights' names and the reading of `config.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from export.architecture import Architecture, Graphs, Section
from export.checkpoint.generation_defaults import generation_reader
from export.config.config_reader import key
from export.config.weight_names import Names, Rename
from export.decoder_graphs.chat_section import (
    LANGUAGE_TASKS,
    image_caption_section,
    image_chat_section,
)
from export.decoder_graphs.image_tokens import image_token_graphs
from export.decoder_graphs.transformer import language_model_graphs
from export.layers.attention.heads import Heads
from export.layers.decoder import TransformerDecoder, output_name
from export.tokenizer.prompt_images import image_tokens
from inference.bundle.inputs import ImageSpec, PromptImages
from inference.bundle.manifest import Limits


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What decoder-only networks read from `config.json`.

    Attributes:
        positions: Of prompt and answer together.
        layers: The attention of each layer.
        has_tied_output: Whether logits are products with the embedding table.
    """

    vocabulary_size: int = key("vocab_size")
    positions: int = key("max_position_embeddings")
    layers: tuple[Heads, ...]
    mlp_width: int = key("intermediate_size")
    activation: str = key("hidden_act", kind="activation")
    norm_epsilon: float = key("layer_norm_epsilon", 1e-5)
    has_tied_output: bool = key("tie_word_embeddings", True)

    @property
    def width(self) -> int:
        """D."""
        return self.layers[0].model_width

    @property
    def limits(self) -> Limits:
        """Positions bound prompt and answer together; one place is for the answer."""
        return Limits(max_input_tokens=self.positions - 1, max_total_tokens=self.positions)


class LanguageModel(nn.Module):
    """A decoder under the name that every generator has for it."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder


def language_model(
    name: str,
    read_config: Callable[[Mapping[str, Any]], Any],
    decoder: Callable[[Any], TransformerDecoder],
    names: Names | Callable[[Any], Names],
) -> Architecture:
    """The declaration of a language model of `transformers`.

    Args:
        names: The checkpoint's, `lm_head.weight` left out → the decoder's; or what makes them of a
            configuration.
    """

    def rename(config: Any) -> Rename:
        head = {"lm_head.weight": output_name(is_tied=config.has_tied_output)}
        table = names(config) if callable(names) else names
        return Rename(Rename({**table, **head}).prefixed("", "decoder."))

    return Architecture(
        name=name,
        tasks=LANGUAGE_TASKS,
        read_config=read_config,
        build=lambda config: LanguageModel(decoder(config)),
        rename=rename,
        graphs=lambda model, image: language_model_graphs(model.decoder),
    )


_TASKS: Mapping[str, Section] = {
    "chat": image_chat_section,
    "generate": image_tokens,
    "caption": image_caption_section,
}


class ImageLanguageModel(nn.Module):
    """Image encoder and language model.

    Args:
        config: Has `tokens`, those of an image, and `image_token`, which stands for one of them.
        decoder: By default that of the configuration's `language`.
    """

    def __init__(self, config: Any, encoder: nn.Module, decoder: nn.Module | None = None) -> None:
        super().__init__()
        decoder = decoder or config.language.build(config.text).get_submodule("decoder")
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
    model: Any, image: ImageSpec | None, *, tile: ImageSpec | None = None, has_blocks: bool = False
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
