"""Mistakes that a port of an image-and-text model can make, one at a time; see `faults.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isqrt
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.decoder_graphs import image_tokens
from export.decoder_graphs.interleaved import ImageCounter
from export.layers.attention import attention, cached_attention, windows
from export.layers.attention.attention import CrossAttention, SelfAttention, attend, within
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.fused import MASKED_SCORE
from export.layers.attention.gated_cross import GatedCrossBlock, ImageAttention, ImageMask
from export.layers.attention.heads import KeyValue
from export.layers.blocks import EncoderBlock
from export.models.captioners import blip_retrieval
from export.models.detectors import grounding_dino, grounding_dino_layers
from export.models.dual_encoders import clip, siglip, xclip
from export.models.encoder_decoders.bert_decoder import BertDecoder
from export.models.vision import vit
from export.models.vision_language import (
    idefics3,
    internvl,
    lxmert,
    mllama,
    perceiver_resampler,
    qwen2_vl,
    qwen3_vl,
    vilt,
)
from export.models.vision_language.perceiver_resampler import LatentAttention
from export.models.vision_language.qwen2_vl import SquareEmbedding
from tests.export.faults.faults import Fault, change, replaced, swap_modules, swapped
from tests.export.twin import EXPORTED


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

_INTERPOLATE, _POOL = siglip.NaFlexTower._interpolate, siglip.AttentionPooling.forward
_BLOCK = EncoderBlock.forward


def _nearest_places(own: siglip.NaFlexTower, places: Tensor) -> Tensor:
    side = isqrt(own.config.positions)
    steps = side / places.amax(dim=1, keepdim=True)
    row, column = ((places - 0.5) * steps).long().clamp(max=side - 1).unbind(dim=-1)
    return own.positions[row * side + column]


def _aliased(own: siglip.NaFlexTower, places: Tensor) -> Tensor:
    side = isqrt(own.config.positions)
    table = own.positions.unflatten(0, (side, side)).permute(2, 0, 1)[None]
    resized = []
    for each in places.long():
        rows, columns = each.amax(dim=0).tolist()
        at_grid = functional.interpolate(table, (rows, columns), mode="bilinear")[0]
        resized.append(at_grid[:, each[:, 0] - 1, each[:, 1] - 1].T)
    return torch.stack(resized)


SIGLIP2: dict[str, Fault] = {
    "positions are the nearest ones": replaced(siglip.NaFlexTower, "_interpolate", _nearest_places),
    "positions are interpolated with aliasing": replaced(
        siglip.NaFlexTower, "_interpolate", _aliased
    ),
    "rows and columns are exchanged": replaced(
        siglip.NaFlexTower, "_interpolate", lambda own, places: _INTERPOLATE(own, places.flip(-1))
    ),
    "padding is pooled": replaced(
        siglip.AttentionPooling, "forward", lambda own, patches, lengths: _POOL(own, patches)
    ),
    "padding is attended to": lambda net: patch.object(
        EncoderBlock, "forward", lambda own, x, lengths=None: _BLOCK(own, x)
    ),
    "pixels of a patch are in columns": change(
        lambda net: net.image.patches.weight.copy_(
            net.image.patches.weight.unflatten(1, (3, 3, 3)).transpose(1, 2).flatten(1)
        )
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


_OF, _COUNT = ImageMask.of, ImageCounter.count
_PROJECT_IMAGES = ImageAttention.project_kv


def _ungated(own: GatedCrossBlock, x: Tensor, images: Any, mask: ImageMask) -> Tensor:
    x = x + own.attention_gate * own.attention.read(own.attention_norm(x), images, mask)
    return x + own.mlp_gate * own.mlp(own.mlp_norm(x))


def _all_before(images: Tensor, positions: int, room: int) -> ImageMask:
    owner = torch.arange(room) // positions + 1
    chosen = images.reshape(images.shape[0], -1)[:, None, :, None]
    bias = torch.where(owner <= chosen, 0.0, MASKED_SCORE)
    return replace(_OF(images, positions, room), bias=bias)


def _open(images: Tensor, positions: int, room: int) -> ImageMask:
    mask = _OF(images, positions, room)
    return replace(mask, gate=torch.ones_like(mask.gate))


def _mask(of: Any) -> Fault:
    return replaced(ImageMask, "of", of)


def _endless(own: ImageCounter, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    return _COUNT(replace(own, end_token=None), *inputs)


def _latents_alone(own: LatentAttention, context: Tensor, latents: Tensor) -> Tensor:
    return _LATENTS(own, context[:, :0], latents)


_LATENTS = LatentAttention.forward

FLAMINGO: dict[str, Fault] = {
    "gates are not squashed": replaced(GatedCrossBlock, "forward", _ungated),
    "all images before a token are read": _mask(_all_before),
    "the next image is read": _mask(lambda images, *sizes: _OF(images + (images > 0), *sizes)),
    "tokens before the first image read it": _mask(
        lambda images, *sizes: _OF(images.clamp(min=1), *sizes)
    ),
    "tokens without an image read all": _mask(_open),
    "an end token is passed over": replaced(ImageCounter, "count", _endless),
    "gates of both sub-layers are swapped": swapped(
        "decoder.gated_blocks.0", "attention_gate", "mlp_gate"
    ),
    "norms of both sub-layers are swapped": swapped(
        "decoder.gated_blocks.1", "attention_norm", "mlp_norm"
    ),
    "queries of images are not normalised": change(
        lambda net: setattr(net.decoder.gated_blocks[0].attention, "query_norm", nn.Identity())
    ),
    "keys and values of images are swapped": replaced(
        ImageAttention, "project_kv", lambda own, source: _PROJECT_IMAGES(own, source)[::-1]
    ),
    "added tokens are the last of the vocabulary": change(
        lambda net: net.decoder.added_tokens.weight.copy_(net.decoder.tokens.weight[-4:])
    ),
    "latents do not read the image": replaced(LatentAttention, "forward", _latents_alone),
    "norms of image and latents are swapped": change(
        lambda net: swap_modules(
            net.encoder.resampler.blocks[0].attention, "context_norm", "latents_norm"
        )
    ),
    "the resampler's last norm is missing": change(
        lambda net: setattr(net.encoder.resampler, "norm", nn.Identity())
    ),
}


_PLACES, _ANGLES = image_tokens.image_places, qwen2_vl.axial_angles


def _placed(edit: Callable[[Tensor], Tensor]) -> Fault:
    """Places of an image's vectors, edited."""
    return lambda net: patch.object(
        image_tokens, "image_places", lambda *size: edit(_PLACES(*size))
    )


def _turned(rows: int, columns: int, *rest: Any) -> tuple[Tensor, Tensor]:
    """Angles whose halves are exchanged."""
    cosine, sine = _ANGLES(rows, columns, *rest)
    half = cosine.shape[-1] // 2
    return cosine.roll(half, dims=-1), sine.roll(half, dims=-1)


def _reversed_sections(net: Any) -> None:
    for block in net.decoder.blocks:
        heads = block.attention.heads
        sections = heads.rotary.sections[::-1]
        block.attention.heads = replace(heads, rotary=replace(heads.rotary, sections=sections))


def _in_turn(net: Any) -> None:
    for block in net.decoder.blocks:
        heads = block.attention.heads
        block.attention.heads = replace(heads, rotary=replace(heads.rotary, alternates=False))


def _last_alone(places: Tensor) -> Tensor:
    return places * torch.tensor([1, 1, 1, 0])


AXES: dict[str, Fault] = {
    "what follows an image continues its tokens": _placed(_last_alone),
    "height and width are swapped": _placed(lambda places: places[:, [0, 2, 1, 3]]),
    "an image is a row of words": _placed(torch.zeros_like),
    "sections are read backwards": change(_reversed_sections),
    "only the first frame is read": lambda net: patch.object(
        SquareEmbedding, "_sum_frames", lambda own: own.weight[:, :, 0].flatten(1)
    ),
    "rows and columns of patches are swapped": lambda net: patch.object(
        qwen2_vl, "axial_angles", _turned
    ),
}


def _levels_swapped(encoder: qwen3_vl.LevelEncoder, pixels: Tensor) -> Tensor:
    width = encoder.second.out_features
    return _LEVELS(encoder, pixels).unflatten(-1, (-1, width))[..., [0, 2, 1], :].flatten(-2)


_LEVELS, _BETWEEN = qwen3_vl.LevelEncoder.forward, qwen3_vl.between
LEVELS: dict[str, Fault] = {
    "levels are swapped": lambda net: patch.object(
        qwen3_vl.LevelEncoder, "forward", _levels_swapped
    ),
    "a level is that of an earlier block": change(
        lambda net: setattr(net.encoder, "config", replace(net.encoder.config, levels=(0, 1)))
    ),
    "positions are not interpolated": lambda net: patch.object(
        qwen3_vl, "between", lambda count, side: _BETWEEN(count, side).round()
    ),
    "sections do not alternate": change(_in_turn),
    "patches have no bias": change(lambda net: setattr(net.encoder.patches, "bias", None)),
}


def _columns_first(encoder: internvl.ImageEncoder, pixels: Tensor) -> Tensor:
    s, rows = encoder.scale, encoder.side // encoder.scale
    x = encoder.vit(pixels)[:, 1:].unflatten(1, (rows, s, rows, s)).permute(0, 1, 3, 4, 2, 5)
    squares = encoder.norm(x.flatten(3).flatten(1, 2))
    return encoder.second(encoder.activation(encoder.first(squares)))


def _normalised_apart(own: Any, query: Tensor, *rest: Any) -> Tensor:
    heads = query.unflatten(-1, (-1, own.heads.width))
    apart = heads / heads.pow(2).mean(-1, keepdim=True).sqrt()
    return SelfAttention.mix(own, apart.flatten(2), *rest)


TILES: dict[str, Fault] = {
    "a square's patches are read by columns": lambda net: patch.object(
        internvl.ImageEncoder, "forward", _columns_first
    ),
    "the last norm is left out": change(
        lambda net: setattr(net.encoder.vit, "norm", nn.Identity())
    ),
    "the class token has no position": change(
        lambda net: net.encoder.vit.positions.table.data[:, 0].zero_()
    ),
    "the first activation is exact": change(
        lambda net: setattr(net.encoder, "activation", nn.GELU())
    ),
}


_TILE_MASK, _RUNS, _ADMIT = (
    mllama.TileCounter.mask,
    mllama.TileCounter.runs,
    mllama.AdmitTiles.forward,
)


def _tile_mask(edit: Callable[[mllama.TileMask], mllama.TileMask]) -> Fault:
    def edited(own: mllama.TileCounter, *inputs: Any) -> tuple[ImageMask, Tensor]:
        mask, after = _TILE_MASK(own, *inputs)
        return edit(mask), after

    return replaced(mllama.TileCounter, "mask", edited)


def _last_of_run(own: mllama.TileCounter, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _, number, after = _RUNS(own, *inputs)
    return number, number, after


def _all_real(own: mllama.AdmitTiles, pixels: Tensor) -> tuple[Tensor, ...]:
    tiles, *keys = _ADMIT(own, pixels)
    return torch.ones_like(tiles), *keys


CANVASES: dict[str, Fault] = {
    "padding sees padding": replaced(
        mllama.TileTower, "_bias", lambda own, tiles: torch.zeros(1, 1, 1, 1)
    ),
    "tiles that are padding are read": replaced(mllama.AdmitTiles, "forward", _all_real),
    "tokens before all images attend to nothing": _tile_mask(
        lambda mask: replace(mask, gate=mask.mlp_gate)
    ),
    "tokens before all images pass the MLP": _tile_mask(
        lambda mask: replace(mask, mlp_gate=mask.gate)
    ),
    "texts without images pass the gated layers": _tile_mask(
        lambda mask: replace(mask, gate=mask.gate * 0 + 1)
    ),
    "of images side by side the last is read": replaced(mllama.TileCounter, "runs", _last_of_run),
    "rows and columns of tiles are swapped": change(
        lambda net: net.encoder.vit.numbers.copy_(
            net.encoder.vit.numbers.unflatten(0, (4, 4)).T.flatten()
        )
    ),
    "layers' outputs are read one behind the other": change(
        lambda net: net.encoder.projection.weight[:, 36:].copy_(
            net.encoder.projection.weight[:, 36:].unflatten(1, (36, 2)).mT.flatten(1)
        )
    ),
    "gates of positions are those of tiles alone": replaced(
        mllama.TilePositions, "forward", lambda own, grid: own.table[grid].reshape(own.shape)
    ),
    "gates of the last blocks are left out": change(
        lambda net: setattr(net.encoder.vit.global_blocks[0], "attention_out_norm", nn.Identity())
    ),
    "keys of tiles are not normalised": change(
        lambda net: setattr(net.decoder.gated_blocks[0].attention, "key_norm", nn.Identity())
    ),
    "gates of both sub-layers are swapped": FLAMINGO["gates of both sub-layers are swapped"],
}


LATENTS: dict[str, Fault] = {
    "heads share keys in turn": lambda net: patch.object(
        perceiver_resampler,
        "repeat_groups",
        lambda x, heads: x.repeat(1, heads.count // heads.groups, 1, 1),
    ),
    "rows are counted from below": lambda net: patch.object(
        idefics3, "trained_rows", lambda count, bounds: torch.arange(count).flip(0)
    ),
    "the tower's last norm is left out": change(
        lambda net: setattr(net.encoder.vit, "norm", nn.Identity())
    ),
}


_PHRASES, _PROPOSE = grounding_dino_layers.Phrases.of, grounding_dino.GroundingDino.propose
_SINES, _CENTRES, _SEAMS = grounding_dino.sinusoids, grounding_dino_layers.centres, windows.seams


def _one_phrase(token_ids: Tensor, lengths: Tensor) -> grounding_dino_layers.Phrases:
    phrases = _PHRASES(token_ids, lengths)
    return phrases._replace(bias=torch.zeros_like(phrases.bias))


def _counted_through(token_ids: Tensor, lengths: Tensor) -> grounding_dino_layers.Phrases:
    phrases = _PHRASES(token_ids, lengths)
    places = torch.arange(token_ids.shape[1])
    return phrases._replace(positions=places.expand_as(phrases.positions))


def _worst_first(own: Any, read: Any, scene: Any, chosen: Tensor | None) -> tuple[Tensor, ...]:
    found, places, best = _PROPOSE(own, read, scene, chosen)
    return found.flip(1), places, best


def _from_the_edge(grid: windows.Grid) -> Tensor:
    rows, columns = grid
    return _CENTRES(grid) - torch.tensor([0.5 / columns, 0.5 / rows])


GROUNDING: dict[str, Fault] = {
    "tokens of all phrases see each other": lambda net: patch.object(
        grounding_dino_layers.Phrases, "of", _one_phrase
    ),
    "positions of tokens do not begin anew": lambda net: patch.object(
        grounding_dino_layers.Phrases, "of", _counted_through
    ),
    "the best place is the last query": lambda net: patch.object(
        grounding_dino.GroundingDino, "propose", _worst_first
    ),
    "a place is its upper left corner": lambda net: patch.object(
        grounding_dino_layers, "centres", _from_the_edge
    ),
    "positions are no parts of a turn": lambda net: patch.object(
        grounding_dino, "sinusoids", lambda places, width, base: _SINES(places / 6.283, width, base)
    ),
    "positions of places are no parts of a turn": lambda net: patch.object(
        grounding_dino_layers,
        "sinusoids",
        lambda places, width, base: _SINES(places / 6.283, width, base),
    ),
    "boxes are not refined": lambda net: patch.object(
        grounding_dino, "logit", lambda parts: torch.zeros_like(parts)
    ),
    "windows are shifted without their seams": lambda net: patch.object(
        windows, "seams", lambda *grid: torch.zeros_like(_SEAMS(*grid))
    ),
    "the last layer's box is of vectors without a norm": lambda net: patch.object(
        grounding_dino.GroundingDino, "decode", _without_norm
    ),
    "the image's part in the text is dropped": change(
        lambda net: net.encoder[0].text_scale.zero_()
    ),
}

_DECODE = grounding_dino.GroundingDino.decode


def _without_norm(own: Any, found: Tensor, read: Any, grids: Any) -> tuple[Tensor, Tensor]:
    _, scores = _DECODE(own, found, read, grids)
    kept, own.norm = own.norm, nn.Identity()
    try:
        return _DECODE(own, found, read, grids)[0], scores
    finally:
        own.norm = kept


def _to_edges(grid: Tensor, **options: Any) -> Tensor:
    return functional.interpolate(grid, **options | {"align_corners": False})


VILT: dict[str, Fault] = {
    "positions reach to the edges of patches": replaced(
        vilt, "functional", SimpleNamespace(interpolate=_to_edges)
    ),
    "words and patches have each other's vector": change(
        lambda net: net.kinds.weight.copy_(net.kinds.weight[[1, 0, 2]])
    ),
    "the class token has no position": change(lambda net: net.positions.weight[0].zero_()),
    "the class token represents the pair": replaced(
        vilt.Vilt, "forward", lambda own, pixels, ids, lengths: _image_first(own, pixels, ids)
    ),
    "the last norm is missing": change(lambda net: setattr(net, "norm", nn.Identity())),
    "norms are behind": change(
        lambda net: [setattr(block, "is_norm_first", False) for block in net.blocks]
    ),
}


LXMERT: dict[str, Fault] = {
    "the last layer does not read regions": replaced(
        lxmert.CrossLayer, "first", lambda own, text, regions, lengths: text[:, :1]
    ),
    "regions read padding": replaced(
        lxmert.CrossLayer,
        "forward",
        lambda own, text, regions, lengths: (
            own.text(own.read(text, regions), lengths),
            own.regions(own.read(regions, text)),
        ),
    ),
    "boxes are not read": change(lambda net: net.box_projection.weight.zero_()),
    "features and boxes have each other's norm": swapped("", "feature_norm", "box_norm"),
    "sides have each other's block": swapped("layers.0", "text", "regions"),
    "the head's norm is missing": change(lambda net: net.head.__setitem__(2, nn.Identity())),
}


VISUAL_BERT: dict[str, Fault] = {
    "the last token answers": replaced(
        lxmert.VisualBert,
        "forward",
        lambda own, pixels, ids, lengths: _answer_at(own, pixels, ids, lengths, lengths - 1),
    ),
    "the first token answers": replaced(
        lxmert.VisualBert,
        "forward",
        lambda own, pixels, ids, lengths: _answer_at(own, pixels, ids, lengths, lengths * 0),
    ),
    "regions have the type of words": change(
        lambda net: net.region_types.weight.copy_(net.region_types.weight.roll(1, 0))
    ),
    "regions have the position of words": change(
        lambda net: net.region_positions.weight.copy_(net.text.positions.weight)
    ),
}


def _answer_at(own: Any, pixels: Tensor, ids: Tensor, lengths: Tensor, place: Tensor) -> Tensor:
    regions = own.embed_regions(pixels)
    x = torch.cat([regions, own.text.embed(ids, None)], dim=1)
    for block in own.blocks:
        x = block(x, lengths + regions.shape[1])
    return own.head(x[torch.arange(len(x)), place.long() + regions.shape[1]])


def _image_first(own: Any, pixels: Tensor, token_ids: Tensor) -> Tensor:
    image = own.embed_image(pixels) + own.kinds.weight[1]
    text = own.text.embed(token_ids, None) + own.kinds.weight[0]
    x = torch.cat([image, text], dim=1)
    for block in own.blocks:
        x = block(x)
    return own.head(own.pooler(own.norm(x)[:, 0]).tanh())


def _without_image(own: Any, token_ids: Tensor, lengths: Tensor, patches: Tensor) -> Tensor:
    return own(token_ids, lengths)


RETRIEVAL: dict[str, Fault] = {
    "texts are read without their image": replaced(
        blip_retrieval.TextEncoder, "read", _without_image
    ),
    "the classes are swapped": change(lambda net: net.head.bias.copy_(net.head.bias.flip(0))),
    "norms of attention and cross-attention are swapped": swapped(
        "text.blocks.0", "attention_norm", "cross_norm"
    ),
    "a vector of the image is of a patch": replaced(
        vit.ViT, "first", lambda own, pixels: own(pixels)[:, 1:2]
    ),
    "a vector of the text is of its last token": replaced(
        blip_retrieval.TextEncoder, "first", lambda own, ids, lengths: own(ids, lengths)[:, -1:]
    ),
    "padding of the text is seen": replaced(
        attention, "within", lambda lengths, size: within(torch.full_like(lengths, size), size)
    ),
}


_CHANGE, _MIX = xclip.Labels.forward, xclip.VideoTower.mix


VIDEO: dict[str, Fault] = {
    "frames exchange no messages": replaced(xclip.FrameBlock, "forward", EncoderBlock.forward),
    "messages are not added up": change(
        lambda net: net.image.blocks[1].message_attention.out.weight.zero_()
    ),
    "frames are in another order": replaced(
        xclip.VideoTower, "mix", lambda own, frames: _MIX(own, frames.flip(1))
    ),
    "frames have no positions": change(lambda net: net.image.frame_positions.zero_()),
    "texts are scaled before they change": replaced(
        xclip.Labels,
        "forward",
        lambda own, patches, texts: _CHANGE(own, patches, functional.normalize(texts, dim=-1)),
    ),
    "the end token of the file is read": change(lambda net: setattr(net.text, "end_token", 45)),
}

FAULTS: dict[tuple[str, str], dict[str, Fault]] = {
    ("xclip", EXPORTED): VIDEO,
    ("vilt", "odd"): VILT,
    ("lxmert", "odd"): LXMERT,
    ("visual_bert", "odd"): VISUAL_BERT,
    ("blip", "odd"): BLIP,
    ("blip", "retrieval"): RETRIEVAL,
    ("git", "odd"): GIT,
    ("siglip", "odd"): SIGLIP,
    ("siglip2", "odd"): SIGLIP2,
    ("vision-encoder-decoder", "bert"): BERT_DECODER,
    ("vision-encoder-decoder", "donut"): DONUT,
    ("vision-encoder-decoder", "roberta"): ROBERTA_DECODER,
    ("vision-encoder-decoder", "trocr"): TROCR,
    ("vision-encoder-decoder", "trocr-sinusoidal"): TROCR_SINES,
    ("idefics", "odd"): FLAMINGO,
    ("idefics2", EXPORTED): LATENTS,
    ("qwen2_vl", "odd"): AXES,
    ("qwen2_5_vl", "odd"): {
        "what fills a window up is seen": lambda net: patch.object(qwen2_vl, "MASKED_SCORE", 0.0),
    },
    ("qwen2_5_vl", "plain"): {
        "patches attend beyond their windows": change(
            lambda net: setattr(
                net.encoder, "config", replace(net.encoder.config, whole=frozenset({0, 1}))
            )
        ),
    },
    ("qwen3_vl", EXPORTED): LEVELS,
    ("internvl", EXPORTED): TILES,
    ("mllama", EXPORTED): CANVASES,
    ("internvl", "the largest tower, tied"): {
        "heads are normalised apart": lambda net: patch.object(
            internvl.WideNormAttention, "mix", _normalised_apart
        ),
    },
    ("grounding-dino", EXPORTED): GROUNDING,
}
"""(architecture, configuration of its twin) → title → fault."""
