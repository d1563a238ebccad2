"""The halves of checkpoints that join two networks, each with a section of `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry
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
