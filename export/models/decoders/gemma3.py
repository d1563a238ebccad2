"""The language model of Gemma 3.

Paper: Gemma Team 2025, "Gemma 3 Technical Report", §2 (arXiv 2503.19786): Gemma 2's blocks with
norms of queries and keys in place of soft caps; five layers with a window follow each other, then
one without, and the two kinds rotate by different bases. The network is in `gemma2.py`.
Checkpoints: `model_type: gemma3_text`.

Differences from `transformers`: a soft cap of scores is refused, where `transformers` ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from export.config.config_reader import ConfigReader
from export.decoder_graphs.language_model import language_model
from export.layers.attention.heads import Heads
from export.layers.attention.rotary import Rotary, rotary_of
from export.models.decoders import gemma2, llama
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

POSITIONS = 131072
"""Default of `max_position_embeddings`."""
GLOBAL_BASE, LOCAL_BASE = 1_000_000.0, 10_000.0


def read_config(values: Mapping[str, Any]) -> gemma2.Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = gemma2.open_config(values, POSITIONS)
    reader.refuse_unless(attn_logit_softcapping=None)
    # What all layers share is read without rotary positions, which here are of two kinds.
    plain = {name: value for name, value in values.items() if not name.startswith("rope_")}
    heads = gemma2.read_heads(gemma2.open_config(plain, POSITIONS))
    everywhere, near = read_rotaries(reader, heads)
    window = reader.integer("sliding_window", 4096)
    pattern = reader.integer("sliding_window_pattern", 6)
    sliding = llama.sliding_layers(reader, lambda layer: (layer + 1) % pattern != 0)
    layers = tuple(
        replace(heads, window=window, rotary=near) if slides else replace(heads, rotary=everywhere)
        for slides in sliding
    )
    return gemma2.read_shape(reader, layers, logits_cap=None, has_head_norms=True)


def read_rotaries(reader: ConfigReader, heads: Heads) -> tuple[Rotary, Rotary]:
    """Of layers without and with a window.

    `transformers` 5 nests parameters by kind of layer; in 4 `rope_theta` and `rope_scaling` are
    those of layers without a window, `rope_local_base_freq` is of the others.
    """
    assert heads.rotary is not None
    positions = heads.rotary.positions
    nested = reader.values.get("rope_parameters") or {}
    given = reader.values.get("rope_scaling") or nested.get("full_attention") or {}
    if "type" in given and "rope_type" not in given:
        # `transformers` 5 reads it for Llama, and ignores it here.
        raise CheckpointError(f"{reader.place}: rope_scaling needs rope_type, not type")
    base = reader.number("rope_theta", GLOBAL_BASE)
    everywhere = rotary_of(reader, given, heads.width, positions, base)
    base = reader.number("rope_local_base_freq", LOCAL_BASE)
    given = nested.get("sliding_attention") or {}
    return everywhere, rotary_of(reader, given, heads.width, positions, base)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("gemma3_text", read_config, gemma2.Gemma, gemma2.names)
