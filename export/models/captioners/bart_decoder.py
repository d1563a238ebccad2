"""BART's decoder alone, for the vectors of another encoder: TrOCR's, and mBART's in Donut.

Papers: Li et al. 2021, "TrOCR: Transformer-based Optical Character Recognition with Pre-trained
Models", §2.2 (arXiv 2109.10282), the decoder of RoBERTa or MiniLM with cross-attention; Liu et al.
2020 (arXiv 2001.08210), mBART's in `bart.py`; Kim et al. 2022, "OCR-free Document Understanding
Transformer" (Donut), §3.2 (arXiv 2111.15664), which reads documents with it.
Checkpoints: the decoder (`model_type: trocr` or `mbart`) of `model_type: vision-encoder-decoder`
folders.

Legend: V vocabulary, D width.

Differences from `transformers`: as in `bart.py`. With TrOCR's sinusoidal positions a padding token
has none and later tokens are counted as if it were a token, as `transformers` does when it decodes
token by token.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import nn

from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename
from export.layers.attention.heads import Heads
from export.layers.blocks import BlockConfig
from export.models.encoder_decoders import bart
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_MBART = {
    "vocab_size": 50_265,
    "d_model": 1024,
    "max_position_embeddings": 1024,
    "decoder_layers": 12,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
}
"""Defaults of `transformers`."""


def read_mbart(reader: ConfigReader) -> bart.Config:
    """The configuration."""
    reader.refuse_unless(cross_attention_hidden_size=None)
    values = {**_MBART, **reader.values}
    for name in ("layers", "attention_heads", "ffn_dim"):  # of an encoder that is not there
        values[f"encoder_{name}"] = values[f"decoder_{name}"]
    form = replace(bart.MBART_FORM, has_output_bias=False)
    return bart.read_sizes(ConfigReader(values, reader.place), form)


_TROCR = {
    "vocab_size": 50265,
    "d_model": 1024,
    "max_position_embeddings": 512,
    "activation_function": "gelu",
}


def read_trocr(reader: ConfigReader) -> bart.Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(reader.values, reader.place, _TROCR)
    width = reader.integer("d_model")
    heads = reader.heads("decoder_attention_heads", 16, width="d_model")
    padding = reader.values.get("pad_token_id", 1)
    if not isinstance(padding, int):
        raise CheckpointError(f"{reader.place}: pad_token_id must be one id, not {padding!r}")
    is_learned = reader.flag("use_learned_position_embeddings", True)
    form = bart.Form(
        bart.Positions.LEARNED if is_learned else bart.Positions.SPREAD_SINUSOIDS,
        has_embedding_norm=reader.flag("layernorm_embedding", True),
        has_output_bias=False,
    )
    stack = BlockConfig(
        layers=reader.layers("decoder_layers", 12),
        heads=Heads(width, heads),
        mlp_width=reader.integer("decoder_ffn_dim", 4096),
        activation=reader.activation("activation_function"),
        norm_epsilon=form.norm_epsilon,
    )
    own_source = reader.values.get("cross_attention_hidden_size") is not None
    return reader.read(
        bart.Config,
        form=form,
        pad_token_id=padding,
        embedding_scale=math.sqrt(width) if reader.flag("scale_embedding", False) else 1.0,
        encoder=stack,
        decoder=stack,
        source_width=reader.integer("cross_attention_hidden_size") if own_source else None,
    )


# --------------------------------------------------------------------------------------- network


class BartDecoder(bart.Decoder):
    """Tokens and a source's keys and values → scores of the next token."""

    def __init__(self, config: bart.Config) -> None:
        super().__init__(config, nn.Embedding(config.vocabulary_size, config.width))
        if config.has_tied_output:
            self.output = self.embedding.tokens.weight


# ----------------------------------------------------------------------------------------- names


def rename(
    config: bart.Config, theirs: str, ours: str, output: str = "lm_head.weight"
) -> dict[str, Entry]:
    """The table below a prefix on either side.

    Args:
        output: The checkpoint's name of the output layer.
    """
    table = {
        name: entry.removeprefix("decoder.") if isinstance(entry, str) else entry
        for name, entry in bart.decoder_names(config.form).items()
    }
    table["model.decoder.embed_tokens"] = "embedding.tokens"
    table[output] = "embedding.tokens.weight" if config.has_tied_output else "output"
    return Rename(table).prefixed(theirs, ours)
