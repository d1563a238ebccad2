"""Encoders and decoders of which `vision_encoder_decoder.py` makes captioners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry
from export.models.captioners import bart_decoder, bert_decoder
from export.models.decoders import gpt2
from export.models.vision import deit, swin, vit
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


ENCODERS: Mapping[str, Half] = {
    "vit": Half(vit.read_config, vit.ViT, lambda _, theirs, ours: vit.rename(theirs, ours)),
    "deit": Half(
        deit.read_network_config,
        deit.DeiT,
        lambda _, theirs, ours: deit.rename_network(theirs, ours),
    ),
    "swin": Half(
        swin.read_network_config,
        swin.Swin,
        lambda _, theirs, ours: swin.rename_network(theirs, ours),
    ),
    "donut-swin": Half(
        swin.read_document_config,
        swin.Swin,
        lambda _, theirs, ours: swin.rename_network(theirs, ours),
    ),
}
DECODERS: Mapping[str, Half] = {
    "gpt2": Half(
        partial(gpt2.read_config, has_cross=True), partial(gpt2.GPT2, has_cross=True), gpt2.rename
    ),
    "trocr": Half(
        bart_decoder.read_trocr,
        bart_decoder.BartDecoder,
        partial(bart_decoder.rename, output="output_projection.weight"),
    ),
    "mbart": Half(bart_decoder.read_mbart, bart_decoder.BartDecoder, bart_decoder.rename),
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
