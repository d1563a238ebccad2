"""Gemma 1, 2 and 3: Llama's network with scaled embeddings and norms that multiply by 1 + weight.

Reports: Gemma Team 2024, "Gemma: Open Models Based on Gemini Research and Technology", §2 (arXiv
2403.08295): a GELU in the gate, wide heads, of which the 2B model has one of keys and values.
Gemma Team 2024, "Gemma 2", §2 (arXiv 2408.00118): norms in front of and behind each sub-layer, soft
caps of scores and logits, every second layer with a window. Gemma Team 2025, "Gemma 3 Technical
Report", §2 (arXiv 2503.19786): norms of queries and keys in place of soft caps; five layers with a
window follow each other, then one without, and the two kinds rotate by different bases.
Checkpoints: `model_type: gemma`, `gemma2` and `gemma3_text`.

Differences from `transformers`: inference only; attention to later positions
(`use_bidirectional_attention`) is refused, and in Gemma 3 a soft cap of scores, which
`transformers` ignores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from export.config.config_reader import ConfigReader
from export.config.weight_names import Names
from export.decoder_graphs.language_model import language_model
from export.layers.attention.heads import Heads
from export.layers.attention.rotary import Rotary, rope_parameters, rotary_of
from export.layers.blocks import RMSNorm
from export.models.decoders import llama
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

ENDS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
"""Where a checkpoint says nothing."""
GLOBAL_BASE, LOCAL_BASE = 1_000_000.0, 10_000.0


def read_gemma(values: Mapping[str, Any]) -> llama.Config:
    """The configuration; unsupported fields that would change the network are refused."""
    if values.get("hidden_act") == "gelu":  # files of the first releases mean its approximation
        values = {**values, "hidden_act": "gelu_pytorch_tanh"}
    reader = _open(values)
    config = _read_shape(reader, llama.read_heads(reader))
    return replace(config, has_mlp_bias=False)  # whatever the file says, as in `transformers`


def read_gemma2(values: Mapping[str, Any], place: str = "config.json") -> llama.Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = _open_newer(values, place)
    heads = read_heads(reader)
    heads = replace(heads, soft_cap=read_cap(reader, "attn_logit_softcapping", 50.0))
    window = reader.integer("sliding_window", 4096)
    sliding = llama.sliding_layers(reader, lambda layer: layer % 2 == 0)
    layers = tuple(replace(heads, window=window) if slides else heads for slides in sliding)
    cap = read_cap(reader, "final_logit_softcapping", 30.0)
    return _read_newer(reader, layers, logits_cap=cap)


def read_gemma3(values: Mapping[str, Any], place: str = "config.json") -> llama.Config:
    """The configuration; unsupported fields that would change the network are refused."""
    positions = {"max_position_embeddings": 131072}
    reader = _open_newer(values, place, **positions)
    reader.refuse_unless(attn_logit_softcapping=None)
    # What all layers share is read without rotary positions, which here are of two kinds.
    plain = {name: value for name, value in values.items() if not name.startswith("rope_")}
    heads = read_heads(_open_newer(plain, place, **positions))
    everywhere, near = read_rotaries(reader, heads)
    window = reader.integer("sliding_window", 4096)
    pattern = reader.integer("sliding_window_pattern", 6)
    sliding = llama.sliding_layers(reader, lambda layer: (layer + 1) % pattern != 0)
    layers = tuple(
        replace(heads, window=window, rotary=near) if slides else replace(heads, rotary=everywhere)
        for slides in sliding
    )
    cap = read_cap(reader, "final_logit_softcapping", None)
    return _read_newer(reader, layers, logits_cap=cap, has_head_norms=True)


_open = partial(
    llama.open_config,
    max_position_embeddings=8192,
    head_dim=256,
    hidden_act="gelu_pytorch_tanh",
    tie_word_embeddings=True,
)
_open_newer = partial(_open, names={"hidden_act": "hidden_activation"}, num_key_value_heads=4)


def read_heads(reader: ConfigReader) -> Heads:
    """What the attention of all layers of Gemma 2 and 3 has in common."""
    heads = llama.read_heads(reader)
    return replace(heads, scale=llama.read_positive(reader, "query_pre_attn_scalar", 256) ** -0.5)


def _read_shape(reader: ConfigReader, heads: Any, **form: Any) -> llama.Config:
    """The configuration around the heads."""
    reader.refuse_unless(use_bidirectional_attention=False)
    scale, norm = reader.integer("hidden_size") ** 0.5, partial(RMSNorm, offset=1.0)
    return llama.read_shape(reader, heads, norm=norm, embedding_scale=scale, **form)


def _read_newer(reader: ConfigReader, layers: tuple[Heads, ...], **form: Any) -> llama.Config:
    """That of Gemma 2 and 3."""
    reader.refuse_unless(mlp_bias=False)
    config = _read_shape(reader, layers, has_mlp_bias=False, **form)
    norm = partial(config.norm, config.width, eps=config.norm_epsilon)
    return replace(config, behind=norm)


def read_cap(reader: ConfigReader, name: str, default: float | None) -> float | None:
    """A soft cap; null switches it off.

    Raises:
        CheckpointError: not positive.
    """
    if reader.values.get(name, default) is None:
        return None
    return llama.read_positive(reader, name, default or 0.0)


def read_rotaries(reader: ConfigReader, heads: Heads) -> tuple[Rotary, Rotary]:
    """Of layers without and with a window.

    `transformers` 5 nests parameters by kind of layer; in 4 `rope_theta` and `rope_scaling` are
    those of layers without a window, `rope_local_base_freq` is of the others.
    """
    assert heads.rotary is not None
    positions = heads.rotary.positions
    nested = rope_parameters(reader, reader.values.get("rope_parameters"))
    given = rope_parameters(
        reader, reader.values.get("rope_scaling") or nested.get("full_attention")
    )
    if "type" in given and "rope_type" not in given:
        # `transformers` 5 reads it for Llama, and ignores it here.
        raise CheckpointError(f"{reader.place}: rope_scaling needs rope_type, not type")
    base = reader.number("rope_theta", GLOBAL_BASE)
    everywhere = rotary_of(reader, given, heads.width, positions, base)
    base, local = reader.number("rope_local_base_freq", LOCAL_BASE), nested.get("sliding_attention")
    return everywhere, rotary_of(reader, local, heads.width, positions, base)


# ----------------------------------------------------------------------------------------- names

_THEIRS, _OURS = "model.layers.*", "blocks.*"
_NEWER: Names = llama.NAMES | {
    f"{_THEIRS}.post_attention_layernorm": f"{_OURS}.attention_out_norm",
    f"{_THEIRS}.pre_feedforward_layernorm": f"{_OURS}.mlp_norm",
    f"{_THEIRS}.post_feedforward_layernorm": f"{_OURS}.mlp_out_norm",
}
"""Norms on both sides of sub-layers."""

# ---------------------------------------------------------------------------------- declarations

GEMMA = language_model("gemma", read_gemma, llama.Llama, llama.NAMES)
GEMMA2 = language_model("gemma2", read_gemma2, llama.Llama, _NEWER)
GEMMA3 = language_model("gemma3_text", read_gemma3, llama.Llama, _NEWER)
