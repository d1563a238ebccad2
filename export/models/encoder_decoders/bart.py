"""BART, and the families that vary its network: each is a `Form` at the end of this file.

Paper: Lewis et al. 2020, "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language
Generation, Translation, and Comprehension", §2 (arXiv 1910.13461).
Checkpoints: `facebook/bart-*` and summarisers made from them (`model_type: bart`).

Legend: B batch, R decoder rows, T new positions, P past positions, S source positions, H heads,
K width of a head, D model width, V vocabulary.

Differences from Vaswani et al. 2017: GELU; learned positions, of which the first two rows are
unused; a norm behind the embeddings. Differences from `transformers`: inference only;
cross-attention keys and values are computed once.
Differences of M2M-100 from `transformers`: its table of positions does not grow beyond
`max_position_embeddings`; a padding token within a text keeps its place, where `transformers`
leaves it out of the count. Of Marian: a pre-norm configuration (`normalize_before`) is refused,
where `transformers` silently ignores it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Section, language_pairs, no_section
from export.config.config_reader import MOST, ConfigReader, key
from export.config.weight_names import Entry, Rename, WeightLayout, projections
from export.decoder_graphs.transformer import alignment, text_to_text_graphs
from export.layers.attention.heads import Heads
from export.layers.attention.positions import PositionTable, sinusoids, spread_sinusoids
from export.layers.blocks import BlockConfig, make_decoder_blocks, make_encoder_blocks
from export.layers.decoder import TransformerDecoder, tied_logits
from export.text_encoders.decoder_heads import with_answers
from export.tokenizer.languages import token_section
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError


class Positions(Enum):
    """How positions become vectors."""

    LEARNED = "learned"
    SINUSOIDS = "sinusoids"
    SPREAD_SINUSOIDS = "spread_sinusoids"
    """From the row behind the padding token's id, whose own row is zero."""
    SAVED_SPREAD_SINUSOIDS = "saved_spread_sinusoids"
    """The same, or the table of a file that has one."""
    SPREAD_FROM_ZERO = "spread_from_zero"
    """From the first row, for all tokens."""


@dataclass(frozen=True)
class Form:
    """What a paper changes in the network."""

    positions: Positions = Positions.LEARNED
    first_row: int = 2
    """Row of a learned table that the first position takes: fairseq counted from behind the padding
    token's."""
    is_norm_first: bool = False
    has_embedding_norm: bool = True
    are_targets_normalised: bool = False
    """The decoder normalises tokens, which nothing scales, before their positions are added."""
    has_final_norm: bool = False
    has_output_bias: bool = True
    has_attention_bias: bool = True
    activation: str = "gelu"
    is_embedding_scaled: bool = False
    """Where `config.json` does not decide."""
    pad_token_id: int = 1
    """Likewise."""
    norm_epsilon: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class Config:
    """The network's part of `config.json`."""

    form: Form
    vocabulary_size: int = key("vocab_size")
    source_vocabulary_size: int = key("vocab_size")
    width: int = key("d_model")
    positions: int = key("max_position_embeddings")
    pad_token_id: int = key("pad_token_id", kind="index")
    embedding_scale: float
    encoder: BlockConfig
    decoder: BlockConfig
    has_one_table: bool = key("tie_word_embeddings", True)
    """One table of tokens for source and target."""
    has_tied_output: bool = key("tie_word_embeddings", True)
    """The target's table is the output's, where the file has no other."""
    source_width: int | None = None
    """Of the vectors that cross-attention reads, where it is not D."""
    most_source_tokens: int = MOST
    """Where a source has fewer than its positions."""

    @property
    def limits(self) -> Limits:
        """The position table bounds both sides."""
        most = min(self.positions, self.most_source_tokens)
        return Limits(max_input_tokens=most, max_total_tokens=self.positions)


def read_config(values: Mapping[str, Any], form: Form | None = None) -> Config:
    """The configuration; unsupported fields that would change the network are refused.

    Args:
        form: A paper's other than BART's.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    reader.refuse_unless(is_encoder_decoder=True)
    return read_sizes(reader, form or Form())


def read_sizes(reader: ConfigReader, form: Form) -> Config:
    """The sizes of a network of this form."""
    # Fields of older files, which state the form that `model_type` implies.
    reader.refuse_unless(
        normalize_before=form.is_norm_first,
        normalize_embedding=form.has_embedding_norm,
        add_final_layer_norm=form.has_final_norm,
        static_position_embeddings=form.positions is not Positions.LEARNED,
    )
    defaults = {"pad_token_id": form.pad_token_id, "activation_function": form.activation}
    reader = ConfigReader(
        reader.values, reader.place, defaults | dict(reader.defaults), reader.names
    )
    is_scaled = reader.flag("scale_embedding", form.is_embedding_scaled)
    return reader.read(
        Config,
        form=form,
        embedding_scale=reader.integer("d_model") ** 0.5 if is_scaled else 1.0,
        encoder=_read_stack(reader, "encoder", form),
        decoder=_read_stack(reader, "decoder", form),
    )


def _read_stack(reader: ConfigReader, side: str, form: Form) -> BlockConfig:
    count, bias = reader.heads(f"{side}_attention_heads", width="d_model"), form.has_attention_bias
    return BlockConfig(
        heads=Heads(reader.integer("d_model"), count, bias=bias, out_bias=bias),
        mlp_width=reader.integer(f"{side}_ffn_dim"),
        layers=reader.layers(f"{side}_layers"),
        activation=reader.activation("activation_function"),
        norm_epsilon=form.norm_epsilon,
    )


# --------------------------------------------------------------------------------------- network


def make_optional_norm(config: Config, *, is_there: bool) -> nn.Module:
    """A norm, or nothing."""
    return nn.LayerNorm(config.width, eps=config.form.norm_epsilon) if is_there else nn.Identity()


class Embedding(nn.Module):
    """Token and position embeddings, and their norm."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = config.embedding_scale
        self.positions = position_table(config)
        self.norm = make_optional_norm(config, is_there=config.form.has_embedding_norm)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(B, T) tokens at (B or 1, T) positions → (B, T, D)."""
        return self.place(self.embed(tokens), tokens, positions)

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, D), without their positions."""
        return self.tokens(tokens) * self.scale

    def place(self, x: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """(B, T, D) of tokens, or of what stands in their place → (B, T, D)."""
        return self.norm(x + self.positions(tokens, positions))


class NormalisedTokens(Embedding):
    """The same, with the norm in front of the positions."""

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, D), without their positions."""
        return self.norm(self.tokens(tokens))

    def place(self, x: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """(B, T, D) of tokens → (B, T, D)."""
        return x + self.positions(tokens, positions)


class DecodedPositions(PositionTable):
    """FSMT's for a target, token by token: a padding token has the place before its own."""

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(B, T) tokens at (B or 1, T) positions → (B, T, D)."""
        rows = positions + self.offset - (tokens == (self.padding or 0)).long()
        return self.table[rows.clamp(max=self.table.shape[0] - 1)]


def position_table(config: Config, spread: type[PositionTable] = PositionTable) -> PositionTable:
    """The form's table.

    Args:
        spread: Class of one of spread sinusoids behind the padding token's.
    """
    count, width, padding = config.positions, config.width, config.pad_token_id
    if config.form.positions is Positions.LEARNED:
        first = config.form.first_row
        return PositionTable(nn.Parameter(torch.zeros(count + first, width)), first)
    if config.form.positions is Positions.SINUSOIDS:
        return PositionTable(sinusoids(count, width))
    if config.form.positions is Positions.SPREAD_FROM_ZERO:
        return PositionTable(spread_sinusoids(count, width))
    table = spread_sinusoids(padding + 1 + count, width)
    table[padding] = 0
    positions = spread(table, padding + 1, padding)
    if config.form.positions is Positions.SAVED_SPREAD_SINUSOIDS:
        positions.register_buffer("table", table)
    return positions


class Encoder(nn.Module):
    """Source tokens → source representations."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.embedding = Embedding(config, tokens)
        self.blocks = make_encoder_blocks(config.encoder, is_norm_first=config.form.is_norm_first)
        self.norm = make_optional_norm(config, is_there=config.form.has_final_norm)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, D); values at padding are meaningless."""
        return self.read(self.embed(tokens), tokens, lengths)

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, S) → (B, S, D)."""
        return self.embedding.embed(tokens)

    def read(self, x: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The same, with vectors (B, S, D) in place of the tokens' own."""
        x = self.embedding.place(x, tokens, torch.arange(tokens.shape[1])[None])
        for block in self.blocks:
            x = block(x, lengths)
        return self.norm(x)


class Decoder(TransformerDecoder):
    """Target tokens and the source's keys and values → scores of the next token."""

    output: Tensor
    output_bias: Tensor | None

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.heads = config.decoder.heads
        self.vocabulary_size = config.vocabulary_size
        embedding = NormalisedTokens if config.form.are_targets_normalised else Embedding
        self.embedding = embedding(config, tokens)
        if config.form.positions is Positions.SAVED_SPREAD_SINUSOIDS:
            self.embedding.positions = position_table(config, DecodedPositions)
        is_first, read = config.form.is_norm_first, config.source_width
        self.blocks = make_decoder_blocks(config.decoder, is_norm_first=is_first, source_width=read)
        self.norm = make_optional_norm(config, is_there=config.form.has_final_norm)
        self.output = nn.Parameter(torch.zeros(self.vocabulary_size, config.width))
        bias = torch.zeros(self.vocabulary_size) if config.form.has_output_bias else None
        self.register_buffer("output_bias", bias)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D)."""
        return self.embedding(tokens, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        return tied_logits(hidden, self.output, self.output_bias)


class Bart(nn.Module):
    """Both stacks.

    Args:
        encoder: Table of the source's tokens → an encoder other than BART's.
    """

    def __init__(
        self, config: Config, encoder: Callable[[nn.Embedding], nn.Module] | None = None
    ) -> None:
        super().__init__()
        source = nn.Embedding(config.source_vocabulary_size, config.width)
        target = source
        if not config.has_one_table:
            target = nn.Embedding(config.vocabulary_size, config.width)
        self.encoder = encoder(source) if encoder else Encoder(config, source)
        self.decoder = Decoder(config, target)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; a base model's lack the prefix `model.`."""
    form, one = config.form, config.has_one_table
    source = "encoder.embedding.tokens"
    target = source if one else "decoder.embedding.tokens"
    table: dict[str, Entry] = {
        "model.shared": source if one else None,
        "model.encoder.embed_tokens": source,
        "model.decoder.embed_tokens": target,
        "model.encoder.version": None,  # which fairseq stored
        "model.decoder.version": None,
    }
    table |= _stack("encoder", form) | decoder_names(form)
    table |= {name.removeprefix("model."): entry for name, entry in table.items()}
    table["lm_head.weight"] = "decoder.output"
    bias = WeightLayout(("decoder.output_bias",), is_squeezed=True)
    table["final_logits_bias"] = bias if form.has_output_bias else None
    optional = {"decoder.output_bias"}
    if form.positions not in (Positions.LEARNED, Positions.SPREAD_SINUSOIDS):
        optional |= {f"{side}.embedding.positions.table" for side in ("encoder", "decoder")}
    tied = {"decoder.output": f"{target}.weight"} if config.has_tied_output else {}
    return Rename(table, frozenset(optional), tied=tied)


def decoder_names(form: Form) -> dict[str, Entry]:
    """Names of the decoder's blocks and norms."""
    table = _stack("decoder", form)
    table |= projections("model.decoder.layers.*.encoder_attn", "decoder.blocks.*.cross")
    table["model.decoder.layers.*.encoder_attn_layer_norm"] = "decoder.blocks.*.cross_norm"
    return table


def _stack(side: str, form: Form) -> dict[str, Entry]:
    """Names that encoder and decoder share."""
    theirs, ours = f"model.{side}.layers.*", f"{side}.blocks.*"
    table: dict[str, Entry] = {
        f"model.{side}.embed_positions.weight": f"{side}.embedding.positions.table",
        f"{theirs}.self_attn_layer_norm": f"{ours}.attention_norm",
        f"{theirs}.fc1": f"{ours}.mlp.up",
        f"{theirs}.fc2": f"{ours}.mlp.down",
        f"{theirs}.final_layer_norm": f"{ours}.mlp_norm",
    }
    if form.positions is Positions.SPREAD_SINUSOIDS:
        # Computed: files of older versions hold it, some with rows for other lengths.
        del table[f"model.{side}.embed_positions.weight"]
        table[f"model.{side}.embed_positions.weights"] = None
        table[f"model.{side}.embed_positions._float_tensor"] = None  # of TrOCR's older files
    if form.has_embedding_norm:
        table[f"model.{side}.layernorm_embedding"] = f"{side}.embedding.norm"
    if form.has_final_norm:
        table[f"model.{side}.layer_norm"] = f"{side}.norm"
    return table | projections(f"{theirs}.self_attn", f"{ours}.attention")


# ----------------------------------------------------------------------------------- declaration


def declare(name: str, tasks: Mapping[str, Section], form: Form | None = None) -> Architecture:
    """The declaration of a model of this network.

    Args:
        form: A paper's other than BART's.
    """
    return Architecture(
        name=name,
        tasks=tasks,
        read_config=partial(read_config, form=form),
        build=Bart,
        rename=rename,
        graphs=lambda model, image: text_to_text_graphs(model, model.encoder.embedding.tokens),
        details=lambda network: alignment(network.decoder),
    )


_TABLE = "embedding.tokens"
BART = with_answers(declare("bart", {"generate": no_section}), _TABLE, start=2)

MBART_FORM = Form(is_norm_first=True, has_final_norm=True)
MBART = with_answers(
    declare("mbart", {"translate": token_section}, MBART_FORM), _TABLE, start="last"
)
"""Liu et al. 2020, "Multilingual Denoising Pre-training for Neural Machine Translation", §2.2
(arXiv 2001.08210); Tang et al. 2020, "Multilingual Translation with Extensible Multilingual
Pretraining and Finetuning" (mBART-50, arXiv 2008.00401): `facebook/mbart-large-50-*-mmt`,
`facebook/mbart-large-en-ro`.

mBART-50 reads `[language] text </s>` and begins the output with the target's language; the first
mBART reads `text </s> [language]` and its decoder starts from the one target of the checkpoint."""

_NORMS_FIRST = Form(
    is_norm_first=True, has_embedding_norm=False, has_final_norm=True, pad_token_id=0
)
_PEGASUS_FORM = replace(_NORMS_FIRST, positions=Positions.SINUSOIDS)
PEGASUS = declare("pegasus", {"generate": no_section}, _PEGASUS_FORM)
"""Zhang et al. 2020, "PEGASUS: Pre-training with Extracted Gap-sentences for Abstractive
Summarization", §3 (arXiv 1912.08777): `google/pegasus-*`."""

M2M_100_FORM = Form(
    positions=Positions.SPREAD_SINUSOIDS,
    is_norm_first=True,
    has_embedding_norm=False,
    has_final_norm=True,
    has_output_bias=False,
    activation="relu",
    is_embedding_scaled=True,
)
M2M_100 = declare("m2m_100", {"translate": token_section}, M2M_100_FORM)
"""Fan et al. 2021, "Beyond English-Centric Multilingual Machine Translation", §3 (arXiv
2010.11125); NLLB Team 2022, "No Language Left Behind" (arXiv 2207.04672), its dense models:
`facebook/m2m100_*`, `facebook/nllb-200-*`.

Sources are `[language] text </s>`, outputs begin with the target's language."""

_BLENDERBOT_FORM = replace(_NORMS_FIRST, first_row=0)
BLENDERBOT = declare("blenderbot", {"generate": no_section}, _BLENDERBOT_FORM)
"""Roller et al. 2021, "Recipes for Building an Open-Domain Chatbot", §4.1 (arXiv 2004.13637):
`facebook/blenderbot-400M-distill`, `-1B-distill`, `-3B`."""

BLENDERBOT_SMALL = declare(
    "blenderbot-small",
    {"generate": no_section},
    Form(first_row=0, are_targets_normalised=True, pad_token_id=0),
)
"""The same paper's model of 90 million parameters: `facebook/blenderbot_small-90M`."""

PLBART = declare("plbart", {"generate": no_section}, Form(is_embedding_scaled=True))
"""Ahmad et al. 2021, "Unified Pre-training for Program Understanding and Generation", §2 (arXiv
2103.06333): `uclanlp/plbart-*`."""


def read_mvp(values: Mapping[str, Any]) -> Config:
    """The configuration; prompts in front of the keys of every layer are refused."""
    ConfigReader(values).refuse_unless(use_prompt=False)
    return read_config(values)


MVP = with_answers(
    replace(declare("mvp", {"generate": no_section}), read_config=read_mvp), _TABLE, start=2
)
"""Tang et al. 2022, "MVP: Multi-task Supervised Pre-training for Natural Language Generation", §3
(arXiv 2206.12131): `RUCAIBox/mvp`, `RUCAIBox/mtl-*`; those with prompts of a task are refused."""


# ------------------------------------------------------------------------------------------ FSMT


def read_fsmt(values: Mapping[str, Any]) -> Config:
    """The configuration; source and target have a vocabulary each."""
    names, untied = {"vocab_size": "tgt_vocab_size"}, {"tie_word_embeddings": False}
    reader = ConfigReader(values, defaults=untied, names=names)
    reader.refuse_heads("ForConditionalGeneration")
    reader.refuse_unless(is_encoder_decoder=True)
    form = replace(
        M2M_100_FORM,
        positions=Positions.SAVED_SPREAD_SINUSOIDS,
        is_norm_first=False,
        has_final_norm=False,
    )
    config = read_sizes(reader, form)
    source = reader.integer("src_vocab_size")
    if config.has_one_table and source != config.vocabulary_size:
        raise CheckpointError(
            f"config.json: tie_word_embeddings needs one vocabulary, not src_vocab_size = {source} "
            f"and tgt_vocab_size = {config.vocabulary_size}"
        )
    return replace(config, source_vocabulary_size=source)


def rename_fsmt(config: Config) -> Rename:
    """BART's names → ours; an output that the file lacks is the target's table, as in fairseq."""
    names = rename(replace(config, has_tied_output=True))
    for prefix in ("model.", ""):
        names.table[f"{prefix}decoder.output_projection.weight"] = names.table["lm_head.weight"]
    return names


FSMT = replace(
    declare("fsmt", {"translate": language_pairs}),
    read_config=read_fsmt,
    rename=rename_fsmt,
    tokenizer="moses_pair",
)
"""Ng et al. 2019, "Facebook FAIR's WMT19 News Translation Task Submission", §3 (arXiv 1907.06616):
`facebook/wmt19-*` and other translators of fairseq (`allenai/wmt16-en-de-dist-*`).

Its `transformers` class reads all of a prompt's tokens of the output without a causal mask."""


# ------------------------------------------------------------------------------- BigBird-Pegasus


def read_bigbird_pegasus(values: Mapping[str, Any]) -> Config:
    """The configuration; its sparse attention is full for the sources that it allows."""
    reader = ConfigReader(values)
    form = replace(
        _BLENDERBOT_FORM,
        has_attention_bias=reader.flag("use_bias", False),
        activation="gelu_new",
        is_embedding_scaled=True,
    )
    config = read_config(values, form)
    kind = reader.choice("attention_type", ("block_sparse", "original_full"), "block_sparse")
    if kind == "original_full":
        return config
    blocks = 5 + 2 * reader.integer("num_random_blocks", 3)
    return replace(config, most_source_tokens=blocks * reader.integer("block_size", 64))


def rename_bigbird_pegasus(config: Config) -> Rename:
    """BART's names → ours; the encoder's attention and the final norms have others."""
    names = rename(config)
    table = {name: entry for name, entry in names.table.items() if ".layer_norm" not in name}
    theirs, ours = "model.encoder.layers.*.self_attn", "encoder.blocks.*.attention"
    own: dict[str, Entry] = {
        **projections(theirs, ours, "self.query self.key self.value output"),
        **{f"model.{side}.layernorm_embedding": f"{side}.norm" for side in ("encoder", "decoder")},
    }
    own |= {name.removeprefix("model."): entry for name, entry in own.items()}
    return Rename(own | table, names.optional, names.tied)


BIGBIRD_PEGASUS = with_answers(
    replace(
        declare("bigbird_pegasus", {"generate": no_section}),
        read_config=read_bigbird_pegasus,
        rename=rename_bigbird_pegasus,
    ),
    _TABLE,
    start=2,
)
"""Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", §2 (arXiv 2007.14062), over
Pegasus: `google/bigbird-pegasus-large-*`.

`transformers` attends in sparse blocks, some of them random, from more than (5 + 2 r) b tokens on
(704 in the published files), and fully up to there. Longer sources are refused."""


# ---------------------------------------------------------------------------------------- Marian


def read_marian(values: Mapping[str, Any]) -> Config:
    """The configuration; with shared embeddings there is one table for source, target and output.

    A tied output uses the target's table.
    """
    reader = ConfigReader(values)
    reader.refuse_unless(is_encoder_decoder=True, add_bias_logits=False)
    form = Form(positions=Positions.SINUSOIDS, has_embedding_norm=False, pad_token_id=58100)
    config = read_sizes(reader, form)
    shared = reader.flag("share_encoder_decoder_embeddings", True)
    if shared and not config.has_tied_output:
        raise CheckpointError(
            "config.json: share_encoder_decoder_embeddings needs tie_word_embeddings"
        )
    if shared:
        return config
    target = reader.integer("decoder_vocab_size", config.vocabulary_size)
    return replace(config, vocabulary_size=target, has_one_table=False)


def rename_marian(config: Config) -> Rename:
    """BART's names → ours; a tied output of the file must be the target's table."""
    names = rename(config)
    if config.has_tied_output:
        names.table["lm_head.weight"] = names.tied["decoder.output"]
    return names


MARIAN = replace(
    declare("marian", {"translate": language_pairs}),
    read_config=read_marian,
    rename=rename_marian,
    tokenizer="sentencepiece_pair",
)
"""Vaswani et al. 2017, "Attention Is All You Need", §3 (arXiv 1706.03762), as trained with Marian
(Junczys-Dowmunt et al. 2018, arXiv 1804.00344) for OPUS-MT (Tiedemann 2020):
`Helsinki-NLP/opus-mt-*`.

Sinusoids hold the sines in the first half and the cosines in the second; the decoder starts from
the padding token."""
