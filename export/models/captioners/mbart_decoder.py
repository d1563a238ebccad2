"""mBART's decoder alone, for the vectors of another encoder.

Papers: Liu et al. 2020 (arXiv 2001.08210), as in `mbart.py`; Kim et al. 2022, "OCR-free Document
Understanding Transformer" (Donut), §3.2 (arXiv 2111.15664), which reads documents with it.
Checkpoints: the decoder (`model_type: mbart`) of `model_type: vision-encoder-decoder` folders.

Legend: V vocabulary, D width.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename
from export.models.encoder_decoders import bart, mbart

FORM = replace(mbart.FORM, has_output_bias=False)
_DEFAULTS = {
    "vocab_size": 50_265,
    "d_model": 1024,
    "max_position_embeddings": 1024,
    "decoder_layers": 12,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
}
"""Those of `transformers`."""


def read_config(reader: ConfigReader) -> bart.Config:
    """The configuration."""
    reader.refuse_unless(cross_attention_hidden_size=None)
    values = {**_DEFAULTS, **reader.values}
    for name in ("layers", "attention_heads", "ffn_dim"):  # of an encoder that is not there
        values[f"encoder_{name}"] = values[f"decoder_{name}"]
    return bart.read_sizes(ConfigReader(values, reader.place), FORM)


class MBartDecoder(bart.Decoder):
    """Tokens and a source's keys and values → scores of the next token."""

    def __init__(self, config: bart.Config) -> None:
        super().__init__(config, nn.Embedding(config.vocabulary_size, config.width))
        if config.has_one_table:
            self.output = self.embedding.tokens.weight


def rename(config: bart.Config, theirs: str, ours: str) -> dict[str, Entry]:
    """The table below a prefix on either side."""
    table = {
        name: entry.removeprefix("decoder.") if isinstance(entry, str) else entry
        for name, entry in bart.decoder_names(FORM).items()
    }
    table["model.decoder.embed_tokens"] = "embedding.tokens"
    table["lm_head.weight"] = "embedding.tokens.weight" if config.has_one_table else "output"
    return Rename(table).prefixed(theirs, ours)
