"""Language models: a decoder without a source, its configuration, and how it is declared.

A model file has the decoder, the table of its weights' names and the reading of `config.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from export.architecture import Architecture
from export.config.weight_names import Names, Rename
from export.decoder_graphs.chat_section import LANGUAGE_TASKS
from export.decoder_graphs.transformer import language_model_graphs
from export.layers.attention.heads import Heads
from export.layers.decoder import TransformerDecoder, output_name
from inference.bundle.manifest import Limits


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What decoder-only networks read from `config.json`.

    Attributes:
        positions: Of prompt and answer together.
        layers: The attention of each layer.
        has_tied_output: Whether logits are products with the embedding table.
    """

    vocabulary_size: int
    positions: int
    layers: tuple[Heads, ...]
    mlp_width: int
    activation: str
    norm_epsilon: float
    has_tied_output: bool

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
    names: Callable[[Any], Names],
) -> Architecture:
    """The declaration of a language model of `transformers`.

    Args:
        names: Configuration → the checkpoint's names, `lm_head.weight` left out, and the decoder's.
    """

    def rename(config: Any) -> Rename:
        head = {"lm_head.weight": output_name(is_tied=config.has_tied_output)}
        return Rename(Rename({**names(config), **head}).prefixed("", "decoder."))

    return Architecture(
        name=name,
        tasks=LANGUAGE_TASKS,
        read_config=read_config,
        build=lambda config: LanguageModel(decoder(config)),
        rename=rename,
        graphs=lambda model, image: language_model_graphs(model.decoder),
    )
