"""Initialises induction heads in the first two layers of the example GPT-2.

To look a word up in the prompt, one layer must copy the preceding tokens to each position, and the
next must find the position whose copy is the query word (Olsson et al. 2022, "In-context Learning
and Induction Heads", arXiv 2209.11895). Gradient descent alone is slow to find both, because
neither lowers the loss without the other; so the first two layers are initialised close to them.
They are ordinary weights, trained like all others.

Legend: D width, K width of a head; dimensions 0 to K hold positions, then follow three copies of K.
"""

import math
from typing import Any

import torch
from transformers import GPT2LMHeadModel

DISTANCES = (1, 2, 3)
_AMPLITUDE = 0.12  # of positions
_SHARPNESS = 2.2  # of queries and keys: large enough that each head attends to one token only
_NOTE = 0.17  # gain of the copies
_MATCH = 1.5
_COPY = 0.6


@torch.no_grad()
def initialise_induction_heads(model: GPT2LMHeadModel) -> None:
    """Writes the heads into an untrained model whose width holds positions and three copies."""
    config, transformer = model.config, model.transformer
    layers: Any = transformer.h
    head = config.n_embd // config.n_head
    assert config.n_embd >= (1 + len(DISTANCES)) * head
    rates = torch.rand(head // 2) * math.pi
    angles = torch.arange(config.n_positions)[:, None] * rates
    transformer.wpe.weight.zero_()
    transformer.wpe.weight[:, :head] = _AMPLITUDE * torch.cat([angles.sin(), angles.cos()], dim=1)
    transformer.wte.weight[:, :head] = 0
    digest = _directions(config.n_embd, head)  # of a word, the same for each copy
    for index, distance in enumerate(DISTANCES):
        first = _Head(layers[0].attn, index)
        first.set_query_key(_rotated_back(distance * rates), torch.eye(head), _SHARPNESS)
        first.set_value_output(digest, _into(config.n_embd, head, index), _NOTE)
    for index in range(len(DISTANCES) - 1):
        second = _Head(layers[1].attn, index)
        query, key = (_into(config.n_embd, head, place).T for place in (index, index + 1))
        second.set_query_key(query, key, _MATCH)
        copied = _directions(config.n_embd, head)
        second.set_value_output(copied, copied.T, _COPY)


class _Head:
    """One head of a layer, its four matrices."""

    def __init__(self, attention: Any, index: int) -> None:
        width, size = attention.embed_dim, attention.head_dim
        own = slice(index * size, (index + 1) * size)
        blocks = attention.c_attn.weight.split(width, dim=1)  # queries, keys, values: (D, D) each
        self._query, self._key, self._value = (block[:, own] for block in blocks)
        self._out = attention.c_proj.weight[own]

    def set_query_key(self, query: torch.Tensor, key: torch.Tensor, gain: float) -> None:
        """Sets the query and key matrices (≤ D, K), scaled by `gain`."""
        for weight, matrix in ((self._query, query), (self._key, key)):
            weight.zero_()
            weight[: len(matrix)] = gain * matrix

    def set_value_output(self, value: torch.Tensor, out: torch.Tensor, gain: float) -> None:
        """Sets value (D, K) and output (K, D), the output scaled by `gain`."""
        self._value.copy_(value)
        self._out.copy_(gain * out)


def _rotated_back(angles: torch.Tensor) -> torch.Tensor:
    """(K, K) that makes sin a and cos a into those of a minus `angles` (K / 2,), as row · matrix.

    A query rotated by -d matches the key d tokens before best, at any position: the sum of
    cos(rate · distance) over random rates peaks at zero alone.
    """
    sines, cosines = angles.sin().diag(), angles.cos().diag()
    return torch.cat([torch.cat([cosines, sines], dim=1), torch.cat([-sines, cosines], dim=1)])


def _directions(width: int, head: int) -> torch.Tensor:
    """(D, K) random and orthogonal, zero in the position dimensions."""
    directions = torch.zeros(width, head)
    directions[head:] = torch.linalg.qr(torch.randn(width - head, head)).Q
    return directions


def _into(width: int, head: int, note: int) -> torch.Tensor:
    """(K, D) that writes copy `note` into its dimensions; transposed, it reads it."""
    return torch.eye(width)[(1 + note) * head : (2 + note) * head]
