"""Recurrent language models.

Papers: Mikolov et al. 2010, "Recurrent neural network based language model", §2; with LSTM cells
Graves 2013, "Generating Sequences With Recurrent Neural Networks", §2 (arXiv 1308.0850).
Checkpoints: `model_type: rnn-lm`, our own format; `transformers` has no such model. Tensors have
the names of `torch.nn.Embedding`, `RNN`, `LSTM` or `GRU` and `Linear` in a module with the
attributes `embedding`, `rnn` and `output`; cells that torch lacks are named alike.

Legend: R rows, E width of a word, H width of a state, V vocabulary.

Differences from the papers: the state is not carried over from one text to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from export.architecture import Architecture, no_section
from export.config.config_reader import reading
from export.config.weight_names import Rename
from export.decoder_graphs.language_model import LanguageModel
from export.decoder_graphs.recurrent import RecurrentDecoder, recurrent_graphs
from export.layers.recurrence.cells import States
from export.layers.recurrence.recurrent_stack import RecurrentConfig
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


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """The names of `torch.nn` → ours."""
    names = {f"rnn.{name}": f"decoder.rnn.{own}" for name, own in config.tensor_names().items()}
    return Rename({"embedding": "decoder.words", "output": "decoder.output", **names})


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="rnn_lm",
    tasks={"generate": no_section},
    read_config=read_config,
    build=lambda config: LanguageModel(Decoder(config)),
    rename=rename,
    graphs=lambda model, image: recurrent_graphs(model.decoder),
)
