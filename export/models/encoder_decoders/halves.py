"""The halves of checkpoints that join two networks, each with a section of `config.json`.

Legend: B batch, S source positions, D the decoder's width, E the encoder's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename
from export.layers.decoder import TransformerDecoder
from export.models.decoders import gpt
from export.models.encoder_decoders import bert_decoder
from inference.errors import CheckpointError


@dataclass(frozen=True)
class Half:
    """How one half of a checkpoint becomes a network.

    Attributes:
        read_config: Its section of `config.json` → its configuration.
        build: Configuration → network.
        rename: (configuration, prefix in the checkpoint, our prefix) → the table of names.
    """

    read_config: Callable[[ConfigReader], Any]
    build: Callable[[Any], Any]
    rename: Callable[[Any, str, str], dict[str, Entry]]


def _bert(model_type: str) -> Half:
    rename = partial(bert_decoder.rename, model_type=model_type)
    return Half(bert_decoder.read_config, bert_decoder.BertDecoder, rename)


TEXT_DECODERS: Mapping[str, Half] = {
    "gpt2": Half(partial(gpt.read_gpt2, has_cross=True), gpt.GPT, gpt.rename),
    **{model_type: _bert(model_type) for model_type in bert_decoder.MODEL_TYPES},
}


def find_half(reader: ConfigReader, halves: Mapping[str, Half]) -> Half:
    """The half that a section's `model_type` names.

    Raises:
        CheckpointError: another one; names those supported.
    """
    model_type = reader.values.get("model_type")
    if model_type not in halves:
        raise CheckpointError(
            f"{reader.place}: model_type {model_type!r} is not supported; "
            f"supported are: {', '.join(halves)}"
        )
    return halves[str(model_type)]


@dataclass(frozen=True)
class Halves:
    """Both halves.

    Attributes:
        encoder: Configuration with `width` (E).
        decoder: Configuration with `positions` of its tokens, and `width` (D).
    """

    encoder: Any
    decoder: Any
    encoder_half: Half
    decoder_half: Half

    @property
    def has_projection(self) -> bool:
        """Whether the encoder's vectors must be brought to the decoder's width."""
        return bool(self.encoder.width != self.decoder.width)


class Encoder(nn.Module):
    """An encoder whose vectors the decoder can attend to."""

    def __init__(self, config: Halves) -> None:
        super().__init__()
        self.network = config.encoder_half.build(config.encoder)
        self.projection: nn.Module = nn.Identity()
        if config.has_projection:
            self.projection = nn.Linear(config.encoder.width, config.decoder.width)

    def forward(self, *inputs: Tensor) -> Tensor:
        """What the encoder reads → (B, S, D), or E for D; values at padding are meaningless."""
        return self.projection(self.network(*inputs))


class EncoderDecoder(nn.Module):
    """Both halves."""

    def __init__(self, config: Halves) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        decoder = config.decoder_half.build(config.decoder)
        assert isinstance(decoder, TransformerDecoder)
        self.decoder = decoder


def rename(config: Halves) -> Rename:
    """`transformers`' names → ours."""
    table = config.encoder_half.rename(config.encoder, "encoder.", "encoder.network.")
    table |= config.decoder_half.rename(config.decoder, "decoder.", "decoder.")
    table["enc_to_dec_proj"] = "encoder.projection"
    return Rename(table)
