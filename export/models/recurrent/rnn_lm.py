"""Recurrent language models, and Long Short-Term Memory-Networks, which attend to all their states.

Papers: Mikolov et al. 2010, "Recurrent neural network based language model", §2; with LSTM cells
Graves 2013, "Generating Sequences With Recurrent Neural Networks", §2 (arXiv 1308.0850); Cheng,
Dong & Lapata 2016, "Long Short-Term Memory-Networks for Machine Reading", §3 (arXiv 1601.06733).
Checkpoints: `model_type: rnn-lm` and `lstmn-lm`, our own formats; `transformers` has no such model.
Tensors have the names of `torch.nn.Embedding`, `RNN`, `LSTM` or `GRU` and `Linear` in a module with
the attributes `embedding`, `rnn` and `output`; cells that torch lacks are named alike. `rnn` of
`lstmn-lm` is a list of layers with `cell`, a `torch.nn.LSTMCell`, and `query`, `key` and `score`.

Legend: R rows, E width of a word, H width of a state, A width of the attention, P positions,
V vocabulary.

Differences from the papers: the state is not carried over from one text to the next; every sum of
an LSTMN has a bias, its keys' one serving all three terms of a score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from export.architecture import Architecture, no_section
from export.config.config_reader import key, reading
from export.config.weight_names import Rename
from export.decoder_graphs.language_model import LanguageModel
from export.decoder_graphs.recurrent import RecurrentDecoder, recurrent_graphs
from export.layers.attention.additive_attention import AdditiveAttention
from export.layers.recurrence.cells import LSTM, States
from export.layers.recurrence.recurrent_stack import RecurrentConfig, tensor_names
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config(RecurrentConfig):
    """The network's part of `config.json`."""

    @property
    def limits(self) -> Limits:
        """Prompt and answer together; one place is for the answer."""
        longest = self.max_positions
        return Limits(max_input_tokens=longest - 1, max_total_tokens=longest)


@dataclass(frozen=True)
class LstmnConfig(Config):
    """That of an LSTMN."""

    cell_name: str = key("cell", "lstm", "choice", supported=("lstm",))
    attention_width: int = key("attention_size")


read_config = reading(Config)


# --------------------------------------------------------------------------------------- network


class Decoder(RecurrentDecoder):
    """A word and the states → scores of the next word."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vocabulary_size = config.vocabulary_size
        self.state_widths = config.state_widths
        self.words = nn.Embedding(config.vocabulary_size, config.word_width)
        self.rnn = config.stack()
        self.output = nn.Linear(config.hidden_width, config.vocabulary_size)

    def forward(self, tokens: Tensor, states: States, *held: Tensor) -> tuple[Tensor, States]:
        """(R,) words, (R, H) each → logits (R, V) and the new states."""
        hidden, after = self.rnn.step(self.words(tokens), states)
        return self.output(hidden), after


class TapeLSTM(nn.Module):
    """An LSTM whose states before are means over those of all earlier positions, its tape."""

    def __init__(self, config: LstmnConfig, input_width: int) -> None:
        super().__init__()
        hidden = config.hidden_width
        self.cell = LSTM(input_width, hidden)
        self.attention = AdditiveAttention(input_width + hidden, hidden, config.attention_width)

    def forward(
        self, x: Tensor, summary: Tensor, keys: Tensor, tape: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One position → its state (R, H), and the three that it replaces or adds to.

        Args:
            x: (R, E), or (R, H) of the layer below.
            summary: (R, H), the mean of earlier states that the position before read: h̃.
            keys: (R, 1, P, A).
            tape: (R, 1, P, 2·H), each position's state and cell.
            lengths: (R,) int32, with this position.
        """
        past = lengths - 1
        query = torch.cat([x, summary], dim=-1)
        mixed, _ = self.attention(query, keys[:, 0], tape[:, 0], past.clamp(min=1))
        mixed = torch.where(past[:, None] > 0, mixed, 0.0)  # the first one's sum is empty
        summary, memory = mixed.chunk(2, dim=-1)
        state, cell = self.cell(self.cell.feed(x), (summary, memory))
        keys = _write(keys, past, self.attention.project_keys(state))
        return state, summary, keys, _write(tape, past, torch.cat([state, cell], dim=-1))


def _write(tape: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """(R, 1, P, N) with (R, N) at one position of each row, (R,)."""
    there = places.long()[:, None, None, None].expand(-1, 1, 1, tape.shape[-1])
    return tape.scatter(2, there, values[:, None, None])


class LstmnDecoder(RecurrentDecoder):
    """A word, and the tapes of all words before → scores of the next word."""

    def __init__(self, config: LstmnConfig) -> None:
        super().__init__()
        hidden, layers = config.hidden_width, range(config.layers)
        self.vocabulary_size = config.vocabulary_size
        self.state_widths = {f"summary_{layer}": hidden for layer in layers}
        widths = {"keys": config.attention_width, "tape": 2 * hidden}
        self.tape_widths = {f"{kind}_{i}": width for i in layers for kind, width in widths.items()}
        self.words = nn.Embedding(config.vocabulary_size, config.word_width)
        read = [config.word_width, *[hidden] * (config.layers - 1)]
        self.layers = nn.ModuleList(TapeLSTM(config, width) for width in read)
        self.output = nn.Linear(hidden, config.vocabulary_size)

    def forward(self, tokens: Tensor, states: States, *held: Tensor) -> tuple[Tensor, States]:
        """(R,) words, states and tapes, (R,) lengths → logits (R, V), new states and tapes."""
        summaries, tapes = states[: len(self.layers)], states[len(self.layers) :]
        new: list[Tensor] = []
        written: list[Tensor] = []
        x = self.words(tokens)
        for layer, summary, keys, tape in zip(
            self.layers, summaries, tapes[::2], tapes[1::2], strict=True
        ):
            x, summary, *grown = layer(x, summary, keys, tape, *held)
            new.append(summary)
            written += grown
        return self.output(x), (*new, *written)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """The names of `torch.nn` → ours."""
    names = {f"rnn.{name}": f"decoder.rnn.{own}" for name, own in config.tensor_names().items()}
    return Rename({"embedding": "decoder.words", "output": "decoder.output", **names})


def lstmn_names(config: LstmnConfig) -> Rename:
    """The names of `torch.nn` → ours."""
    parts = {name: f"attention.{name}" for name in ("query", "key", "score")}
    for theirs, ours in tensor_names(LSTM, 1).items():
        parts[f"cell.{theirs[:-3]}"] = ours.replace("layers.0.rightward", "cell")
    table = {f"rnn.*.{theirs}": f"decoder.layers.*.{ours}" for theirs, ours in parts.items()}
    return Rename({"embedding": "decoder.words", "output": "decoder.output", **table})


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="rnn_lm",
    tasks={"generate": no_section},
    read_config=read_config,
    build=lambda config: LanguageModel(Decoder(config)),
    rename=rename,
    graphs=lambda model, image: recurrent_graphs(model.decoder),
)
LSTMN = replace(
    ARCHITECTURE,
    name="lstmn_lm",
    read_config=reading(LstmnConfig),
    build=lambda config: LanguageModel(LstmnDecoder(config)),
    rename=lstmn_names,
)
