"""BERT and RoBERTa as decoders, mostly with cross-attention.

Paper: Rothe et al. 2020, "Leveraging Pre-trained Checkpoints for Sequence Generation Tasks", §2
(arXiv 1907.12461): the blocks of Devlin et al. 2018 (arXiv 1810.04805) with a causal mask, and
cross-attention between self-attention and MLP.
Checkpoints: the decoder of `model_type: encoder-decoder` and `vision-encoder-decoder` folders
(`bert`, `roberta`, `xlm-roberta`, `camembert`) and of `model_type: blip`; GIT's, without
cross-attention.

Legend: R rows, T new positions, P past positions, S source positions, D width, V vocabulary.

Differences from `transformers`: inference only; cross-attention keys and values are computed once;
all tokens have segment 0. In RoBERTa a padding token takes the padding's position and later ones
are counted as if it were a token, as `transformers` does when it decodes token by token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import BERT_ATTENTION, Entry, Names, Rename, bert_block, projections
from export.layers.activation import activation
from export.layers.blocks import BlockConfig, make_decoder_blocks
from export.layers.decoder import TransformerDecoder, output_name, output_table, tied_logits

# ---------------------------------------------------------------------------------------- config

MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "camembert")


@dataclass(frozen=True, kw_only=True)
class Config(BlockConfig):
    """The network's part of `config.json`."""

    vocabulary_size: int = key("vocab_size")
    table_rows: int = key("max_position_embeddings")
    """Rows of the position table."""
    head_activation: str | None
    """Of the transformation in front of the output layer; None without one."""
    segments: int = key("type_vocab_size", 2)
    """Rows of the segment table; 0 without one."""
    padding: int | None = None
    """RoBERTa: the padding token, and the row of the position table in front of position 0."""
    has_tied_output: bool = key("tie_word_embeddings", True)
    has_cross: bool = True
    source_width: int | None = None
    """Width of the vectors that cross-attention reads; D when not given."""

    @property
    def first_position(self) -> int:
        """Row of the position table that the first token takes."""
        return 0 if self.padding is None else self.padding + 1

    @property
    def positions(self) -> int:
        """Tokens that the position table holds."""
        return self.table_rows - self.first_position


def read_config(reader: ConfigReader) -> Config:
    """The configuration of a decoder with cross-attention; what we lack is refused."""
    model_type = reader.text("model_type", "bert")
    reader.refuse_unless(
        is_decoder=True,
        add_cross_attention=True,
        cross_attention_hidden_size=None,
        position_embedding_type="absolute",
    )
    if model_type == "bert":
        return reader.read(Config, head_activation=reader.activation("hidden_act", "gelu"))
    padding = reader.index("pad_token_id", 1)
    return reader.read(Config, head_activation="gelu", padding=padding)


# --------------------------------------------------------------------------------------- network


class OutputTransform(nn.Module):
    """What precedes the output layer: (R, D) → (R, D) (Devlin 2018, the masked-word head)."""

    def __init__(self, width: int, activation_name: str, norm_epsilon: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = activation(activation_name)
        self.norm = nn.LayerNorm(width, eps=norm_epsilon)

    def forward(self, hidden: Tensor) -> Tensor:
        """Linear, activation, norm."""
        return self.norm(self.activation(self.dense(hidden)))


class BertDecoder(TransformerDecoder):
    """Tokens and a source's keys and values → scores of the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.vocabulary_size = config.vocabulary_size
        self.first_position = config.first_position
        self.padding = config.padding
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.positions = nn.Embedding(config.table_rows, config.width)
        self.segments = nn.Embedding(config.segments, config.width) if config.segments else None
        self.embedding_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        has_cross, read = config.has_cross, config.source_width
        self.blocks = make_decoder_blocks(
            config, is_norm_first=False, has_cross=has_cross, source_width=read
        )
        self.transform: nn.Module = nn.Identity()
        if name := config.head_activation:
            self.transform = OutputTransform(config.width, name, config.norm_epsilon)
        self.output = output_table(self.tokens, is_tied=config.has_tied_output)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary_size))

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D): token, position and segment, normalised."""
        places = positions + self.first_position
        if self.padding is not None:
            places = torch.where(tokens == self.padding, self.padding, places)
        # The padding of a ragged prefill may lie beyond the table.
        places = places.clamp(max=self.positions.num_embeddings - 1)
        x = self.tokens(tokens)
        if self.segments is not None:
            x = x + self.segments.weight[0]
        return self.embedding_norm(x + self.positions(places))

    def finish(self, x: Tensor) -> Tensor:
        """(R, T, D) → (R, T, D): blocks end in norms."""
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        return tied_logits(self.transform(hidden), self.output, self.output_bias)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config, theirs: str, ours: str, model_type: str = "bert") -> dict[str, Entry]:
    """The table below a prefix on either side."""
    body = "bert" if model_type == "bert" else "roberta"
    table: dict[str, Entry] = {f"{body}.{name}": own for name, own in _BODY.items()}
    head, dense, norm = _HEADS[body]
    table |= {
        f"{head}.{dense}": "transform.dense",
        f"{head}.{norm}": "transform.norm",
        f"{head}.decoder.weight": output_name(is_tied=config.has_tied_output),
        # Tied heads store their bias under either name, or both; of untied ones `bias` is unused.
        f"{head}.decoder.bias": "output_bias",
        f"{head}.bias": "output_bias" if config.has_tied_output else None,
    }
    return Rename(table).prefixed(theirs, ours)


_HEADS = {
    "bert": ("cls.predictions", "transform.dense", "transform.LayerNorm"),
    "roberta": ("lm_head", "dense", "layer_norm"),
}
"""Body → its head, and the names of layer and norm in that."""
_BLOCK = "encoder.layer.*"
_BODY: Names = {
    "embeddings.word_embeddings": "tokens",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "segments",
    "embeddings.LayerNorm": "embedding_norm",
    "embeddings.position_ids": None,  # that old versions stored
    **bert_block(_BLOCK, "blocks.*"),
    **projections(f"{_BLOCK}.crossattention", "blocks.*.cross", BERT_ATTENTION),
    f"{_BLOCK}.crossattention.output.LayerNorm": "blocks.*.cross_norm",
}
