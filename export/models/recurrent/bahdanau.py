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

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs, language_pairs
from export.config.config_reader import key, reading
from export.config.weight_names import Rename
from export.decoder_graphs.recurrent import RecurrentDecoder, recurrent_graphs
from export.decoder_graphs.source import text_source
from export.layers.attention.additive_attention import AdditiveAttention
from export.layers.recurrence.cells import BidirectionalGRU, GatedUnit
from inference.bundle.inputs import AlignmentSpec, ImageSpec
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    vocabulary_size: int = key("vocab_size")
    word_width: int = key("embedding_size")
    hidden_width: int = key("hidden_size")
    attention_width: int = key("attention_size")
    readout_width: int = key("readout_size")
    max_positions: int = key("max_positions")
    """Longest source and target in training; a recurrence has no position table."""

    @property
    def limits(self) -> Limits:
        """Source and target each."""
        return Limits(max_input_tokens=self.max_positions, max_total_tokens=self.max_positions)


read_config = reading(Config)


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


class Decoder(RecurrentDecoder):
    """Target words and annotations → scores of the next word (§3.1, §A.2.2)."""

    attention: AdditiveAttention

    def __init__(self, config: Config) -> None:
        super().__init__()
        words, hidden, seen = config.word_width, config.hidden_width, 2 * config.hidden_width
        self.vocabulary_size = config.vocabulary_size
        self.state_widths = {"state": hidden}
        self.words = nn.Embedding(config.vocabulary_size, words)
        self.initial = nn.Linear(hidden, hidden)
        self.attention = AdditiveAttention(hidden, seen, config.attention_width)
        self.unit = GatedUnit(words + seen, hidden)
        self.readout = nn.Linear(hidden + words + seen, 2 * config.readout_width)
        self.output = nn.Linear(config.readout_width, config.vocabulary_size)

    def initial_states(self, annotations: Tensor) -> tuple[Tensor]:
        """(B, S, 2·H) → s_0 (B, H), from what was read leftward at the first word."""
        leftward = annotations[:, 0].chunk(2, dim=-1)[1]
        return (self.initial(leftward).tanh(),)

    def forward(
        self,
        tokens: Tensor,
        states: tuple[Tensor, ...],
        annotations: Tensor,
        keys: Tensor,
        source: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """(R,) words → logits (R, V), the new state (R, H) and the attention (R, S)."""
        words = self.words(tokens)
        state, context, attention = self.advance(words, states[0], annotations, keys, source)
        return self.logits(words, state, context), (state,), attention

    def advance(
        self, words: Tensor, state: Tensor, annotations: Tensor, keys: Tensor, source: Tensor | None
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


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """A checkpoint has our own names."""
    units = ("encoder.gru.rightward", "encoder.gru.leftward", "decoder.unit")
    names = [f"{unit}.{part}" for unit in units for part in ("input", "gates", "candidate")]
    names += [f"decoder.attention.{part}" for part in ("query", "key", "score")]
    names += [f"decoder.{part}" for part in ("words", "initial", "readout", "output")]
    return Rename({name: name for name in ("encoder.words", *names)})


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Bahdanau, image: ImageSpec | None = None) -> Graphs:
    """`admit` (B, S dynamic) and `step` (R, B, S dynamic; one token a call)."""
    source = text_source(model.config.vocabulary_size)
    return recurrent_graphs(model.decoder, model.encoder, source)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="bahdanau",
    tasks={"translate": language_pairs},
    read_config=read_config,
    build=Bahdanau,
    rename=rename,
    graphs=graphs,
    details=lambda network: {"alignment": AlignmentSpec(over="tokens")},
)
