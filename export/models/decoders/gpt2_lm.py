"""GPT-2 as a language model: it continues a prompt.

Paper: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3; the network
is in `gpt2.py`.
Checkpoints: `model_type: gpt2` (`GPT2LMHeadModel`), also those of 2019 whose names lack the prefix
`transformer.`.

Differences from `transformers`: see `gpt2.py`; there is no source, so the only graph is `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from export.config.config_reader import ConfigReader
from export.config.weight_names import Names
from export.decoder_graphs.language_model import DecoderConfig, language_model
from export.models.decoders import gpt2
from export.twin import TINY_GPT, tiny_twin

# ---------------------------------------------------------------------------------------- config


def read_config(values: Mapping[str, Any]) -> DecoderConfig:
    """The decoder is all there is."""
    return gpt2.read_config(ConfigReader(values), has_cross=False)


# ----------------------------------------------------------------------------------------- names


def names(config: DecoderConfig) -> Names:
    """`transformers`' names → ours, with and without the prefix."""
    table = gpt2.names(config)
    return table | {name.removeprefix("transformer."): ours for name, ours in table.items()}


# ------------------------------------------------------------------------------------------ twin

TWIN = tiny_twin(
    "transformers:GPT2LMHeadModel",
    TINY_GPT,
    {
        "odd": {"n_embd": 30, "n_head": 3, "n_inner": 44, "layer_norm_epsilon": 1e-3},
        "untied": {
            "tie_word_embeddings": False,
            "scale_attn_by_inverse_layer_idx": True,
            "reorder_and_upcast_attn": True,
            "n_layer": 3,
            "activation_function": "relu",
        },
        "unscaled": {"scale_attn_weights": False, "activation_function": "gelu"},
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("gpt2", read_config, gpt2.GPT2, names, TWIN)
