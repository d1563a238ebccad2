"""GPT-2 as a language model: it continues a prompt.

Paper: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3; the network
is in `gpt2.py`.
Checkpoints: `model_type: gpt2` (`GPT2LMHeadModel`), also those of 2019 whose names lack the prefix
`transformer.`.

Differences from `transformers`: see `gpt2.py`; there is no source, so the only graph is `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from export.architecture import Architecture, Graphs
from export.chat import LANGUAGE_TASKS
from export.config_reader import ConfigReader
from export.decoding.transformer import language_model_graphs
from export.models import gpt2
from export.rename import Rename
from export.twin import Twin
from serving.bundle import ImageSpec, Limits

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """The decoder is all there is."""

    decoder: gpt2.Config

    @property
    def limits(self) -> Limits:
        """The position table bounds prompt and answer together; one place is for the answer."""
        positions = self.decoder.positions
        return Limits(max_input_tokens=positions - 1, max_total_tokens=positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration."""
    return Config(gpt2.read_config(ConfigReader(values), has_cross=False))


# --------------------------------------------------------------------------------------- network


class LanguageModel(nn.Module):
    """The decoder, under the name that every generator has for it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.decoder = gpt2.GPT2(config.decoder)


# ---------------------------------------------------------------------------------------- rename


def rename(config: Config) -> Rename:
    """`transformers`' names → ours, with and without the prefix."""
    table = gpt2.rename(config.decoder, "", "decoder.")
    return Rename(table | {name.removeprefix("transformer."): ours for name, ours in table.items()})


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: LanguageModel, image: ImageSpec | None = None) -> Graphs:
    """`step` (R, T, P dynamic; self-attention in place)."""
    return language_model_graphs(model.decoder)


# ------------------------------------------------------------------------------------------ twin

_TINY = {
    "vocab_size": 64,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
TWIN = Twin(
    reference="transformers:GPT2LMHeadModel",
    configs={
        "plain": _TINY,
        "odd": _TINY | {"n_embd": 30, "n_head": 3, "n_inner": 44, "layer_norm_epsilon": 1e-3},
        "untied": _TINY
        | {
            "tie_word_embeddings": False,
            "scale_attn_by_inverse_layer_idx": True,
            "reorder_and_upcast_attn": True,
            "n_layer": 3,
            "activation_function": "relu",
        },
        "unscaled": _TINY | {"scale_attn_weights": False, "activation_function": "gelu"},
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="gpt2",
    tasks=LANGUAGE_TASKS,
    read_config=read_config,
    build=LanguageModel,
    rename=rename,
    graphs=graphs,
    tokenizer="tokenizers",
    twin=TWIN,
)
