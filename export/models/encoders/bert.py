"""BERT and the encoders that differ from it by data, or by one method.

Papers: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding", §3 (arXiv 1810.04805); each family below names its own.
Checkpoints: `model_type: bert`, `megatron-bert`, `roberta`, `xlm-roberta`, `camembert`,
`distilbert`, `electra`, `albert` and `mpnet`: bare, for masked words and sentence relations,
classifiers, taggers.

Legend: B batch, T positions, D width, E width of the embeddings.

Differences from `transformers`: texts are given with their lengths instead of a mask; vocabulary
scores are computed at masked positions only; a bare encoder ends in a pooled vector, and its
`pooler` is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import BERT_BLOCK, Names, Rename, bert_block, with_and_without
from export.layers.attention.positions import RelativePositions
from export.layers.blocks import BASE, BlockConfig, EncoderBlock, make_encoder_blocks
from export.text_encoders.declaration import class_names, masked_names, text_architecture
from export.text_encoders.heads import NEXT_SENTENCE_LABELS, HeadConfig, HeadKind, read_head
from export.text_encoders.network import TextEncoder, TextModel, with_heads
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config

BUCKETS, FARTHEST = 32, 128
"""Of MPNet's relative positions."""


@dataclass(frozen=True, kw_only=True)
class Config(BlockConfig):
    """The encoder and its head."""

    supported = {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    }
    vocabulary_size: int = key("vocab_size", 30522)
    positions: int = key("max_position_embeddings", 512)
    segment_types: int = key("type_vocab_size", 2)
    pad_token: int | None = None
    """Positions are counted from behind it, and it is not counted (fairseq); None: from 0."""
    head: HeadConfig

    @property
    def limits(self) -> Limits:
        """The position table without its first rows, which no token has."""
        skipped = 0 if self.pad_token is None else self.pad_token + 1
        return Limits(max_input_tokens=self.positions - skipped)

    @property
    def table_width(self) -> int:
        """E."""
        return self.width


@dataclass(frozen=True, kw_only=True)
class RobertaConfig(Config):
    """With the token that is not counted."""

    pad_token: int = key("pad_token_id", 1, "index")


@dataclass(frozen=True, kw_only=True)
class ElectraConfig(Config):
    """With a table of another width."""

    embedding_width: int = key("embedding_size", 128)

    @property
    def table_width(self) -> int:
        """E."""
        return self.embedding_width


@dataclass(frozen=True, kw_only=True)
class AlbertConfig(ElectraConfig):
    """With layers that share weights."""

    groups: int = key("num_hidden_groups", 1)
    """Sets of weights; each serves an equal share of the layers."""
    blocks_per_layer: int = key("inner_group_num", 1)


@dataclass(frozen=True, kw_only=True)
class MPNetConfig(Config):
    """With relative positions, in buckets of a fixed number."""

    supported = Config.supported | {"relative_attention_num_buckets": BUCKETS}


# --------------------------------------------------------------------------------------- network


class Encoder(TextEncoder):
    """Token, position and segment embeddings, summed (figure 2), and the blocks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.width
        self.segment_types = config.segment_types
        self.pad_token = config.pad_token
        width = config.table_width
        self.tokens = nn.Embedding(config.vocabulary_size, width)
        self.positions = nn.Embedding(config.positions, width)
        if config.segment_types:
            self.segments = nn.Embedding(config.segment_types, width)
        self.norm: nn.Module = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.project = self.make_projection(config)
        self.blocks = self.make_blocks(config)

    def make_projection(self, config: Config) -> nn.Module:
        """(…, E) → (…, D)."""
        width = config.table_width
        return nn.Identity() if width == config.width else nn.Linear(width, config.width)

    def make_blocks(self, config: Config) -> nn.ModuleList:
        """The blocks whose weights a checkpoint has."""
        return make_encoder_blocks(config, is_norm_first=False)

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,), (B, T) → (B, T, D)."""
        return self._run(self.stack(), token_ids, lengths, segments)

    def first(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T) → (B, 1, D): the last block computes one position."""
        *earlier, last = self.stack()
        return last.first(self._run(earlier, token_ids, lengths, segments), lengths)

    def _run(
        self,
        blocks: Iterable[EncoderBlock],
        token_ids: Tensor,
        lengths: Tensor,
        segments: Tensor | None,
    ) -> Tensor:
        """What these blocks make of the embeddings, (B, T, D)."""
        x, bias = self.embed(token_ids, segments), self.score_bias(token_ids.shape[1])
        for block in blocks:
            x = block(x, lengths, bias)
        return x

    def stack(self) -> list[EncoderBlock]:
        """The blocks in the order in which they are applied."""
        return list(self.blocks)  # type: ignore[arg-type]

    def score_bias(self, size: int) -> Tensor | None:
        """What is added to the scores of every block, (1, H, T, T)."""
        return None

    def embed(self, token_ids: Tensor, segments: Tensor | None) -> Tensor:
        """(B, T), (B, T) → the first block's input, (B, T, D)."""
        x = self.tokens(token_ids) + self.position_vectors(token_ids)
        if segments is not None:
            x = x + self.segments(segments)
        elif self.segment_types:
            x = x + self.segments.weight[0]
        return self.project(self.norm(x))

    def position_vectors(self, token_ids: Tensor) -> Tensor:
        """(B, T) → (T, E) or (B, T, E)."""
        if self.pad_token is None:
            return self.positions.weight[: token_ids.shape[1]]
        return self.positions(count_positions(token_ids, self.pad_token))


def count_positions(token_ids: Tensor, pad_token: int) -> Tensor:
    """(B, T) → (B, T): tokens counted from `pad_token` + 1; padding tokens are at `pad_token`."""
    counted = (token_ids != pad_token).long()
    return counted.cumsum(dim=1) * counted + pad_token


class AlbertEncoder(Encoder):
    """Groups of layers share their blocks; embeddings are projected whatever their width."""

    first = TextEncoder.first

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.layers = config.layers

    def make_projection(self, config: Config) -> nn.Module:
        """(…, E) → (…, D)."""
        return nn.Linear(config.table_width, config.width)

    def make_blocks(self, config: Config) -> nn.ModuleList:
        """The blocks of each group."""
        assert isinstance(config, AlbertConfig)
        group, make = replace(config, layers=config.blocks_per_layer), super().make_blocks
        return nn.ModuleList(make(group) for _ in range(config.groups))

    def stack(self) -> list[EncoderBlock]:
        """The blocks of each layer's group."""
        layers = range(self.layers)
        return [block for layer in layers for block in self.group(layer)]  # type: ignore[misc]

    def group(self, layer: int) -> nn.ModuleList:
        """The blocks of one layer, which further layers use too; rounded as `transformers` does."""
        group = self.blocks[int(layer / (self.layers / len(self.blocks)))]
        assert isinstance(group, nn.ModuleList)
        return group


class MPNetEncoder(Encoder):
    """Blocks share a bias of the scores, computed once from the distances of tokens."""

    first = TextEncoder.first

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.relative = RelativePositions(
            config.heads.count, BUCKETS, FARTHEST, is_bidirectional=True
        )

    def score_bias(self, size: int) -> Tensor:
        """(1, H, T, T)."""
        positions = torch.arange(size)
        return self.relative(positions[None], positions)


class MegatronEncoder(Encoder):
    """Norms are in front of sub-layers; one is behind the last block, none at the embeddings."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.final_norm = self.norm
        self.norm = nn.Identity()

    def make_blocks(self, config: Config) -> nn.ModuleList:
        """The blocks, norms in front."""
        return make_encoder_blocks(config, is_norm_first=True)

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,), (B, T) → (B, T, D)."""
        return self.final_norm(super().forward(token_ids, lengths, segments))

    def first(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T) → (B, 1, D): the last block computes one position."""
        return self.final_norm(super().first(token_ids, lengths, segments))


# -------------------------------------------------------------------------------------- families

HEADS = (HeadKind.BARE, HeadKind.MASKED, HeadKind.SEQUENCE, HeadKind.TOKENS, HeadKind.ANSWER)


def embedding_names(theirs: str, ours: str) -> Names:
    """The embeddings' table."""
    return {
        f"{theirs}.word_embeddings": f"{ours}.tokens",
        f"{theirs}.position_embeddings": f"{ours}.positions",
        f"{theirs}.token_type_embeddings": f"{ours}.segments",
        f"{theirs}.LayerNorm": f"{ours}.norm",
        f"{theirs}.position_ids": None,
    }


EMBEDDINGS = embedding_names("embeddings", "encoder")


@dataclass(frozen=True, kw_only=True)
class Family:
    """What tells a family from BERT; names are those of `transformers`.

    Attributes:
        name: Of the architecture.
        prefix: Of the encoder's tensors in checkpoints with a head.
        classes: What the names of its classes begin with.
        siblings: `model_type` of a sibling with BERT's defaults → the same of its classes.
        relation: Labels of two sentences' relation.
        defaults: Of fields of `config.json`, by BERT's names.
        fields: BERT's name of a field → the family's.
        fixed: Fields of `config` that no file has.
        activations: Of the hidden layers of classifiers and of the masked-word head; None: that of
            the blocks.
        block: Where the blocks are, and the names within one (`bert_block`).
        masked: Names of the masked-word head (`masked_names`).
        pooler: The hidden layer that a sentence relation's classifier has, and any other whose own
            names (`classifier`) do not have one; "": the family has none.
        classifier: Names of the text classifier's last layer and of its hidden one.
        relation_output: Name of the last layer of the sentence relation.
        further: Names of the encoder that BERT lacks.
    """

    name: str
    prefix: str
    classes: str
    siblings: Mapping[str, str] = field(default_factory=dict)
    heads: tuple[HeadKind, ...] = HEADS
    relation: tuple[str, ...] = NEXT_SENTENCE_LABELS
    config: type[Config] = Config
    defaults: Mapping[str, Any] = field(default_factory=lambda: BASE)
    fields: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    encoder: type[Encoder] = Encoder
    activations: tuple[str, str | None] = ("tanh", None)
    block: tuple[str, str] = ("encoder.layer.*", BERT_BLOCK)
    masked: str = ""
    pooler: str = "pooler.dense"
    classifier: tuple[str, str | None] = ("classifier", None)
    relation_output: str | None = None
    further: Names = field(default_factory=dict)

    def read_config(self, values: Mapping[str, Any], place: str = "config.json") -> Config:
        """The configuration; defaults are `transformers`' own."""
        sibling = self.siblings.get(str(values.get("model_type")))
        reader = ConfigReader(values, place, BASE if sibling else self.defaults, self.fields)
        head = read_head(reader, sibling or self.classes, self.heads, self.relation)
        return reader.read(self.config, head=head, **self.fixed)

    def build(self, config: Config) -> TextModel:
        """The encoder with its head."""
        return with_heads(self.encoder(config), config, *self.activations)

    def encoder_names(self) -> Names:
        """The encoder's table."""
        theirs, names = self.block
        depth = "blocks.*.*" if theirs.count("*") == 2 else "blocks.*"
        return EMBEDDINGS | bert_block(theirs, f"encoder.{depth}", names) | self.further

    def rename(self, config: Config) -> Rename:
        """`transformers`' names → ours; what another head left in the file is skipped."""
        head, (output, dense) = config.head, self.classifier
        encoder = self.encoder_names()
        if self.pooler:
            uses_pooler = head.classifies and dense is None
            encoder[self.pooler] = "classifier.dense" if uses_pooler else None
        heads = masked_names(head, *self.masked.split())
        if self.relation_output:
            heads[self.relation_output] = "classifier.output" if head.relates_sentences else None
        heads |= class_names(head, output, dense)
        return Rename(with_and_without(self.prefix, encoder) | heads)

    def declare(self) -> Architecture:
        """The architecture."""
        return text_architecture(self.name, self.read_config, self.build, self.rename)


BERT = Family(
    name="bert",
    prefix="bert.",
    classes="Bert",
    heads=tuple(HeadKind),
    masked="cls.predictions.transform.dense cls.predictions.transform.LayerNorm "
    "cls.predictions.decoder cls.predictions.bias",
    relation_output="cls.seq_relationship",
)
ARCHITECTURE = BERT.declare()

# Norms in front, so that larger models train. Shoeybi et al. 2019, "Megatron-LM", §5.3 (arXiv
# 1909.08053).
MEGATRON = replace(
    BERT,
    name="megatron-bert",
    classes="MegatronBert",
    defaults={
        "vocab_size": 29056,
        "num_hidden_layers": 24,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    encoder=MegatronEncoder,
    block=(
        "encoder.layer.*",
        "attention.self.query attention.self.key attention.self.value attention.output.dense "
        "attention.ln intermediate.dense output.dense ln",
    ),
    further={"encoder.ln": "encoder.final_norm"},
).declare()

# Trained longer on more text; positions as fairseq counts them. Liu et al. 2019, "RoBERTa: A
# Robustly Optimized BERT Pretraining Approach" (arXiv 1907.11692); Conneau et al. 2019, "XLM-R"
# (arXiv 1911.02116); Martin et al. 2019, "CamemBERT" (arXiv 1911.03894).
_ROBERTA = Family(
    name="roberta",
    prefix="roberta.",
    classes="Roberta",
    siblings={"xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    config=RobertaConfig,
    defaults=BASE | {"vocab_size": 50265},
    activations=("tanh", "gelu"),
    masked="lm_head.dense lm_head.layer_norm lm_head.decoder lm_head.bias",
    classifier=("classifier.out_proj", "classifier.dense"),
)
ROBERTA = _ROBERTA.declare()

# Half of the layers, without segments and pooler, trained to imitate BERT; the file has the table
# of sinusoidal positions. Sanh et al. 2019, "DistilBERT", §3 (arXiv 1910.01108).
DISTILBERT = Family(
    name="distilbert",
    prefix="distilbert.",
    classes="DistilBert",
    defaults=BASE | {"num_hidden_layers": 6},
    fields={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    fixed={"segment_types": 0, "norm_epsilon": 1e-12},
    activations=("relu", None),
    block=(
        "transformer.layer.*",
        "attention.q_lin attention.k_lin attention.v_lin attention.out_lin "
        "sa_layer_norm ffn.lin1 ffn.lin2 output_layer_norm",
    ),
    masked="vocab_transform vocab_layer_norm vocab_projector",
    pooler="",
    classifier=("classifier", "pre_classifier"),
).declare()

# Pre-trained to find replaced words, which has a head of its own that is left out. Clark et al.
# 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators", §2, §3.2
# (arXiv 2003.10555). Bare: the discriminator; for masked words: the generator.
ELECTRA = Family(
    name="electra",
    prefix="electra.",
    classes="Electra",
    config=ElectraConfig,
    defaults=BASE | {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    activations=("gelu", "gelu"),
    masked="generator_predictions.dense generator_predictions.LayerNorm generator_lm_head",
    pooler="",
    classifier=("classifier.out_proj", "classifier.dense"),
    further={
        "embeddings_project": "encoder.project",
        "discriminator_predictions.dense": None,
        "discriminator_predictions.dense_prediction": None,
    },
).declare()

# A narrow table, and layers that share their weights. Lan et al. 2019, "ALBERT: A Lite BERT for
# Self-supervised Learning of Language Representations", §3.1 (arXiv 1909.11942), which predicts the
# order of two sentences.
ALBERT = Family(
    name="albert",
    prefix="albert.",
    classes="Albert",
    heads=tuple(kind for kind in HeadKind if kind is not HeadKind.NEXT_SENTENCE),
    relation=("in_order", "swapped"),
    config=AlbertConfig,
    defaults={
        "vocab_size": 30000,
        "num_hidden_layers": 12,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
    },
    encoder=AlbertEncoder,
    block=(
        "encoder.albert_layer_groups.*.albert_layers.*",
        "attention.query attention.key attention.value attention.dense "
        "attention.LayerNorm ffn ffn_output full_layer_layer_norm",
    ),
    masked="predictions.dense predictions.LayerNorm predictions.decoder predictions.bias",
    pooler="pooler",
    relation_output="sop_classifier.classifier",
    further={"encoder.embedding_hidden_mapping_in": "encoder.project"},
).declare()

# RoBERTa's heads and absolute positions (behind token 1, whatever `pad_token_id` is), and relative
# positions in the scores. Song et al. 2020, "MPNet: Masked and Permuted Pre-training for Language
# Understanding", §2 (arXiv 2004.09297).
MPNET = replace(
    _ROBERTA,
    name="mpnet",
    prefix="mpnet.",
    classes="MPNet",
    siblings={},
    config=MPNetConfig,
    defaults=BASE | {"vocab_size": 30527},
    fixed={"segment_types": 0, "pad_token": 1},
    encoder=MPNetEncoder,
    block=(
        "encoder.layer.*",
        "attention.attn.q attention.attn.k attention.attn.v attention.attn.o "
        "attention.LayerNorm intermediate.dense output.dense output.LayerNorm",
    ),
    further={"encoder.relative_attention_bias": "encoder.relative.bias"},
).declare()
