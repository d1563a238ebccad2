"""Where the example GPT-2 starts from: heads that look back, and heads that match what they saw.

To look a word up in the prompt, one layer must note what stood before each token, and the next must
find the place whose note is the word that is asked for (Olsson et al. 2022, "In-context Learning
and Induction Heads", arXiv 2209.11895). Gradient descent alone takes long to find both at once,
because neither is of use without the other; so the first two layers begin with a sketch of them.
They are ordinary weights, and trained like all the others.

Legend: D width, K width of a head; dimensions 0 to K hold positions, then come three notes of K.
"""

import math
from typing import Any

import torch
from transformers import GPT2LMHeadModel

DISTANCES = (1, 2, 3)
_AMPLITUDE = 0.12  # of positions
_SHARPNESS = 2.2  # of queries and keys: large enough that each head sees one token only
_NOTE = 0.17  # how large notes are written
_MATCH = 1.5
_COPY = 0.6


@torch.no_grad()
def initialise_induction_heads(model: GPT2LMHeadModel) -> None:
    """Sketches the heads into an untrained model whose vectors hold positions and three notes."""
    config, transformer = model.config, model.transformer
    layers: Any = transformer.h
    head = config.n_embd // config.n_head
    assert config.n_embd >= (1 + len(DISTANCES)) * head
    rates = torch.rand(head // 2) * math.pi
    angles = torch.arange(config.n_positions)[:, None] * rates
    transformer.wpe.weight.zero_()
    transformer.wpe.weight[:, :head] = _AMPLITUDE * torch.cat([angles.sin(), angles.cos()], dim=1)
    transformer.wte.weight[:, :head] = 0
    digest = _directions(config.n_embd, head)  # of a word, the same for each note
    for index, distance in enumerate(DISTANCES):
        first = _Head(layers[0].attn, index)
        first.see(_turned_back(distance * rates), torch.eye(head), _SHARPNESS)
        first.tell(digest, _into(config.n_embd, head, index), _NOTE)
    for index in range(len(DISTANCES) - 1):
        second = _Head(layers[1].attn, index)
        asked, found = (_into(config.n_embd, head, place).T for place in (index, index + 1))
        second.see(asked, found, _MATCH)
        copied = _directions(config.n_embd, head)
        second.tell(copied, copied.T, _COPY)


class _Head:
    """One head of a layer, its four matrices."""

    def __init__(self, attention: Any, index: int) -> None:
        width, size = attention.embed_dim, attention.head_dim
        own = slice(index * size, (index + 1) * size)
        blocks = attention.c_attn.weight.split(width, dim=1)  # queries, keys, values: (D, D) each
        self._query, self._key, self._value = (block[:, own] for block in blocks)
        self._out = attention.c_proj.weight[own]

    def see(self, query: torch.Tensor, key: torch.Tensor, gain: float) -> None:
        """Compares what the matrices (≤ D, K) make of the two places."""
        for weight, matrix in ((self._query, query), (self._key, key)):
            weight.zero_()
            weight[: len(matrix)] = gain * matrix

    def tell(self, value: torch.Tensor, out: torch.Tensor, gain: float) -> None:
        """Passes on x · value (D, K) · out (K, D)."""
        self._value.copy_(value)
        self._out.copy_(gain * out)


def _turned_back(angles: torch.Tensor) -> torch.Tensor:
    """(K, K) that makes sin a and cos a those of a minus `angles` (K / 2,), as row · matrix.

    A query turned back by d fits the key d tokens before best, wherever it is: the sum of
    cos(rate · distance) over random rates peaks at zero alone.
    """
    sines, cosines = angles.sin().diag(), angles.cos().diag()
    return torch.cat([torch.cat([cosines, sines], dim=1), torch.cat([-sines, cosines], dim=1)])


def _directions(width: int, head: int) -> torch.Tensor:
    """(D, K) random and orthogonal, blind to positions."""
    directions = torch.zeros(width, head)
    directions[head:] = torch.linalg.qr(torch.randn(width - head, head)).Q
    return directions


def _into(width: int, head: int, note: int) -> torch.Tensor:
    """(K, D) that writes a note in its place; transposed it reads it."""
    return torch.eye(width)[(1 + note) * head : (2 + note) * head]
