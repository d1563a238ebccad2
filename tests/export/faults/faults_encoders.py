"""Mistakes that a port of a text encoder or a Perceiver can make; see `faults.py`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.attention import attention, disentangled
from export.layers.attention.positions import RelativePositions
from export.layers.images.pixel_arrays import ConvolvedPixels, FourierPositions
from export.layers.latents import LatentArray, LatentLayer
from export.models.encoders import bert, deberta, xlnet
from export.models.encoders.perceiver import TextReader
from export.text_encoders import pooling
from export.text_encoders.pooling import PoolingMode, last
from tests.export.faults.faults import Fault, change, replaced, swap_modules, swapped

_within = attention.within  # the fault replaces the module's


def _everything(lengths: Tensor, size: int) -> Tensor:
    """A mask that hides no padding."""
    return _within(torch.full_like(lengths, size), size)


def _sees_padding(module: Any) -> Fault:
    return replaced(module, "within", _everything)


def _set(owner: Callable[[Any], Any], name: str, value: Any) -> Fault:
    """Another value of an attribute of a part of the network."""
    return change(lambda net: setattr(owner(net), name, value))


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _roll(table: nn.Embedding) -> None:
    table.weight.copy_(table.weight.roll(1, 0))


def _counted_from_zero(token_ids: Tensor, pad_token: int) -> Tensor:
    counted = (token_ids != pad_token).long()
    return counted.cumsum(dim=1) * counted - counted


def _with_padding_counted(token_ids: Tensor, pad_token: int) -> Tensor:
    return torch.arange(token_ids.shape[1]).expand_as(token_ids) + pad_token + 1


BERT: dict[str, Fault] = {
    "segments are ignored": change(
        lambda net: net.encoder.segments.weight.copy_(
            net.encoder.segments.weight[:1].expand_as(net.encoder.segments.weight)
        )
    ),
    "positions are off by one": change(lambda net: _roll(net.encoder.positions)),
    "padding is attended to": _sees_padding(attention),
    "norms are in front": change(
        lambda net: [setattr(block, "is_norm_first", True) for block in net.encoder.blocks]
    ),
    "masked words lack the activation": _set(lambda net: net.masked, "activation", _as_it_is),
    "masked words have another epsilon": _set(lambda net: net.masked.norm, "eps", 0.05),
    "the bias of the vocabulary is dropped": change(lambda net: net.masked.output.bias.zero_()),
    "sentences lack the activation": _set(lambda net: net.classifier, "activation", _as_it_is),
    "sentences are read from the last token": _set(lambda net: net.classifier, "pool", last),
    "is_next and not_next are swapped": change(
        lambda net: net.classifier.output.weight.copy_(net.classifier.output.weight.flip(0))
    ),
}
POOLED: dict[str, Fault] = {
    "padding is pooled": _sees_padding(pooling),
    "vectors are not normalised": _set(lambda net: net.pooling, "layers", nn.Sequential()),
    "the first token is the text": _set(lambda net: net.pooling, "modes", (PoolingMode.CLS,)),
    "the largest values are the text": _set(lambda net: net.pooling, "modes", (PoolingMode.MAX,)),
}
TAGS: dict[str, Fault] = {
    "the tagger lacks its bias": change(lambda net: net.tagger.bias.zero_()),
    "tags are one label off": change(
        lambda net: net.tagger.weight.copy_(net.tagger.weight.roll(1, 0))
    ),
}
MEGATRON: dict[str, Fault] = {
    "norms are behind": change(
        lambda net: [setattr(block, "is_norm_first", False) for block in net.encoder.blocks]
    ),
    "the last norm is left out": _set(lambda net: net.encoder, "final_norm", nn.Identity()),
    "embeddings are normalised": _set(lambda net: net.encoder, "norm", nn.LayerNorm(30)),
}
ROBERTA: dict[str, Fault] = {
    "the offset of positions is forgotten": replaced(bert, "count_positions", _counted_from_zero),
    "padding tokens are counted": replaced(bert, "count_positions", _with_padding_counted),
    "the constant segment is forgotten": change(lambda net: net.encoder.segments.weight.zero_()),
}
ROBERTA_MASKED: dict[str, Fault] = {
    "masked words have the layers' activation": _set(
        lambda net: net.masked, "activation", torch.relu
    ),
}
DISTILBERT_CLASSES: dict[str, Fault] = {
    "classes have BERT's tanh": _set(lambda net: net.classifier, "activation", torch.tanh),
}


def _own_group(encoder: bert.AlbertEncoder, layer: int) -> nn.ModuleList:
    """The weights of the first layer, and others for each further one."""
    group = copy.deepcopy(encoder.blocks[0])
    assert isinstance(group, nn.ModuleList)
    with torch.no_grad():
        for parameter in group.parameters():
            parameter.add_(0.1 * layer)
    return group


def _in_turn(encoder: bert.AlbertEncoder, layer: int) -> nn.ModuleList:
    group = encoder.blocks[layer % len(encoder.blocks)]
    assert isinstance(group, nn.ModuleList)
    return group


ALBERT: dict[str, Fault] = {
    "layers do not share their weights": replaced(bert.AlbertEncoder, "group", _own_group),
    "a shared layer runs once": _set(lambda net: net.encoder, "layers", 1),
    "embeddings are widened without a bias": change(lambda net: net.encoder.project.bias.zero_()),
}
ALBERT_GROUPS: dict[str, Fault] = {
    "groups take turns": replaced(bert.AlbertEncoder, "group", _in_turn),
}
_bucket = RelativePositions.bucket
MPNET: dict[str, Fault] = {
    "distances have the other sign": replaced(
        RelativePositions, "bucket", lambda positions, distance: _bucket(positions, -distance)
    ),
    "distances have one direction": _set(
        lambda net: net.encoder.relative, "is_bidirectional", False
    ),
    "distances are ignored": change(lambda net: net.encoder.relative.bias.weight.zero_()),
    "positions are counted from zero": ROBERTA["the offset of positions is forgotten"],
}


def _relative(
    action: Callable[[disentangled.DisentangledAttention, Tensor, Tensor], Tensor | None],
) -> Fault:
    return replaced(disentangled.DisentangledAttention, "relative_scores", action)


_scores = disentangled.DisentangledAttention.relative_scores


def _transposed(layer: disentangled.DisentangledAttention, query: Tensor, key: Tensor) -> Tensor:
    found = _scores(layer, query, key)
    return found.transpose(-1, -2)


def _scaled_for_contents(net: Any) -> None:
    for block in net.encoder.blocks:
        block.attention.heads = replace(block.attention.heads, scale=None)


def _only(**fields: bool) -> Fault:
    def action(net: Any) -> None:
        for block in net.encoder.blocks:
            block.attention.distances = replace(block.attention.distances, **fields)

    return change(action)


def _linear_buckets(net: Any) -> None:
    table = net.encoder.blocks[0].attention.table
    apart = torch.arange(1 - table.positions, table.positions)
    span = table.distances.span
    table.bucket.copy_((apart + span).clamp(0, 2 * span - 1))


DEBERTA: dict[str, Fault] = {
    "c2p and p2c are swapped": _relative(lambda layer, query, key: _scores(layer, key, query)),
    "scores of distances are transposed": _relative(_transposed),
    "p2c is left out": _only(position_to_content=False),
    "c2p is left out": _only(content_to_position=False),
    "far distances do not share buckets": change(_linear_buckets),
    "distances have the other sign": change(
        lambda net: net.encoder.blocks[0].attention.table.bucket.copy_(
            net.encoder.blocks[0].attention.table.bucket.flip(0)
        )
    ),
    "scores are scaled as if contents were all": change(_scaled_for_contents),
    "distances are not normalised": replaced(
        disentangled.DistanceTable, "vectors", lambda table: table.table.weight
    ),
}
DEBERTA_V2: dict[str, Fault] = {
    "padding is a neighbour of the last token": replaced(
        deberta, "within", lambda lengths, size: _everything(lengths, size)
    ),
    "the convolution is left out": replaced(
        deberta.ConvolutionLayer, "forward", lambda layer, embedded, x, lengths: layer.norm(x)
    ),
}
_xlnet_scores = xlnet.RelativeAttention.relative_scores
XLNET: dict[str, Fault] = {
    "segments are ignored": replaced(
        xlnet.RelativeAttention,
        "relative_scores",
        lambda layer, query, distances, differ: _xlnet_scores(
            layer, query, distances, torch.zeros_like(differ)
        ),
    ),
    "distances have the other sign": replaced(
        xlnet.RelativeAttention,
        "relative_scores",
        lambda layer, query, distances, differ: _xlnet_scores(
            layer, query, distances.flip(0), differ
        ),
    ),
    "distances are not clamped": _set(lambda net: net.encoder, "clamp", 0),
    "queries of contents lack their bias": change(
        lambda net: net.encoder.blocks[0].attention.content_bias.zero_()
    ),
    "biases of contents and distances are swapped": change(
        lambda net: net.encoder.blocks[0].attention.content_bias.copy_(
            net.encoder.blocks[0].attention.position_bias
        )
    ),
    "padding is attended to": _sees_padding(attention),
}
XLNET_CLASSES: dict[str, Fault] = {
    "classes are read from the first token": _set(
        lambda net: net.classifier, "pool", pooling.first
    ),
}


def _heads(**fields: Any) -> Fault:
    """Other fields of the heads of layers with a window."""

    def action(net: Any) -> None:
        for block in net.encoder.blocks:
            if block.attention.heads.window is not None:
                block.attention.heads = replace(block.attention.heads, **fields)

    return change(action)


def _one_rotation(net: Any) -> None:
    kinds = {block.attention.heads.window: block.attention.heads for block in net.encoder.blocks}
    for block in net.encoder.blocks:
        block.attention.heads = replace(block.attention.heads, rotary=kinds[None].rotary)


def _gates_exchanged(net: Any) -> None:
    for block in net.encoder.blocks:
        swap_modules(block.mlp, "gate", "up")


ELECTRA: dict[str, Fault] = {
    "embeddings are projected without a bias": change(lambda net: net.encoder.project.bias.zero_()),
    "the constant segment is forgotten": change(lambda net: net.encoder.segments.weight.zero_()),
}
ELECTRA_MASKED: dict[str, Fault] = {
    "masked words have the layers' activation": _set(
        lambda net: net.masked, "activation", torch.relu
    ),
}
ELECTRA_CLASSES: dict[str, Fault] = {
    "classes have BERT's tanh": _set(lambda net: net.classifier, "activation", torch.tanh),
}
MODERNBERT: dict[str, Fault] = {
    "windows are one position wider": _heads(window=4),
    "windows are one position narrower": _heads(window=2),
    "every layer sees everything": _heads(window=None),
    "all layers rotate by one base": change(_one_rotation),
    "positions are ignored": _heads(rotary=None),
    "gates are exchanged": change(_gates_exchanged),
    "the first layer has a norm before attention": change(
        lambda net: setattr(net.encoder.blocks[0], "attention_norm", nn.LayerNorm(30))
    ),
    "the last norm is left out": _set(lambda net: net.encoder, "final_norm", nn.Identity()),
    "padding is attended to": _sees_padding(attention),
}
MODERNBERT_MASKED: dict[str, Fault] = {
    "masked words lack the norm": _set(lambda net: net.masked, "norm", nn.Identity()),
    "masked words have the layers' activation": _set(
        lambda net: net.masked, "activation", torch.relu
    ),
}
MODERNBERT_RELEVANCE: dict[str, Fault] = {
    "relevance is read from the first token": _set(
        lambda net: net.classifier, "pool", pooling.first
    ),
}


def _with_residual(
    layer: LatentLayer, x: Tensor, source: Any = None, lengths: Any = None
) -> Tensor:
    query = layer.attention_norm(x)
    read = query if source is None else layer.source_norm(source)
    x = x + layer.attention(query, read, lengths)
    return x + layer.mlp(layer.mlp_norm(x))


def _without_residual(layer: LatentLayer) -> None:
    layer.has_residual = False


def _without_norm(layer: Any) -> None:
    layer.source_norm = nn.Identity()


def _apply_once(array: LatentArray) -> None:
    array.repeats = 1


def _by_number(reader: TextReader, hidden: Tensor, positions: Tensor) -> Tensor:
    """Queries of the masks' numbers instead of their positions."""
    numbers = torch.arange(positions.shape[1]).expand_as(positions)
    return reader.decoder(functional.embedding(numbers, reader.queries), hidden)


_places = FourierPositions.forward


def _columns_first(places: FourierPositions, rows: int, columns: int) -> Tensor:
    """The place of a column in front of that of its row."""
    found = _places(places, columns, rows)
    return found.unflatten(0, (columns, rows)).transpose(0, 1).flatten(0, 1)


def _cosines_first(places: FourierPositions, rows: int, columns: int) -> Tensor:
    place, sine, cosine = _places(places, rows, columns).split([2, 128, 128], dim=-1)
    return torch.cat([place, cosine, sine], dim=-1)


def _padded_maximum(pixels: ConvolvedPixels, image: Tensor) -> Tensor:
    x = functional.relu(pixels.convolution(image))
    return functional.max_pool2d(x, kernel_size=3, stride=2, padding=1)


TEXT: dict[str, Fault] = {
    "padding is read": replaced(attention, "within", _everything),
    "the decoder adds its queries": replaced(LatentLayer, "forward", _with_residual),
    "latents are not added to what they read": change(
        lambda net: _without_residual(net.encoder.array.read)
    ),
    "inputs are not normalised": change(lambda net: _without_norm(net.encoder.array.read)),
    "layers are applied once": change(lambda net: _apply_once(net.encoder.array)),
    "queries are those of the first positions": replaced(TextReader, "vectors_at", _by_number),
    "input positions are the output queries": change(
        lambda net: net.encoder.queries.copy_(net.encoder.positions.weight)
    ),
    "query and key are swapped": swapped("encoder.array.process.0.attention", "query", "key"),
    "scores of the vocabulary are not biased": change(lambda net: net.masked.output.bias.zero_()),
}
CLASSES: dict[str, Fault] = {
    "the inputs' residual is added": replaced(LatentLayer, "forward", _with_residual),
    "the output query is not added": change(
        lambda net: _without_residual(net.classifier.pool.layer)
    ),
}
FOURIER: dict[str, Fault] = {
    "columns come first": replaced(FourierPositions, "forward", _columns_first),
    "cosines come first": replaced(FourierPositions, "forward", _cosines_first),
}
CONVOLVED: dict[str, Fault] = {
    "the maximum is padded": replaced(ConvolvedPixels, "features", _padded_maximum),
    "variances are ignored": change(
        lambda net: net.network.pixels.convolution.norm.running_var.fill_(1.0)
    ),
}
LEARNED: dict[str, Fault] = {
    "positions are not projected": change(
        lambda net: setattr(net.network.pixels, "projection", nn.Identity())
    ),
    "positions are in reverse order": change(
        lambda net: net.network.pixels.table.copy_(net.network.pixels.table.flip(0))
    ),
}


def _set_attention(**values: object) -> Fault:
    """Other attributes of the attention of each of a decoder's blocks."""

    def plant(net: Any) -> None:
        for block in net.encoder.network.decoder.blocks:
            for name, value in values.items():
                setattr(block.attention, name, value)

    return change(plant)


FAULTS: dict[tuple[str, str], dict[str, Fault]] = {
    ("bert", "odd"): BERT,
    ("bert", "plain"): POOLED,
    ("bert", "tags"): TAGS,
    ("megatron-bert", "odd"): MEGATRON,
    ("roberta", "odd"): ROBERTA,
    ("roberta", "masked"): ROBERTA_MASKED,
    ("distilbert", "classes"): DISTILBERT_CLASSES,
    ("albert", "odd"): ALBERT,
    ("albert", "groups"): ALBERT_GROUPS,
    ("mpnet", "odd"): MPNET,
    ("electra", "odd"): ELECTRA,
    ("electra", "masked"): ELECTRA_MASKED,
    ("electra", "classes"): ELECTRA_CLASSES,
    ("modernbert", "odd"): MODERNBERT,
    ("modernbert", "masked"): MODERNBERT_MASKED,
    ("modernbert", "relevance"): MODERNBERT_RELEVANCE,
    ("deberta-v2", "odd"): DEBERTA,
    ("deberta-v2", "v2"): DEBERTA_V2,
    ("xlnet", "odd"): XLNET,
    ("xlnet", "classes"): XLNET_CLASSES,
    ("perceiver", "odd"): TEXT,
    ("perceiver", "as-wide-as-queries"): CLASSES,
    ("perceiver", "fourier"): FOURIER,
    ("perceiver", "convolved"): CONVOLVED,
    ("perceiver", "learned"): LEARNED,
    ("gpt2", "answers"): {"tokens see later ones": _set_attention(is_causal=False)},
    ("qwen3", "answers"): {
        "heads are not normalised": _set_attention(query_norm=None, key_norm=None)
    },
    ("bart", "answers"): {
        "the decoder starts from another token": _set(lambda net: net.encoder, "start", 3),
        "the decoder starts from the source's last": _set(lambda net: net.encoder, "start", "last"),
        "padding of the source is seen": _sees_padding(attention),
    },
    ("mbart", "answers"): {
        "the decoder starts from a token of its own": _set(lambda net: net.encoder, "start", 2)
    },
    ("t5", "answers"): {
        "the decoder starts from padding": _set(lambda net: net.encoder, "start", 0)
    },
}
"""(architecture, configuration of its twin) → title → fault."""
