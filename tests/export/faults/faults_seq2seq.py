"""Mistakes that a port of an encoder-decoder for text can make, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from export.decoder_graphs import image_source
from export.layers.attention.attention import within
from export.layers.attention.heads import Heads, Rows
from export.layers.attention.positions import RelativePositions
from export.models.encoder_decoders import bart, led, longt5, pegasus_x, prophetnet, t5gemma
from export.models.encoder_decoders.switch_transformers import SparseMLP
from export.models.vision_language.gemma_images import PooledEncoder
from tests.export.faults.faults import (
    MARIAN,
    Fault,
    _Identity,
    _shifted,
    change,
    replaced,
    swapped,
)
from tests.export.twin import EXPORTED

_BUCKET = RelativePositions.bucket
_BIAS = RelativePositions.forward


def _late_boundary(relative: RelativePositions, distance: torch.Tensor) -> torch.Tensor:
    """Distances share buckets one position later than they should."""
    return _BUCKET(relative, distance - distance.sign() * (distance.abs() > 1))


def _first_layer_only(network: Any) -> Any:
    """Blocks after the first one get no bias."""
    block = network.decoder.blocks[1]
    attention = block.self_attention

    def without(x: Any, rows: Rows, past: Any, bias: Any = None) -> Any:
        return attention(x, rows, past, None)

    block.self_attention = without
    return _Nothing()


def _clipped_queries(relative: RelativePositions, queries: Any, keys: Any) -> torch.Tensor:
    """Positions count within a call, not within the row."""
    return _BIAS(relative, queries - queries[:, :1], keys)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def _all_positions(edit: Any) -> Fault:
    """Edits the position tables of both sides."""

    def act(network: Any) -> None:
        for side in (network.encoder, network.decoder):
            edit(side.embedding.positions)

    return change(act)


def _interleaved(positions: Any) -> None:
    table = positions.table
    half = table.shape[1] // 2 * 2
    table[:, :half] = table[:, :half].unflatten(1, (2, -1)).mT.flatten(1)


T5: dict[str, Fault] = {
    "a bucket's boundary is off by one": replaced(RelativePositions, "bucket", _late_boundary),
    "the encoder looks back only": change(
        lambda net: setattr(net.encoder.relative, "is_bidirectional", False)
    ),
    "the decoder looks both ways": change(
        lambda net: setattr(net.decoder.relative, "is_bidirectional", True)
    ),
    "the stacks' biases are swapped": change(
        lambda net: _swap_modules_of(net.encoder, net.decoder, "relative")
    ),
    "positions count from the call": replaced(RelativePositions, "forward", _clipped_queries),
    "scores are scaled": replaced(Heads, "score_scale", property(lambda heads: heads.width**-0.5)),
    "gate and up are swapped": swapped("decoder.blocks.0.mlp", "gate", "up"),
    "erf for tanh in GELU": change(
        lambda net: setattr(net.decoder.blocks[0].mlp, "activation", nn.functional.gelu)
    ),
    "another epsilon in the norms": change(
        lambda net: setattr(net.decoder.blocks[0].mlp_norm, "eps", 1e-6)
    ),
    "the untied output is scaled": change(
        lambda net: setattr(net.decoder, "output_scale", 18**-0.5)
    ),
    "the output is tied": change(lambda net: net.decoder.output.copy_(net.encoder.tokens.weight)),
    "the final norm is missing": change(lambda net: setattr(net.decoder, "norm", _Identity())),
    "padding of the source is seen": MARIAN["padding of the source is seen"],
}


def _swap_modules_of(first: Any, second: Any, name: str) -> None:
    held = getattr(first, name)
    setattr(first, name, getattr(second, name))
    setattr(second, name, held)


BART: dict[str, Fault] = {
    "the position offset is forgotten": _all_positions(
        lambda positions: setattr(positions, "offset", 0)
    ),
    "positions are off by one": replaced(
        Rows, "positions", lambda rows, new: _shifted(rows, new).clamp(max=rows.total - 1)
    ),
    "final_logits_bias is dropped": change(lambda net: net.decoder.output_bias.zero_()),
    "the norm of the embeddings is missing": change(
        lambda net: setattr(net.decoder.embedding, "norm", _Identity())
    ),
    "the embedding scale is forgotten": MARIAN["the embedding scale is forgotten"],
    "norms stand in front": change(
        lambda net: setattr(net.decoder.blocks[0], "is_norm_first", True)
    ),
    "another activation": MARIAN["another activation"],
    "cross key and value are swapped": MARIAN["cross key and value are swapped"],
    "the positions of both sides are swapped": change(
        lambda net: _swap_modules_of(net.encoder.embedding, net.decoder.embedding, "positions")
    ),
    "a bias is dropped": MARIAN["a bias is dropped"],
}
BART["another activation"] = change(
    lambda net: setattr(net.decoder.blocks[1].mlp, "activation", nn.functional.relu)
)

MBART: dict[str, Fault] = {
    "the encoder's final norm is missing": change(
        lambda net: setattr(net.encoder, "norm", _Identity())
    ),
    "the decoder's final norm is missing": change(
        lambda net: setattr(net.decoder, "norm", _Identity())
    ),
    "norms stand behind": change(
        lambda net: setattr(net.decoder.blocks[0], "is_norm_first", False)
    ),
    "the norm of the embeddings is missing": BART["the norm of the embeddings is missing"],
    "final_logits_bias is dropped": BART["final_logits_bias is dropped"],
}

PEGASUS: dict[str, Fault] = {
    "sines and cosines are interleaved": _all_positions(_interleaved),
    "frequencies are M2M-100's": _all_positions(
        lambda positions: positions.table.copy_(bart.spread_sinusoids(*positions.table.shape))
    ),
    "positions have an offset": _all_positions(lambda positions: setattr(positions, "offset", 2)),
    "final_logits_bias is dropped": BART["final_logits_bias is dropped"],
}

M2M_100: dict[str, Fault] = {
    "positions begin at zero": _all_positions(lambda positions: setattr(positions, "offset", 0)),
    "the padding index is learned positions' 2": _all_positions(
        lambda positions: setattr(positions, "offset", 2)
    ),
    "frequencies are Marian's": _all_positions(
        lambda positions: positions.table.copy_(bart.sinusoids(*positions.table.shape))
    ),
    "the embedding scale is forgotten": MARIAN["the embedding scale is forgotten"],
    "the decoder's final norm is missing": MBART["the decoder's final norm is missing"],
    "norms stand behind": MBART["norms stand behind"],
}

SEAMLESS_M4T: dict[str, Fault] = {
    "embeddings are scaled": change(lambda net: setattr(net.encoder.embedding, "scale", 30**0.5)),
    "positions begin at zero": M2M_100["positions begin at zero"],
    "the padding index is learned positions' 2": M2M_100[
        "the padding index is learned positions' 2"
    ],
    "frequencies are Marian's": M2M_100["frequencies are Marian's"],
    "the encoder's final norm is missing": MBART["the encoder's final norm is missing"],
    "the decoder's final norm is missing": MBART["the decoder's final norm is missing"],
    "norms stand behind": MBART["norms stand behind"],
    "cross key and value are swapped": MARIAN["cross key and value are swapped"],
}

FSMT: dict[str, Fault] = {
    **{name: fault for name, fault in SEAMLESS_M4T.items() if "norm" not in name},
    "norms stand in front": BART["norms stand in front"],
    "the target has the source's table": change(
        lambda net: net.decoder.embedding.tokens.weight.copy_(
            net.encoder.embedding.tokens.weight[: len(net.decoder.embedding.tokens.weight)]
        )
    ),
    "the output is the target's table": change(
        lambda net: net.decoder.output.copy_(net.decoder.embedding.tokens.weight)
    ),
}

BLENDERBOT: dict[str, Fault] = {
    "positions have BART's offset": _all_positions(
        lambda positions: setattr(positions, "offset", 2)
    ),
    "norms stand behind": MBART["norms stand behind"],
    "the encoder's final norm is missing": MBART["the encoder's final norm is missing"],
    "the decoder's final norm is missing": MBART["the decoder's final norm is missing"],
    "final_logits_bias is dropped": BART["final_logits_bias is dropped"],
}

BLENDERBOT_SMALL: dict[str, Fault] = {
    "targets are normalised with their positions": change(
        lambda net: setattr(net.decoder.embedding, "__class__", bart.Embedding)
    ),
    "sources are normalised without their positions": change(
        lambda net: setattr(net.encoder.embedding, "__class__", bart.NormalisedTokens)
    ),
    "the source's embedding scale is forgotten": change(
        lambda net: setattr(net.encoder.embedding, "scale", 1.0)
    ),
    "positions have BART's offset": BLENDERBOT["positions have BART's offset"],
    "norms stand in front": BART["norms stand in front"],
}

PLBART: dict[str, Fault] = {
    "embeddings are scaled": change(lambda net: setattr(net.decoder.embedding, "scale", 30**0.5)),
    "the position offset is forgotten": BART["the position offset is forgotten"],
    "final_logits_bias is dropped": BART["final_logits_bias is dropped"],
}

MVP: dict[str, Fault] = {
    "the embedding scale is forgotten": BART["the embedding scale is forgotten"],
    "the norm of the embeddings is missing": BART["the norm of the embeddings is missing"],
    "final_logits_bias is dropped": BART["final_logits_bias is dropped"],
}


def _shares_first(side: str) -> Fault:
    """All layers have the first one's bias, as in T5."""

    def act(network: Any) -> None:
        first, *others = getattr(network, side).blocks
        for block in others:
            block.relative = first.relative

    return change(act)


UMT5: dict[str, Fault] = {
    "the encoder's layers share one bias": _shares_first("encoder"),
    "the decoder's layers share one bias": _shares_first("decoder"),
    "the output is not scaled": change(lambda net: setattr(net.decoder, "output_scale", 1.0)),
    "a bucket's boundary is off by one": T5["a bucket's boundary is off by one"],
    "positions count from the call": T5["positions count from the call"],
    "scores are scaled": T5["scores are scaled"],
    "the encoder looks back only": change(
        lambda net: setattr(net.encoder.blocks[1].relative, "is_bidirectional", False)
    ),
    "the output is tied": T5["the output is tied"],
}

ENCODER_DECODER: dict[str, Fault] = {
    "the projection is not biased": change(lambda net: net.encoder.projection.bias.zero_()),
    "the source has no segment": change(lambda net: net.encoder.network.segments.weight[0].zero_()),
    "the source's padding is seen": MARIAN["padding of the source is seen"],
    "the norm of the source's embeddings is missing": change(
        lambda net: setattr(net.encoder.network, "norm", _Identity())
    ),
    "the transformation of the head is missing": change(
        lambda net: setattr(net.decoder, "transform", _Identity())
    ),
    "the head's bias is dropped": change(lambda net: net.decoder.output_bias.zero_()),
    "cross key and value are swapped": MARIAN["cross key and value are swapped"],
    "norms stand in front": BART["norms stand in front"],
    "another epsilon in the source's norms": change(
        lambda net: setattr(net.encoder.network.blocks[0].mlp_norm, "eps", 1e-12)
    ),
    "positions are off by one": MARIAN["positions are off by one"],
}

BIGBIRD_PEGASUS: dict[str, Fault] = {
    "positions have BART's offset": BLENDERBOT["positions have BART's offset"],
    "norms stand behind": MBART["norms stand behind"],
    "the encoder's final norm is missing": MBART["the encoder's final norm is missing"],
    "final_logits_bias is dropped": BART["final_logits_bias is dropped"],
    "erf for tanh in GELU": change(
        lambda net: setattr(net.decoder.blocks[0].mlp, "activation", nn.functional.gelu)
    ),
    "query and key are swapped": swapped("encoder.blocks.0.attention", "query", "key"),
}


def _each_layer(name: str, value: object) -> Fault:
    """Sets an attribute of the attention of the encoder's layers."""

    def act(network: Any) -> None:
        for block in network.encoder.blocks:
            setattr(block.attention, name, value)

    return change(act)


PEGASUS_X: dict[str, Fault] = {
    "no layer is staggered": _each_layer("shift", 0),
    "all layers are staggered": _each_layer("shift", 1),
    "blocks have another size": _each_layer("block", 4),
    "padding of the source is seen": replaced(
        pegasus_x, "within", lambda lengths, size: within(torch.full_like(lengths, size), size)
    ),
    "global tokens are not seen": replaced(
        pegasus_x,
        "behind",
        lambda visible, tokens: nn.functional.pad(visible, (0, tokens.shape[1]), value=False),
    ),
    "global tokens share the norm of positions": change(
        lambda net: [
            setattr(block, "token_norm", block.attention_norm) for block in net.encoder.blocks
        ]
    ),
    "positions begin behind the padding token": _all_positions(
        lambda positions: setattr(positions, "offset", 1)
    ),
    "frequencies are Pegasus'": _all_positions(
        lambda positions: positions.table.copy_(bart.sinusoids(*positions.table.shape))
    ),
    "norms stand behind": MBART["norms stand behind"],
    "the encoder's final norm is missing": MBART["the encoder's final norm is missing"],
}

_SCORES = longt5.Encoder.scores


def _orphans_dropped(encoder: Any, lengths: torch.Tensor, size: int) -> longt5.Scores:
    """Positions behind the last whole sum are in none."""
    found = _SCORES(encoder, lengths, size)
    assert found.members is not None
    whole = (lengths // encoder.summed * encoder.summed)[:, None, None]
    members = found.members * (torch.arange(size) < whole)
    return longt5.Scores(found.visible, found.bias, members)


def _all_sums_seen(encoder: Any, lengths: torch.Tensor, size: int) -> longt5.Scores:
    """Sums of nothing are keys too."""
    found = _SCORES(encoder, lengths, size)
    visible = found.visible.clone()
    visible[..., 3 * encoder.block :] = True
    return longt5.Scores(visible, found.bias, found.members)


def _farther(encoder: Any, lengths: torch.Tensor, size: int) -> longt5.Scores:
    """All of both neighbouring blocks is near."""
    found, near = _SCORES(encoder, lengths, size), 3 * encoder.block
    visible = found.visible.clone()
    visible[..., :near] = visible[..., :near].any(dim=-2, keepdim=True)
    return longt5.Scores(visible, found.bias, found.members)


LONGT5: dict[str, Fault] = {
    "the window has another size": change(
        lambda net: [
            setattr(module, "block", 3)
            for module in (net.encoder, *(block.attention for block in net.encoder.blocks))
        ]
    ),
    "all of the neighbouring blocks is seen": replaced(longt5.Encoder, "scores", _farther),
    "the last positions are in no sum": replaced(longt5.Encoder, "scores", _orphans_dropped),
    "sums of nothing are seen": replaced(longt5.Encoder, "scores", _all_sums_seen),
    "sums are of another number of positions": change(
        lambda net: setattr(net.encoder, "summed", 4)
    ),
    "sums are not normalised": change(
        lambda net: setattr(net.encoder.blocks[1].attention, "sum_norm", _Identity())
    ),
    "sums have the positions' bias": change(
        lambda net: setattr(net.encoder, "relative_sums", net.encoder.relative)
    ),
    "padding of the source is seen": replaced(
        longt5, "within", lambda lengths, size: within(torch.full_like(lengths, size), size)
    ),
    "a bucket's boundary is off by one": T5["a bucket's boundary is off by one"],
    "the untied output is scaled": T5["the untied output is scaled"],
}

_NEAR = led.FirstAndNearAttention.near


def _nearer(attention: Any, lengths: torch.Tensor, *sizes: Any) -> torch.Tensor:
    """The farthest near positions are not seen."""
    places = torch.arange(3 * attention.block)
    own = places[attention.block : 2 * attention.block]
    is_nearer = (places - own[:, None]).abs() < attention.block
    return _NEAR(attention, lengths, *sizes) & is_nearer


def _first_twice(attention: Any, lengths: torch.Tensor, *sizes: Any) -> torch.Tensor:
    """The first position is a near one, too."""
    found = _NEAR(attention, lengths, *sizes).clone()
    found[:, 0, :, :, attention.block] = True
    return found


LED: dict[str, Fault] = {
    "the farthest near positions are not seen": replaced(
        led.FirstAndNearAttention, "near", _nearer
    ),
    "the first position is seen twice": replaced(led.FirstAndNearAttention, "near", _first_twice),
    "all layers have one window": _each_layer("block", 2),
    "the first position has the others' queries": change(
        lambda net: [
            setattr(block.attention, "first_query", block.attention.query)
            for block in net.encoder.blocks
        ]
    ),
    "the first position's keys and values are swapped": swapped(
        "encoder.blocks.1.attention", "first_key", "first_value"
    ),
    "padding of the source is seen": replaced(
        led, "within", lambda lengths, size: within(torch.full_like(lengths, size), size)
    ),
    "positions have BART's offset": BLENDERBOT["positions have BART's offset"],
    "norms stand in front": BART["norms stand in front"],
    "final_logits_bias is dropped": BART["final_logits_bias is dropped"],
}


def _all_windows(side: str, window: int | None) -> Fault:
    """Gives layers with a window another one."""

    def act(network: Any) -> None:
        for block in getattr(network, side).blocks:
            heads = block.attention.heads
            if heads.window is not None:
                block.attention.heads = replace(heads, window=window)

    return change(act)


T5GEMMA: dict[str, Fault] = {
    "a source's window is one shorter": _all_windows("encoder", 3),
    "no layer of the source has a window": _all_windows("encoder", None),
    "the target's window is one longer": _all_windows("decoder", 4),
    "scores of cross-attention are not capped": change(
        lambda net: setattr(
            net.decoder.blocks[0].cross, "heads", replace(net.decoder.heads, soft_cap=None)
        )
    ),
    "logits are not capped": change(lambda net: setattr(net.decoder, "logits_cap", None)),
    "the source's tokens are not scaled": change(lambda net: setattr(net.encoder, "scale", 1.0)),
    "the norm behind cross-attention is missing": change(
        lambda net: setattr(net.decoder.blocks[1], "cross_out_norm", _Identity())
    ),
    "the norm behind the source's MLP is missing": change(
        lambda net: setattr(net.encoder.blocks[0], "mlp_out_norm", _Identity())
    ),
    "the encoder's final norm is missing": MBART["the encoder's final norm is missing"],
    "padding of the source is seen": MARIAN["padding of the source is seen"],
}


_WEIGH, _PROJECT = t5gemma.MergedAttention.weigh, t5gemma.MergedAttention.project_kv
_IN_WINDOW = t5gemma.NearAttention.near
_POOL = PooledEncoder.forward


def _two_softmaxes(attention: Any, x: Any, past: Any, *rest: Any) -> Any:
    """Target and source have a softmax each."""
    weights, present = _WEIGH(attention, x, past, *rest)
    parts = weights.split([past[0].shape[2], weights.shape[-1] - past[0].shape[2]], dim=-1)
    return torch.cat([part / part.sum(-1, keepdim=True) for part in parts], dim=-1), present


def _turned_keys(attention: Any, source: torch.Tensor) -> Any:
    """The source's keys rotate, too."""
    key, value = _PROJECT(attention, source)
    positions = torch.arange(source.shape[1])[None]
    return attention.heads.rotary.rotate(key, positions), value


T5GEMMA2: dict[str, Fault] = {
    "target and source have a softmax each": replaced(
        t5gemma.MergedAttention, "weigh", _two_softmaxes
    ),
    "the source's keys rotate": replaced(t5gemma.MergedAttention, "project_kv", _turned_keys),
    "the source's keys are not normalised": replaced(
        t5gemma.MergedAttention,
        "project_kv",
        lambda own, source: (own.split(own.key(source)), own.split(own.value(source))),
    ),
    "the longer side of a source's window is in front": replaced(
        t5gemma.NearAttention,
        "near",
        lambda own, size, window: _IN_WINDOW(own, size, window).T,
    ),
    "no layer of the source has a window": _all_windows("encoder", None),
    "the target's window is one longer": _all_windows("decoder", 4),
    "the token behind an image is like others": change(
        lambda net: setattr(net.encoder.tokens, "image_end", -1)
    ),
    "its vector is scaled": change(
        lambda net: net.encoder.tokens.end.mul_(net.encoder.tokens.scale)
    ),
    "the source's queries are not normalised": change(
        lambda net: setattr(net.encoder.blocks[1].attention, "query_norm", _Identity())
    ),
    "logits are not capped": T5GEMMA["logits are not capped"],
    "padding of the source is seen": replaced(
        t5gemma, "within", lambda lengths, size: within(torch.full_like(lengths, size), size)
    ),
    "image tokens of the padding take vectors": replaced(
        image_source, "within", lambda lengths, size: within(torch.full_like(lengths, size), size)
    ),
    "an image's vectors are in the order of columns": replaced(
        PooledEncoder,
        "forward",
        lambda own, pixels: _POOL(own, pixels).unflatten(1, (2, 2)).transpose(1, 2).flatten(1, 2),
    ),
    "an image's vectors are scaled as words are": replaced(
        PooledEncoder, "forward", lambda own, pixels: _POOL(own, pixels) * 32**0.5
    ),
}


_AHEAD = prophetnet.Decoder.embed
_STREAMS = prophetnet.StreamAttention.forward


def _each_stream_attention(edit: Callable[[Any], None]) -> Fault:
    """Edits the self-attention of each block of the decoder."""
    return change(lambda net: [edit(block.attention) for block in net.decoder.blocks])


def _own_keys_cached(attention: Any, x: torch.Tensor, *rest: Any) -> Any:
    """The cache holds the keys and values of the stream that predicts."""
    mixed, _ = _STREAMS(attention, x, *rest)
    return mixed, _STREAMS(attention, x.roll(x.shape[1] // 2, dims=1), *rest)[1]


PROPHETNET: dict[str, Fault] = {
    "the main stream predicts": replaced(
        prophetnet.Decoder, "finish", lambda decoder, x: x[:, : x.shape[1] // 2]
    ),
    "the first stream has the first vector": change(
        lambda net: net.decoder.streams.copy_(net.decoder.streams.roll(1, dims=0))
    ),
    "the stream is not one position ahead": replaced(
        prophetnet.Decoder, "embed", lambda decoder, tokens, positions: torch.cat([
            _AHEAD(decoder, tokens, positions)[:, : tokens.shape[1]],
            _AHEAD(decoder, tokens, positions - 1)[:, tokens.shape[1] :],
        ], dim=1),
    ),
    "keys of the stream that predicts are cached": replaced(
        prophetnet.StreamAttention, "forward", _own_keys_cached
    ),
    "heads and buckets are swapped": replaced(
        prophetnet.StreamAttention, "_relative",
        lambda own, x: own.relative(x).unflatten(-1, (own.heads.count, -1)).transpose(1, 2),
    ),
    "a bucket's boundary is off by one": _each_stream_attention(
        lambda own: own.buckets.copy_(own.buckets[(torch.arange(len(own.buckets)) - 1).clamp(0)])
    ),
    "scores are not scaled": MARIAN["scores are not scaled"],
    "positions are off by one": MARIAN["positions are off by one"],
    "padding of the source is seen": MARIAN["padding of the source is seen"],
}  # fmt: skip


_SPARSE = SparseMLP.forward


def _each_expert(edit: Callable[[Any], None]) -> Fault:
    """Edits all sparse MLPs."""
    return change(lambda net: [edit(part) for part in net.modules() if isinstance(part, SparseMLP)])


SWITCH_TRANSFORMERS: dict[str, Fault] = {
    "experts are in another order": _each_expert(
        lambda mlp: setattr(mlp, "experts", nn.ModuleList(reversed(mlp.experts)))
    ),
    "outputs are not weighted": replaced(
        SparseMLP,
        "forward",
        lambda mlp, x: (
            _SPARSE(mlp, x)
            / (x @ mlp.router.T + mlp.router_bias).softmax(-1).amax(-1, keepdim=True)
        ),
    ),
    "the router's bias is dropped": _each_expert(lambda mlp: mlp.router_bias.zero_()),
    "a sparse block is dense": change(
        lambda net: setattr(net.encoder.blocks[1], "mlp", net.encoder.blocks[1].mlp.experts[0])
    ),
    "sources have a capacity of one": change(
        lambda net: setattr(net.encoder.blocks[1].mlp, "capacity", 1)
    ),
    "a bucket's boundary is off by one": T5["a bucket's boundary is off by one"],
    "the untied output is scaled": T5["the untied output is scaled"],
}
SWITCH_FULL: dict[str, Fault] = {
    "experts take one token more": change(
        lambda net: setattr(net.encoder.blocks[1].mlp, "capacity", 3)
    ),
    "experts take any number of tokens": change(
        lambda net: setattr(net.encoder.blocks[1].mlp, "capacity", None)
    ),
}

DEEP_T5: dict[str, Fault] = {"the bias is the first layer's alone": _first_layer_only}

FAULTS: dict[tuple[str, str], dict[str, Fault]] = {
    ("t5", EXPORTED): T5,
    ("t5", "plain"): DEEP_T5,
    ("bart", EXPORTED): BART,
    ("mbart", EXPORTED): MBART,
    ("pegasus", EXPORTED): PEGASUS,
    ("m2m_100", EXPORTED): M2M_100,
    ("blenderbot", EXPORTED): BLENDERBOT,
    ("blenderbot-small", EXPORTED): BLENDERBOT_SMALL,
    ("plbart", EXPORTED): PLBART,
    ("mvp", EXPORTED): MVP,
    ("umt5", EXPORTED): UMT5,
    ("encoder-decoder", EXPORTED): ENCODER_DECODER,
    ("bigbird_pegasus", EXPORTED): BIGBIRD_PEGASUS,
    ("pegasus_x", EXPORTED): PEGASUS_X,
    ("longt5", EXPORTED): LONGT5,
    ("led", EXPORTED): LED,
    ("t5gemma", EXPORTED): T5GEMMA,
    ("t5gemma2", EXPORTED): T5GEMMA2,
    ("prophetnet", EXPORTED): PROPHETNET,
    ("seamless_m4t", EXPORTED): SEAMLESS_M4T,
    ("fsmt", EXPORTED): FSMT,
    ("switch_transformers", EXPORTED): SWITCH_TRANSFORMERS,
    ("switch_transformers", "full experts"): SWITCH_FULL,
}
"""(architecture, configuration) → faults that its twin must detect."""
