"""The first GPT.

Paper: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", §3.1 and
§4.1: the Transformer's decoder (Vaswani 2017, arXiv 1706.03762) without a source; norms follow the
sub-layers, and none follows the last block.
Checkpoints: `model_type: openai-gpt` (`OpenAIGPTLMHeadModel`).

Differences from `transformers`: as in `gpt2.py`, whose network this is; there is a cache, where
`transformers` computes the whole row for each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, WeightLayout, with_and_without
from export.decoder_graphs.language_model import DecoderConfig, language_model
from export.layers.attention.heads import Heads
from export.models.decoders.gpt2 import GPT2, NAMES
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}
"""Names of this family → ours: its `gelu` is the one through tanh."""
_DEFAULTS = {"vocab_size": 40478, "max_position_embeddings": 512}


def read_config(values: Mapping[str, Any]) -> DecoderConfig:
    """The configuration.

    Raises:
        CheckpointError: an activation that this family does not have.
    """
    reader = ConfigReader(values, defaults=_DEFAULTS, names=NAMES)
    heads = reader.read(Heads)
    name = reader.text("afn", "gelu")
    if name not in _ACTIVATIONS:
        raise CheckpointError(
            f"{reader.place}: afn = {name!r} is not supported; supported are: "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return reader.read(
        DecoderConfig,
        layers=(heads,) * reader.layers("num_hidden_layers"),
        mlp_width=4 * heads.model_width,
        activation=_ACTIVATIONS[name],
    )


# ----------------------------------------------------------------------------------------- names


def names(config: DecoderConfig) -> Names:
    """`transformers`' names → ours; OpenAI's own folder has them without `transformer.`."""
    ours = "blocks.*"
    fused = (f"{ours}.attention.query", f"{ours}.attention.key", f"{ours}.attention.value")
    table: Names = {
        "tokens_embed": "tokens",
        "positions_embed": "positions",
        "position_ids": None,
        "h.*.attn.bias": None,  # a causal mask that old versions stored
        "h.*.attn.c_attn": WeightLayout(fused, is_transposed=True),
        "h.*.attn.c_proj": WeightLayout((f"{ours}.attention.out",), is_transposed=True),
        "h.*.ln_1": f"{ours}.attention_norm",
        "h.*.mlp.c_fc": WeightLayout((f"{ours}.mlp.up",), is_transposed=True),
        "h.*.mlp.c_proj": WeightLayout((f"{ours}.mlp.down",), is_transposed=True),
        "h.*.ln_2": f"{ours}.mlp_norm",
    }
    return with_and_without("transformer.", table)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("gpt1", read_config, partial(GPT2, is_norm_first=False), names)
