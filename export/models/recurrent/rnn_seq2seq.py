"""Recurrent translators without attention: what a decoder gets of its source is one vector.

Papers: Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks", §2
(arXiv 1409.3215), for `context: initial`; Cho et al. 2014, §2.2 (arXiv 1406.1078), for `final`.
Checkpoints: `model_type: rnn-seq2seq`, our own format; `transformers` has no such model. Tensors of
the recurrent layers have the names of `torch.nn.RNN`, `LSTM` and `GRU`.

`context` says what a decoder sees of its source. `initial`: the encoder's final states, as its own
first ones; `final`: these at every step too; `mean`: the mean of the encoder's states at each step.

Legend: B sentences, R rows (B x beams), S source positions, E width of a word, H width of a state,
C width of the context, V vocabulary.

Differences from the papers: every first state is made of the context by one layer and tanh, so that
encoder and decoder may differ in width and layers; the source is read as it stands, or in both
directions (Sutskever reverses it); no maxout readout (Cho).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs, language_pairs
from export.config.config_reader import key, reading
from export.config.weight_names import Entry, Rename
from export.decoder_graphs.recurrent import RecurrentDecoder, recurrent_graphs
from export.decoder_graphs.source import text_source
from export.layers.recurrence.cells import States
from export.layers.recurrence.recurrent_stack import RecurrentConfig
from export.text_encoders.pooling import final_states, mean
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config

CONTEXTS = ("initial", "final", "mean")


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`; encoder and decoder have the same sizes."""

    recurrent: RecurrentConfig = key()
    is_bidirectional: bool = key("bidirectional", False)
    context: str = key("context", kind="choice", supported=CONTEXTS)

    @property
    def limits(self) -> Limits:
        """Source and target each."""
        longest = self.recurrent.max_positions
        return Limits(max_input_tokens=longest, max_total_tokens=longest)


read_config = reading(Config)


# --------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Source words → the context."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.takes_mean = config.context == "mean"
        self.is_bidirectional = config.is_bidirectional
        sizes = config.recurrent
        self.words = nn.Embedding(sizes.vocabulary_size, sizes.word_width)
        self.rnn = sizes.stack(is_bidirectional=config.is_bidirectional)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S), (B,) → (B, C)."""
        states = self.rnn(self.words(tokens), lengths)
        if self.takes_mean:
            return mean(states, lengths)
        return final_states(states, lengths, is_bidirectional=self.is_bidirectional)


class Decoder(RecurrentDecoder):
    """A word, the states and perhaps the context → scores of the next word."""

    def __init__(self, config: Config, context_width: int) -> None:
        super().__init__()
        sizes = config.recurrent
        self.vocabulary_size = sizes.vocabulary_size
        self.state_widths = sizes.state_widths
        self.context_width = None if config.context == "initial" else context_width
        self.words = nn.Embedding(sizes.vocabulary_size, sizes.word_width)
        self.initial = nn.Linear(context_width, sum(self.state_widths.values()))
        self.rnn = sizes.stack(sizes.word_width + (self.context_width or 0))
        self.output = nn.Linear(sizes.hidden_width, sizes.vocabulary_size)

    def initial_states(self, context: Tensor) -> States:
        """(B, C) → (B, H) each."""
        return self.initial(context).tanh().chunk(len(self.state_widths), dim=-1)

    def forward(self, tokens: Tensor, states: States, *held: Tensor) -> tuple[Tensor, States]:
        """(R,) words, (R, H) each and perhaps (B, C) → logits (R, V) and the new states."""
        x = self.words(tokens)
        for context in held:
            beams = x.reshape(context.shape[0], -1, x.shape[-1])  # (B, W, E)
            shared = context[:, None].expand(-1, beams.shape[1], -1)
            x = torch.cat([beams, shared], dim=-1).flatten(0, 1)
        hidden, after = self.rnn.step(x, states)
        return self.output(hidden), after


class Seq2Seq(nn.Module):
    """Both halves."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config, self.encoder.rnn.output_width)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """Ours, with the names of `torch.nn` in the recurrent layers."""
    read = config.recurrent.tensor_names(is_bidirectional=config.is_bidirectional)
    written = config.recurrent.tensor_names()
    table: dict[str, Entry] = {f"encoder.rnn.{k}": f"encoder.rnn.{own}" for k, own in read.items()}
    table |= {f"decoder.rnn.{name}": f"decoder.rnn.{own}" for name, own in written.items()}
    table |= {"encoder.embedding": "encoder.words", "decoder.embedding": "decoder.words"}
    return Rename(table | {name: name for name in ("decoder.initial", "decoder.output")})


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Seq2Seq, image: ImageSpec | None = None) -> Graphs:
    """`admit` (B, S dynamic) and `step` (R, B dynamic; one token a call)."""
    source = text_source(model.config.recurrent.vocabulary_size)
    return recurrent_graphs(model.decoder, model.encoder, source)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="rnn_seq2seq",
    tasks={"translate": language_pairs},
    read_config=read_config,
    build=Seq2Seq,
    rename=rename,
    graphs=graphs,
)
