"""Initialises induction heads in the first two layers of the example's Qwen3.

As in `induction_heads`, but positions are rotary (Su et al. 2021, arXiv 2104.09864) and queries and
keys are normalised: the pairs of dimensions that rotate fast find the preceding token, those that
hardly rotate compare words.

Legend: D width, K width of a head; pair i of a head is its dimensions i and i + K / 2.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

_FAST = 4  # pairs
_SLOW_FROM = 6  # pairs
_CONSTANT = 0.2  # dimension 0 of every embedding: what queries for positions are made of
_SHARPNESS = 3.0
_MATCH = 2.0
_NOTE = 0.12
_COPY = 1.0
_OTHERS = 0.1  # gain of all other outputs, so that words are not lost among them


@torch.no_grad()
def initialise_induction_heads(model: Qwen3ForCausalLM) -> None:
    """Writes a head for the preceding token into layer 0, and one that matches it into layer 1."""
    config = model.config
    width = config.head_dim  # K
    half = width // 2
    fast = torch.tensor([*range(_FAST), *range(half, half + _FAST)])
    slow = torch.tensor([*range(_SLOW_FROM, half), *range(half + _SLOW_FROM, width)])
    rotary: Any = config.rope_parameters
    rates = rotary["rope_theta"] ** -(torch.arange(_FAST) / half)
    embeddings = model.model.embed_tokens.weight
    embeddings[:, 0] = _CONSTANT
    directions = torch.zeros(2 * len(slow), config.hidden_size)
    directions[:, 1:] = torch.linalg.qr(torch.randn(config.hidden_size - 1, 2 * len(slow))).Q.T
    word, note = directions.split(len(slow))  # of a word, and of the one before it

    for layer in model.model.layers:
        layer.self_attn.o_proj.weight *= _OTHERS
        layer.mlp.down_proj.weight *= _OTHERS
    first, second = (model.model.layers[index].self_attn for index in (0, 1))
    first.q_norm.weight[fast] = first.k_norm.weight[fast] = _SHARPNESS
    _rows(first.q_proj.weight, width)[fast, 0] = torch.cat([rates.cos(), -rates.sin()])
    _rows(first.k_proj.weight, width)[fast, 0] = torch.cat([torch.ones(_FAST), torch.zeros(_FAST)])
    _rows(first.v_proj.weight, width)[slow] = word
    _rows(first.o_proj.weight.T, width)[slow] = _NOTE * note

    second.q_norm.weight[slow] = second.k_norm.weight[slow] = _MATCH
    _rows(second.q_proj.weight, width)[slow] = word
    _rows(second.k_proj.weight, width)[slow] = note
    _rows(second.v_proj.weight, width)[slow] = word
    _rows(second.o_proj.weight.T, width)[slow] = _COPY * word


def _rows(weight: Tensor, width: int) -> Tensor:
    """The weights of the first head, (K, D), set to zero."""
    rows = weight[:width]
    rows.zero_()
    return rows
