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

# ---------------------------------------------------------------------------------------- config


def read_config(values: Mapping[str, Any]) -> DecoderConfig:
    """The decoder is all there is."""
    return gpt2.read_config(ConfigReader(values), has_cross=False)


# ----------------------------------------------------------------------------------------- names


def names(config: DecoderConfig) -> Names:
    """`transformers`' names → ours, with and without the prefix."""
    table = gpt2.names(config)
    return table | {name.removeprefix("transformer."): ours for name, ours in table.items()}


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("gpt2", read_config, gpt2.GPT2, names)
