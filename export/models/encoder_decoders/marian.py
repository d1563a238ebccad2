"""Marian's Transformer encoder-decoder.

Paper: Vaswani et al. 2017, "Attention Is All You Need", §3 (arXiv 1706.03762), as trained with
Marian (Junczys-Dowmunt et al. 2018, arXiv 1804.00344) for OPUS-MT (Tiedemann 2020).
Checkpoints: `Helsinki-NLP/opus-mt-*` and others of `model_type: marian`.

Differences from the paper, all Marian's: sinusoidal positions hold the sines in the first half and
the cosines in the second; the decoder starts from the padding token; logits have a bias.
Differences from `transformers`: as in `bart.py`, whose network this is; a pre-norm configuration
(`normalize_before`) is refused, where `transformers` silently ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from export.architecture import language_pairs
from export.config.config_reader import ConfigReader
from export.config.weight_names import Rename
from export.models.encoder_decoders import bart
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

FORM = bart.Form(positions=bart.Positions.SINUSOIDS, has_embedding_norm=False, pad_token_id=58100)


def read_config(values: Mapping[str, Any]) -> bart.Config:
    """The configuration; unsupported fields that would change the network are refused.

    With shared embeddings there is one table for source, target and output; a tied output uses the
    target's table.
    """
    reader = ConfigReader(values)
    reader.refuse_unless(is_encoder_decoder=True, add_bias_logits=False)
    config = bart.read_sizes(reader, FORM)
    shared = reader.flag("share_encoder_decoder_embeddings", True)
    if shared and not config.has_tied_output:
        raise CheckpointError(
            "config.json: share_encoder_decoder_embeddings needs tie_word_embeddings"
        )
    if shared:
        return config
    target = reader.integer("decoder_vocab_size", config.vocabulary_size)
    return replace(config, vocabulary_size=target, has_one_table=False)


# ----------------------------------------------------------------------------------------- names


def rename(config: bart.Config) -> Rename:
    """BART's names → ours; a tied output of the file must be the target's table."""
    names = bart.rename(config)
    if config.has_tied_output:
        names.table["lm_head.weight"] = names.tied["decoder.output"]
    return names


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    bart.declare("marian", {"translate": language_pairs}, FORM),
    read_config=read_config,
    rename=rename,
    tokenizer="sentencepiece_pair",
)
