"""Attention heads that find the same word again, as an initial value for comparing two texts.

Whether a document repeats the words of a question is an identity of tokens, which a small BERT does
not find in minutes from random weights. Heads whose queries and keys are one projection of the word
embeddings attend to the same word in both texts; the rest is learnt.
"""

from typing import Any

import torch

_POSITIONAL_DIRECTIONS = 24  # of the hidden width, in which positions and segments differ most
_SEGMENT_WEIGHT = 5.0
_SHARPNESS = 0.7


@torch.no_grad()
def initialise_matching_heads(model: Any, heads: int) -> None:
    """Ties queries and keys of the first heads of a BERT's first layer, in place.

    Their projection is random and orthogonal to the directions of positions and segments, so that
    a word matches itself anywhere.
    """
    embeddings = model.bert.embeddings
    places = embeddings.position_embeddings.weight
    first, second = embeddings.token_type_embeddings.weight
    differing = torch.cat([places - places.mean(0), _SEGMENT_WEIGHT * (first - second)[None]])
    directions = torch.linalg.svd(differing).Vh[:_POSITIONAL_DIRECTIONS]  # (24, D)
    attention = model.bert.encoder.layer[0].attention.self
    width = attention.attention_head_size
    kept = torch.eye(places.shape[1]) - directions.T @ directions
    for head in range(heads):
        rows = slice(width * head, width * (head + 1))
        basis = torch.linalg.qr((torch.randn(width, len(kept)) @ kept).T).Q.T  # (K, D)
        for projection in (attention.query, attention.key):
            projection.weight[rows] = _SHARPNESS * basis
            projection.bias[rows] = 0
