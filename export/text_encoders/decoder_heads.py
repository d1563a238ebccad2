"""Heads for answers over decoders and encoder-decoders: `…ForQuestionAnswering`.

A decoder reads a question and a passage at once, as a text encoder does, and a linear layer scores
each token as start and end. Encoder and decoder both read the whole text (Lewis et al. 2020,
"BART", §3.2, arXiv 1910.13461), the decoder one position later, as in `transformers`.

Legend: B batch, T positions, H heads, E width of the last vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs
from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename
from export.layers.attention.attention import SelfAttention
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import KeyValue, Rows
from export.text_encoders.declaration import answer_section, class_names, text_graphs
from export.text_encoders.heads import HeadConfig, HeadKind, answer_head
from export.text_encoders.network import TextEncoder, TextModel
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits

Start = int | Literal["last"]
"""What a decoder reads in front of a source, whose last token it does not read: a token, or that
last token (mBART)."""


@dataclass(frozen=True)
class ReaderConfig:
    """A checkpoint with a head for answers.

    Attributes:
        network: The family's configuration.
        start: None without an encoder.
    """

    network: Any
    head: HeadConfig
    start: Start | None

    @property
    def limits(self) -> Limits:
        """Of one text: a decoder alone needs no place for an answer."""
        limits: Limits = self.network.limits
        alone = limits.max_total_tokens if self.start is None else limits.max_input_tokens
        return Limits(max_input_tokens=alone)


class WholeAttention(SelfAttention):
    """A decoder's self-attention over whole texts, which needs no cache."""

    def __init__(self, cached: CachedAttention) -> None:
        super().__init__(cached.heads, is_causal=True)
        self.query, self.key, self.value = cached.query, cached.key, cached.value
        self.out, self.query_norm, self.key_norm = cached.out, cached.query_norm, cached.key_norm

    def forward(  # type: ignore[override]
        self, x: Tensor, past: KeyValue, rows: Rows, bias: Tensor | None = None
    ) -> tuple[Tensor, KeyValue]:
        """(B, T, D) → (B, T, D); no token attends to the padding behind it.

        Args:
            bias: Of the scores, (1, H, T, T).
        """
        return super().forward(x, None, bias), past


class TextReader(TextEncoder):
    """A decoder, perhaps behind its encoder, as a text encoder.

    Args:
        network: Has `decoder`, and `encoder` where there is a source.
        tokens: Where the decoder has its table.
    """

    def __init__(self, network: Any, tokens: str, start: Start | None) -> None:
        super().__init__()
        self.network, self.start = network, start
        self.tokens = attrgetter(tokens)(network.decoder)
        self.width = self.tokens.embedding_dim
        del network.decoder.output  # no vocabulary is scored
        for block in network.decoder.blocks:
            block.attention = WholeAttention(block.attention)

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,) → (B, T, E)."""
        decoder, read, cross = self.network.decoder, token_ids, ()
        if self.start is not None:
            cross = decoder.project_cross_kv(self.network.encoder(token_ids, lengths))
            read = torch.cat([self._first(token_ids, lengths), token_ids[:, :-1]], dim=1)
        size = torch.ones_like(token_ids[:1]).sum(dim=1)
        rows = Rows(size.int(), size.max().int(), size - 1)  # of one row: all have its positions
        positions = torch.arange(token_ids.shape[1])[None]
        shape = token_ids[:, None, :, None]  # of a cache, which is not read
        past = [(shape, shape)] * decoder.layers
        x = decoder.embed(read, positions)
        vectors: Tensor = decoder.run_blocks(x, positions, rows, past, cross, lengths)[0]
        return vectors

    def _first(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, 1)."""
        if isinstance(self.start, int):
            return torch.full_like(token_ids[:, :1], self.start)
        return token_ids.gather(1, lengths[:, None].long() - 1)


def with_answers(
    base: Architecture, tokens: str = "tokens", start: Start | None = None
) -> Architecture:
    """A generator's declaration, and that of its checkpoints with a head for answers.

    Args:
        tokens: As of `TextReader`.
        start: Where `config.json` has no `decoder_start_token_id`; None without an encoder.
    """

    def read_config(values: Mapping[str, Any]) -> Any:
        names = values.get("architectures")
        if not (isinstance(names, list) and names and str(names[0]).endswith(HeadKind.ANSWER)):
            return base.read_config(values)
        reader, first = ConfigReader(values), start
        if isinstance(start, int):
            first = reader.token("decoder_start_token_id", start, reader.integer("vocab_size"))
        network = {name: value for name, value in values.items() if name != "architectures"}
        return ReaderConfig(base.read_config(network), answer_head(reader), first)

    def build(config: Any) -> nn.Module:
        if not isinstance(config, ReaderConfig):
            return base.build(config)
        encoder = TextReader(base.build(config.network), tokens, config.start)
        return TextModel(encoder, config.head, masked=nn.Identity, classifier=nn.Identity)

    def rename(config: Any) -> Rename:
        if not isinstance(config, ReaderConfig):
            return base.rename(config)
        names = base.rename(config.network)
        table = names.prefixed("", "encoder.network.")
        older: Names = {  # what Llama's class and its heirs call `model.`
            name.replace("model.", "transformer.", 1): entry
            for name, entry in table.items()
            if name.startswith("model.")
        }
        optional = frozenset(f"encoder.network.{name}" for name in names.optional)
        return Rename({**table, **older, **class_names(config.head)}, optional)

    def graphs(network: Any, image: ImageSpec | None) -> Graphs:
        reads = isinstance(network, TextModel)
        return text_graphs(network) if reads else base.graphs(network, image)

    def tasks_of(config: Any) -> tuple[str, ...]:
        return config.head.tasks if isinstance(config, ReaderConfig) else base.served(config)

    return replace(
        base,
        tasks={**base.tasks, "answer": answer_section},
        read_config=read_config,
        build=build,
        rename=rename,
        graphs=graphs,
        details=lambda network: {} if isinstance(network, TextModel) else base.details(network),
        tasks_of=tasks_of,
    )
