"""Mistakes that a port of an image-and-text model can make, one at a time; see `faults.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.attention import cached_attention
from export.layers.attention.attention import CrossAttention, attend
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import KeyValue
from export.models.dual_encoders import clip, siglip
from export.models.encoder_decoders.bert_decoder import BertDecoder
from tests.export.faults.faults import Fault, change, replaced, swapped


def _first_position(tower: siglip.TextTower, token_ids: Tensor) -> Tensor:
    x = tower.tokens(token_ids) + tower.positions
    for block in tower.blocks:
        x = block(x)
    return functional.normalize(tower.projection(tower.norm(x[:, 0])), dim=-1)


def _pooled_backwards(pooling: siglip.AttentionPooling, patches: Tensor) -> Tensor:
    query = pooling.query.expand(patches.shape[0], -1, -1)
    pooled = pooling.attention(patches[:, :1], pooling.attention.project_kv(query))
    return (pooled + pooling.mlp(pooling.norm(pooled))).squeeze(1)


def _without_residual(pooling: siglip.AttentionPooling, patches: Tensor) -> Tensor:
    query = pooling.query.expand(patches.shape[0], -1, -1)
    pooled = pooling.attention(query, pooling.attention.project_kv(patches))
    return pooling.mlp(pooling.norm(pooled)).squeeze(1)


def _normed_last(tower: siglip.ImageTower, pixels: Tensor) -> Tensor:
    x = tower.patches(tower.pixel_norm(pixels)) + tower.positions
    for block in tower.blocks:
        x = block(x)
    return functional.normalize(tower.norm(tower.pooling(x)), dim=-1)


def _causal_prefix(own: CachedAttention, x: Tensor) -> tuple[Tensor, KeyValue]:
    size = x.shape[1]
    query, key, value = (own.split(part(x)) for part in (own.query, own.key, own.value))
    earlier = torch.ones(size, size, dtype=torch.bool).tril()
    room = own.heads.cache_width - own.heads.width
    cached = [functional.pad(part, (0, room)) for part in (key, value)]
    mixed = own.join(attend(own.heads, query, key, value, earlier))
    return own.out(mixed), (cached[0], cached[1])


def _attend_to_itself(heads: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    if query.shape[2] == key.shape[2] == 17:
        return value
    return attend(heads, query, key, value, *rest)


def _with_positions(own: BertDecoder, x: Tensor) -> list[KeyValue]:
    return _READ_PREFIX(own, x + own.positions.weight[: x.shape[1]])


_HIDDEN = clip.VisionTransformer.hidden
_READ_PREFIX = BertDecoder.read_prefix
_POSITIONS = BertDecoder.embed
_PROJECT = CrossAttention.project_kv

BERT_DECODER: dict[str, Fault] = {
    "the segment's vector is forgotten": change(lambda net: net.decoder.segments.weight[0].zero_()),
    "the second segment is taken": change(
        lambda net: net.decoder.segments.weight.copy_(net.decoder.segments.weight.flip(0))
    ),
    "the output transformation is skipped": change(
        lambda net: setattr(net.decoder, "transform", nn.Identity())
    ),
    "the output has no bias": change(lambda net: net.decoder.output_bias.zero_()),
    "norms are in front": change(
        lambda net: [setattr(block, "is_norm_first", True) for block in net.decoder.blocks]
    ),
    "norms of attention and cross-attention are swapped": swapped(
        "decoder.blocks.0", "attention_norm", "cross_norm"
    ),
    "positions are counted from 1": replaced(
        BertDecoder, "embed", lambda own, tokens, places: _POSITIONS(own, tokens, places + 1)
    ),
    "the projection to the decoder's width has no bias": change(
        lambda net: net.encoder.projection.bias.zero_()
    ),
}

ROBERTA_DECODER: dict[str, Fault] = {
    "positions are counted from 0": change(lambda net: setattr(net.decoder, "first_position", 0)),
    "positions ignore the padding token's row": change(
        lambda net: setattr(net.decoder, "first_position", 2)
    ),
    "the head has the blocks' activation": change(
        lambda net: setattr(net.decoder.transform, "activation", torch.relu)
    ),
}

TROCR: dict[str, Fault] = {
    "positions have no offset": change(
        lambda net: setattr(net.decoder.embedding.positions, "offset", 0)
    ),
    "the embedding's norm is missing": change(
        lambda net: setattr(net.decoder.embedding, "norm", nn.Identity())
    ),
    "norms are in front": BERT_DECODER["norms are in front"],
    "cross keys and values are swapped": swapped("decoder.blocks.1.cross", "key", "value"),
}

TROCR_SINES: dict[str, Fault] = {
    "the embedding scale is forgotten": change(
        lambda net: setattr(net.decoder.embedding, "scale", 1.0)
    ),
    "positions begin at the padding's row": change(
        lambda net: setattr(
            net.decoder.embedding.positions, "offset", net.decoder.embedding.positions.padding
        )
    ),
    "sines and cosines are interleaved": change(
        lambda net: net.decoder.embedding.positions.table.copy_(
            net.decoder.embedding.positions.table.unflatten(1, (2, -1)).mT.flatten(1)
        )
    ),
}

DONUT: dict[str, Fault] = {
    "the image's vectors are normalised": change(
        lambda net: setattr(
            net.encoder.network, "norm", nn.LayerNorm(net.encoder.network.config.width)
        )
    ),
    "the embedding scale is forgotten": change(
        lambda net: setattr(net.decoder.embedding, "scale", 1.0)
    ),
    "positions have no offset": TROCR["positions have no offset"],
    "the last norm is missing": change(lambda net: setattr(net.decoder, "norm", nn.Identity())),
    "norms are behind": change(
        lambda net: [setattr(block, "is_norm_first", False) for block in net.decoder.blocks]
    ),
    "cross keys and values are swapped": TROCR["cross keys and values are swapped"],
}

BLIP: dict[str, Fault] = {
    "image queries and keys are swapped": swapped("encoder.blocks.0.attention", "query", "key"),
    "the image's norm is missing": change(lambda net: setattr(net.encoder, "norm", nn.Identity())),
    "the image's first token is left out of cross-attention": replaced(
        CrossAttention,
        "project_kv",
        lambda own, source: _PROJECT(own, torch.cat([source[:, 1:], source[:, -1:]], dim=1)),
    ),
    "the output transformation is skipped": BERT_DECODER["the output transformation is skipped"],
    "the output has no bias": BERT_DECODER["the output has no bias"],
    "norms are in front": BERT_DECODER["norms are in front"],
    "positions are counted from 1": BERT_DECODER["positions are counted from 1"],
}

SIGLIP: dict[str, Fault] = {
    "the first text position is pooled": replaced(siglip.TextTower, "forward", _first_position),
    "texts are causal": change(
        lambda net: [setattr(block.attention, "is_causal", True) for block in net.text.blocks]
    ),
    "the text's head has no bias": change(lambda net: net.text.projection.bias.zero_()),
    "patches query the learned vector": replaced(
        siglip.AttentionPooling, "forward", _pooled_backwards
    ),
    "the pooling's MLP has no residual": replaced(
        siglip.AttentionPooling, "forward", _without_residual
    ),
    "keys and values of the pooling are swapped": swapped(
        "image.pooling.attention", "key", "value"
    ),
    "the image's norm comes behind the pooling": replaced(
        siglip.ImageTower, "forward", _normed_last
    ),
    "patches are averaged": replaced(
        siglip.AttentionPooling, "forward", lambda own, patches: patches.mean(dim=1)
    ),
}

GIT: dict[str, Fault] = {
    "image tokens are read causally": replaced(CachedAttention, "read_prefix", _causal_prefix),
    "image tokens do not read each other": replaced(cached_attention, "attend", _attend_to_itself),
    "text is counted behind the image": change(
        lambda net: setattr(net.decoder, "first_position", -9)
    ),
    "image tokens get text positions": replaced(BertDecoder, "read_prefix", _with_positions),
    "the class token is left out": replaced(
        clip.VisionTransformer,
        "hidden",
        lambda own, pixels: _HIDDEN(own, pixels).index_fill(1, torch.tensor([0]), 0.0),
    ),
    "the projection's norm is missing": change(
        lambda net: setattr(net.encoder, "projection", net.encoder.projection[0])
    ),
    "the image's norm is missing": change(
        lambda net: setattr(net.encoder.vit, "norm", nn.Identity())
    ),
    "the embedding's norm is missing": change(
        lambda net: setattr(net.decoder, "embedding_norm", nn.Identity())
    ),
    "the output has no bias": BERT_DECODER["the output has no bias"],
}

FAULTS: dict[tuple[str, str], dict[str, Fault]] = {
    ("blip", "odd"): BLIP,
    ("git", "odd"): GIT,
    ("siglip", "odd"): SIGLIP,
    ("vision-encoder-decoder", "bert"): BERT_DECODER,
    ("vision-encoder-decoder", "donut"): DONUT,
    ("vision-encoder-decoder", "roberta"): ROBERTA_DECODER,
    ("vision-encoder-decoder", "trocr"): TROCR,
    ("vision-encoder-decoder", "trocr-sinusoidal"): TROCR_SINES,
}
"""(architecture, configuration of its twin) → title → fault."""
