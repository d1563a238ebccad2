"""Translator with a bidirectional GRU encoder and an attentive GRU decoder.

Paper: Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning to Align and
Translate", §3 and appendix A (arXiv 1409.0473).
Checkpoints: `model_type: bahdanau`, our own format; `transformers` has no such model.

Legend: B sentences, R rows (B x beams), S source positions, E width of a word, H width of a state,
A width of the attention, L width of the readout, V vocabulary.

Differences from the paper: the decoder starts from a start token instead of a zero vector; the
readout looks at the new state s_i, as §3.1 (4) has it, where the formula of t̃ in §A.2.2 prints the
one before; every sum has the bias that the paper leaves out of its formulas; one vocabulary of
words serves both languages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Fields, Graphs, Lowering, language_pairs
from export.layers.additive_attention import AdditiveAttention
from export.layers.recurrent import BidirectionalGRU, GatedUnit
from export.rename import Rename
from export.twin import Twin
from serving.bundle import AlignmentSpec, Graph, Growth, ImageSpec, Limits, Role, State
from serving.bundle import Tensor as Port

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """What `config.json` says of the network."""

    vocabulary_size: int
    word_width: int
    hidden_width: int
    attention_width: int
    readout_width: int
    max_positions: int
    """A recurrence has no table that ends; this says how far it was trained, on both sides."""

    @property
    def limits(self) -> Limits:
        """Source and target each."""
        return Limits(max_input_tokens=self.max_positions, max_total_tokens=self.max_positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration.

    Raises:
        CheckpointError: a field is missing or is no size.
    """
    fields = Fields(values)
    return Config(
        vocabulary_size=fields.integer("vocab_size"),
        word_width=fields.integer("embedding_size"),
        hidden_width=fields.integer("hidden_size"),
        attention_width=fields.integer("attention_size"),
        readout_width=fields.integer("readout_size"),
        max_positions=fields.integer("max_positions"),
    )


# --------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Source words → annotations (§3.2, §A.2.1)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary_size, config.word_width)
        self.gru = BidirectionalGRU(config.word_width, config.hidden_width)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, 2·H), zeros at padding."""
        return self.gru(self.words(tokens), lengths)


class Decoder(nn.Module):
    """Target words and annotations → scores of the next word (§3.1, §A.2.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        words, hidden, seen = config.word_width, config.hidden_width, 2 * config.hidden_width
        self.vocabulary_size = config.vocabulary_size
        self.words = nn.Embedding(config.vocabulary_size, words)
        self.initial = nn.Linear(hidden, hidden)
        self.attention = AdditiveAttention(hidden, seen, config.attention_width)
        self.unit = GatedUnit(words + seen, hidden)
        self.readout = nn.Linear(hidden + words + seen, 2 * config.readout_width)
        self.output = nn.Linear(config.readout_width, config.vocabulary_size)

    def start(self, annotations: Tensor) -> Tensor:
        """(B, S, 2·H) → s_0 (B, H), from what was read leftward at the first word."""
        leftward = annotations[:, 0].chunk(2, dim=-1)[1]
        return self.initial(leftward).tanh()

    def advance(
        self, words: Tensor, state: Tensor, annotations: Tensor, keys: Tensor, source: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(R, E) words → new states (R, H), contexts (R, 2·H) and attention (R, S)."""
        context, attention = self.attention(state, keys, annotations, source)
        fed = self.unit.input(torch.cat([words, context], dim=-1))
        return self.unit(fed, state), context, attention

    def logits(self, words: Tensor, state: Tensor, context: Tensor) -> Tensor:
        """Widths E, H and 2·H → V, by a layer of maxout pairs (Goodfellow et al. 2013)."""
        deep = self.readout(torch.cat([state, words, context], dim=-1))
        return self.output(deep.unflatten(-1, (-1, 2)).amax(dim=-1))


class Bahdanau(nn.Module):
    """Both halves."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)


# ---------------------------------------------------------------------------------------- rename


def rename(config: Config) -> Rename:
    """A checkpoint has our own names."""
    units = ("encoder.gru.rightward", "encoder.gru.leftward", "decoder.unit")
    names = [f"{unit}.{part}" for unit in units for part in ("input", "gates", "candidate")]
    names += [f"decoder.attention.{part}" for part in ("query", "key", "score")]
    names += [f"decoder.{part}" for part in ("words", "initial", "readout", "output")]
    return Rename({name: name for name in ("encoder.words", *names)})


# ---------------------------------------------------------------------------------------- graphs


class Admit(nn.Module):
    """`admit`: a sentence → what the decoder looks at, and its first state."""

    def __init__(self, network: Bahdanau) -> None:
        super().__init__()
        self.encoder, self.decoder = network.encoder, network.decoder

    def forward(self, tokens: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        """(B, S) → annotations (B, S, 2·H), keys (B, S, A) and the state (B, H)."""
        annotations = self.encoder(tokens, source)
        keys = self.decoder.attention.memorise(annotations)
        return annotations, keys, self.decoder.start(annotations)


class Step(nn.Module):
    """`step`: one word a row."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, tokens: Tensor, source: Tensor, state: Tensor, annotations: Tensor, keys: Tensor
    ) -> tuple[Tensor, ...]:
        """(R, 1) → logits (R, V), the new state (R, H) and the attention (R, S)."""
        words = self.decoder.words(tokens[:, 0])
        state, context, attention = self.decoder.advance(words, state, annotations, keys, source)
        return self.decoder.logits(words, state, context), state, attention


def graphs(model: Bahdanau, image: ImageSpec | None = None) -> Graphs:
    """`admit` (B, S dynamic) and `step` (R, B, S dynamic; one token a call)."""
    config = model.config
    source = Port(name="source", dtype="int32", shape=("B",), role=Role.SOURCE)
    annotations = _state_port("annotations", "B", "S", 2 * config.hidden_width)
    keys = _state_port("keys", "B", "S", config.attention_width)
    admit = Graph(
        file="admit.onnx",
        inputs=(
            Port(name="source_tokens", dtype="int64", shape=("B", "S"), role=Role.SOURCE_TOKENS),
            source,
        ),
        outputs=(annotations, keys, _state_port("initial_state", "B", config.hidden_width)),
    )
    step = Graph(
        file="step.onnx",
        inputs=(
            Port(name="tokens", dtype="int64", shape=("R", 1), role=Role.TOKENS),
            source,
            _state_port("state", "R", config.hidden_width),
            annotations,
            keys,
        ),
        outputs=(
            Port(
                name="logits", dtype="float32", shape=("R", config.vocabulary_size),
                role=Role.LOGITS,
            ),
            _state_port("next_state", "R", config.hidden_width),
            Port(name="attention", dtype="float32", shape=("R", "S"), role=Role.EMIT),
        ),
        max_tokens_per_call=1,
    )  # fmt: skip
    lowerings = {
        "admit": Lowering(Admit(model), admit),
        "step": Lowering(Step(model.decoder), step),
    }
    states = (
        State(
            name="state", growth=Growth.REPLACE, dtype="float32", shape=("R", config.hidden_width),
            step_input="state", step_output="next_state", admit_output="initial_state",
        ),
        _held(annotations),
        _held(keys),
    )  # fmt: skip
    return Graphs(lowerings, states, source_vocabulary=config.vocabulary_size)


def _state_port(name: str, *shape: int | str) -> Port:
    return Port(name=name, dtype="float32", shape=shape, role=Role.STATE)


def _held(port: Port) -> State:
    return State(
        name=port.name,
        growth=Growth.HOLD,
        dtype="float32",
        shape=port.shape,
        step_input=port.name,
        admit_output=port.name,
    )


# ------------------------------------------------------------------------------------------ twin

_TINY = {
    "vocab_size": 64,
    "embedding_size": 24,
    "hidden_size": 20,
    "attention_size": 16,
    "readout_size": 12,
    "max_positions": 32,
    "decoder_start_token_id": 2,
    "eos_token_id": 0,
    "pad_token_id": 3,
}
TWIN = Twin(
    reference="tests.export.bahdanau_paper:Paper",
    configs={
        "plain": _TINY,
        "odd": _TINY
        | {"embedding_size": 9, "hidden_size": 13, "attention_size": 7, "readout_size": 5},
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="bahdanau",
    tasks={"translate": language_pairs},
    read_config=read_config,
    build=Bahdanau,
    rename=rename,
    graphs=graphs,
    tokenizer="tokenizers",
    twin=TWIN,
    details=lambda network: {"alignment": AlignmentSpec(over="tokens")},
)
