"""A translator in any form of BART's network: what converted checkpoints of other libraries become.

Paper: Vaswani et al. 2017, "Attention Is All You Need", §3 (arXiv 1706.03762), as trained with
OpenNMT-py, fairseq or Marian: norms in front or behind, positions as the file has them.
Checkpoints: `model_type: translator`, our own format, with the tensors' names of Marian
(`export/checkpoint/foreign`).

Differences from `transformers`: as in `bart.py`, whose network this is; `transformers` has this
network with norms behind (`MarianMTModel`) and, with one table, in front (Pegasus).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from export.architecture import language_pairs
from export.config.config_reader import ConfigReader
from export.models.encoder_decoders import bart

# ---------------------------------------------------------------------------------------- config


def read_config(values: Mapping[str, Any]) -> bart.Config:
    """The configuration; the output has a table of its own, unless it equals the target's."""
    reader = ConfigReader(values)
    is_norm_first = reader.flag("normalize_before")
    form = bart.Form(
        positions=bart.Positions.SINUSOIDS,
        is_norm_first=is_norm_first,
        has_embedding_norm=reader.flag("normalize_embedding"),
        has_final_norm=reader.flag("add_final_layer_norm"),
        pad_token_id=0,
        norm_epsilon=reader.number("layer_norm_eps"),
    )
    config = bart.read_sizes(reader, form)
    if reader.flag("share_encoder_decoder_embeddings"):
        return config
    return replace(
        config, vocabulary_size=reader.integer("decoder_vocab_size"), has_one_table=False
    )


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    bart.declare("translator", {"translate": language_pairs}),
    read_config=read_config,
    tokenizer="sentencepiece_pair",
)
