"""ProphetNet: BART whose decoder predicts with a second stream, one position ahead of the first.

Paper: Qi et al. 2020, "ProphetNet: Predicting Future N-gram for Sequence-to-Sequence Pre-training",
§2.2 and §2.3 (arXiv 2001.04063).
Checkpoints: `microsoft/prophetnet-large-uncased*` (`model_type: prophetnet`).

Legend: R decoder rows, T new positions, P positions of the cache, H heads, K width of a head,
D width, N buckets of distances.

The main stream reads the target's tokens. The stream that predicts has no tokens: a vector of its
own and the next position, and it attends to the main stream and to itself. Streams of tokens
further ahead serve training alone, so neither they nor their keys are computed. Each query has a
bias of its own for each bucket of distances.
Differences from `transformers`: inference only; as in `bart.py`. Its class computes several tokens
of one call with the distances' biases of other heads and positions; `generate` gives it one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import no_section
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Rename, projections
from export.layers.attention.attention import causal
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads, KeyValue, Rows
from export.models.encoder_decoders import bart
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

FORM = bart.Form(first_row=1, has_output_bias=False, pad_token_id=0)
_NAMES = {"d_model": "hidden_size"} | {
    f"{side}_{name}": f"num_{side}_{name}"
    for side in ("encoder", "decoder")
    for name in ("layers", "attention_heads")
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """BART's configuration, and the distances of the decoder's attention."""

    stacks: bart.Config
    streams: int = key("ngram", 2)
    """Those that predict; the first one is computed."""
    buckets: int = key("num_buckets", 32)
    farthest: int = key("relative_max_distance", 128)
    """Distances from here on share the last bucket."""

    @property
    def limits(self) -> Limits:
        """The position table bounds both sides; the stream that predicts is one ahead."""
        most = self.stacks.positions
        return Limits(max_input_tokens=most, max_total_tokens=most - 1)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused.

    Raises:
        CheckpointError: no distance is left for the shared buckets, where `transformers` divides by
            zero, or the position table has no row for a target.
    """
    reader = ConfigReader(values, names=_NAMES)
    reader.refuse_heads("ForConditionalGeneration")
    # With another padding token the streams of `transformers` are not at the positions of its keys.
    reader.refuse_unless(
        is_encoder_decoder=True, add_cross_attention=True, scale_embedding=False, pad_token_id=0
    )
    own = bart.read_sizes(reader, FORM)
    config = reader.read(Config, stacks=replace(own, positions=own.positions - FORM.first_row))
    if own.positions < 3:
        raise CheckpointError(
            f"config.json: max_position_embeddings = {own.positions} must be at least 3"
        )
    if config.buckets < 2 or config.farthest <= config.buckets // 2:
        raise CheckpointError(
            f"config.json: num_buckets = {config.buckets} must be at least 2, and "
            f"relative_max_distance = {config.farthest} more than half of it"
        )
    return config


# --------------------------------------------------------------------------------------- network


class StreamAttention(CachedAttention):
    """Causal self-attention of two streams, of which the cache holds the first one's keys."""

    buckets: Tensor

    def __init__(self, heads: Heads, config: Config) -> None:
        super().__init__(heads)
        self.relative = nn.Linear(heads.model_width, config.buckets * heads.count)
        # The table of a distance's bucket, as in `positions.py`.
        self.register_buffer("buckets", bucket_table(config), persistent=False)

    def forward(
        self, x: Tensor, past: KeyValue, rows: Rows, bias: Tensor | None = None
    ) -> tuple[Tensor, KeyValue]:
        """(R, 2·T, D), the main stream first → the same shape; the cache as in `CachedAttention`.

        There is no other bias of the scores.
        """
        new, room = x.shape[1] // 2, past[0].shape[2]
        query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
        positions = rows.positions(new)
        present_key = self._write(past[0], key[:, :, :new], positions)
        present_value = self._write(past[1], value[:, :, :new], positions)
        width, query = self.heads.width, query * self.heads.score_scale
        relative = self._relative(x)  # (R, H, 2·T, N)
        places = torch.cat([positions, positions + 1], dim=1)
        distances = places[..., None] - torch.arange(room, device=x.device)
        buckets = self.buckets[distances.clamp(0, len(self.buckets) - 1)]  # (R, 2·T, P)
        bias = relative.gather(-1, buckets[:, None].expand(-1, self.heads.count, -1, -1))
        visible = causal(torch.cat([positions, positions], dim=1), room, None)[:, None]
        scores = query @ present_key[..., :width].transpose(-1, -2) + bias
        scores = scores.masked_fill(~visible, float("-inf"))
        own = (query * key).sum(dim=-1, keepdim=True) + relative[..., :1]
        is_main = (torch.arange(2 * new, device=x.device) < new)[:, None]
        own = own.masked_fill(is_main, float("-inf"))  # its keys are in the cache
        weights = torch.cat([scores, own], dim=-1).softmax(dim=-1)
        mixed = weights[..., :-1] @ present_value[..., :width] + weights[..., -1:] * value
        return self.out(self.join(mixed)), (present_key, present_value)

    def _relative(self, x: Tensor) -> Tensor:
        """(R, 2·T, D) → each query's bias for each bucket, (R, H, 2·T, N)."""
        return self.relative(x).unflatten(-1, (-1, self.heads.count)).permute(0, 3, 1, 2)

    def pack(self) -> None:
        """Nothing: it keeps to standard operators."""


def bucket_table(config: Config) -> Tensor:
    """The bucket of each distance from 0: (farthest + 1,) int64."""
    exact = config.buckets // 2
    distances = torch.arange(config.farthest + 1)
    octaves = (distances.float() / exact).log() / math.log(config.farthest / exact)
    shared = exact + octaves * (config.buckets - exact)
    return torch.where(distances < exact, distances, shared.clamp(0, config.buckets - 1).long())


class Decoder(bart.Decoder):
    """Target tokens and the source's keys and values → scores of the next token."""

    is_aligned = False  # `transformers` returns two streams' scores, no attention

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__(config.stacks, tokens)
        self.streams = nn.Parameter(torch.zeros(config.streams, config.stacks.width))
        for block in self.blocks:
            block.attention = StreamAttention(self.heads, config)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, 2·T, D)."""
        main = self.embedding(tokens, positions)
        # As in `transformers`, which counts the streams from the last row.
        ahead = self.embedding.positions(tokens, positions + 1) + self.streams[-1]
        return torch.cat([main, self.embedding.norm(ahead)], dim=1)

    def finish(self, x: Tensor) -> Tensor:
        """(R, 2·T, D) → (R, T, D) of the stream that predicts."""
        return x[:, x.shape[1] // 2 :]


def build(config: Config) -> bart.Bart:
    """Both stacks."""
    network = bart.Bart(config.stacks)
    network.decoder = Decoder(config, network.decoder.embedding.tokens)
    return network


# ----------------------------------------------------------------------------------------- names

_SUBLAYERS = {"self_attn": "attention", "feed_forward": "mlp"}
_ATTENTION = "query_proj key_proj value_proj out_proj"


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    one, source, target = config.stacks.has_one_table, "encoder.embedding", "decoder.embedding"
    tokens = source if one else target
    table: dict[str, Any] = {
        "word_embeddings": f"{source}.tokens" if one else None,
        "decoder.ngram_embeddings.weight": "decoder.streams",
        "decoder.layers.*.cross_attn_layer_norm": "decoder.blocks.*.cross_norm",
        "decoder.layers.*.self_attn.relative_pos_embeddings": "decoder.blocks.*.attention.relative",
    }
    table |= projections("decoder.layers.*.cross_attn", "decoder.blocks.*.cross", _ATTENTION)
    for side in ("encoder", "decoder"):
        theirs, ours = f"{side}.layers.*", f"{side}.blocks.*"
        table |= {
            f"{side}.word_embeddings": f"{tokens if side == 'decoder' else source}.tokens",
            f"{side}.position_embeddings.weight": f"{side}.embedding.positions.table",
            f"{side}.embeddings_layer_norm": f"{side}.embedding.norm",
            f"{theirs}.feed_forward.intermediate": f"{ours}.mlp.up",
            f"{theirs}.feed_forward.output": f"{ours}.mlp.down",
        }
        table |= projections(f"{theirs}.self_attn", f"{ours}.attention", _ATTENTION)
        for name, part in _SUBLAYERS.items():
            table[f"{theirs}.{name}_layer_norm"] = f"{ours}.{part}_norm"
    table |= {f"prophetnet.{name}": entry for name, entry in table.items()}
    table["lm_head.weight"] = "decoder.output"
    tied = {"decoder.output": f"{tokens}.tokens.weight"} if config.stacks.has_tied_output else {}
    return Rename(table, tied=tied)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    bart.declare("prophetnet", {"generate": no_section}),
    read_config=read_config,
    build=build,
    rename=rename,
)
