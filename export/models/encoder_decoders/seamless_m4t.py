"""SeamlessM4T, text to text: M2M-100's network inside a model that also reads and writes speech.

Papers: Seamless Communication 2023, "SeamlessM4T: Massively Multilingual & Multimodal Machine
Translation", §4.4 (arXiv 2308.11596), and "Seamless: Multilingual Expressive and Streaming Speech
Translation" (arXiv 2312.05187).
Checkpoints: `facebook/hf-seamless-m4t-*` (`model_type: seamless_m4t`) and
`facebook/seamless-m4t-v2-large` (`seamless_m4t_v2`).

The weights of the encoder of speech, of the units of speech and of the vocoder are not read.
Differences from `transformers`: as in `bart.py`. A target's language is the first token of the
output, as in its translation pipeline (`forced_bos_token_id`); its `generate(tgt_lang=…)` begins
with it, so that beams do not count it in their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from export.config.config_reader import ConfigReader
from export.config.weight_names import Rename
from export.models.encoder_decoders import bart
from export.tokenizer.languages import token_section

FORM = replace(bart.M2M_100_FORM, pad_token_id=0)
IGNORED = ("speech_encoder.", "t2u_model.", "vocoder.")
"""Beginnings of the names of weights that translate no text."""
_NAMES = {
    "model.encoder.": "text_encoder.",
    "model.decoder.": "text_decoder.",
    "model.shared": "shared",
    ".encoder_attn": ".cross_attention",
    ".final_layer_norm": ".ffn_layer_norm",
    ".fc": ".ffn.fc",
}
"""Parts of BART's names → theirs."""


def read_config(values: Mapping[str, Any]) -> bart.Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = ConfigReader(values, names={"d_model": "hidden_size"})
    reader.refuse_heads("ForTextToText")
    reader.refuse_unless(is_encoder_decoder=True)
    return bart.read_sizes(reader, FORM)


def rename(config: bart.Config) -> Rename:
    """`transformers`' names → ours."""
    names = bart.rename(config)
    table = {}
    for name, entry in names.table.items():
        for part, own in _NAMES.items():
            name = name.replace(part, own)
        table[name] = entry
    return Rename(table, names.optional, names.tied, IGNORED)


ARCHITECTURE = replace(
    bart.declare("seamless_m4t", {"translate": token_section}),
    read_config=read_config,
    rename=rename,
)
