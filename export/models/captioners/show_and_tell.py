"""Image captioner without attention: a small CNN, whose vector is the first input of an LSTM.

Paper: Vinyals et al. 2015, "Show and Tell", §3 (arXiv 1411.4555); numbers in brackets below are its
equations.
Checkpoints: `model_type: show-and-tell`, our own format; `transformers` has no such model. The LSTM
has the names of `torch.nn.LSTMCell`.

Legend: B images, R rows (B x beams), C width of an image's vector, E width of a word, H width of
the LSTM, V vocabulary.

Differences from the paper: a small CNN with batch normalisation instead of Inception; an image's
vector is its last grid laid out as one row, because a mean over cells would lose their places; the
LSTM is the usual one, with a tanh between memory and output that (8) leaves out and biases.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from export.architecture import Architecture, Graphs, no_section
from export.config.config_reader import reading
from export.config.weight_names import Rename
from export.decoder_graphs.recurrent import RecurrentDecoder, recurrent_graphs
from export.layers.images.convolutions import ConvolutionalEncoder
from export.layers.recurrence.cells import LSTM, States
from export.models.captioners.captioner_config import CaptionerConfig, prepare_source
from inference.bundle.inputs import ImageSpec

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config(CaptionerConfig):
    """The network's part of `config.json`."""

    @property
    def image_width(self) -> int:
        """C."""
        return self.convolutions.cells * self.convolutions.width


read_config = reading(Config)


# --------------------------------------------------------------------------------------- network


class Encoder(ConvolutionalEncoder):
    """Pixels → one vector an image."""

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, or (B, 3, height, width) normalised → (B, C)."""
        return self.features(pixels).flatten(1)


class Decoder(RecurrentDecoder):
    """A word and the states → scores of the next word."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vocabulary_size = config.vocabulary_size
        self.state_widths = dict.fromkeys(LSTM.states, config.hidden_width)
        self.image = nn.Linear(config.image_width, config.word_width)
        self.words = nn.Embedding(config.vocabulary_size, config.word_width)
        self.lstm = LSTM(config.word_width, config.hidden_width)
        self.output = nn.Linear(config.hidden_width, config.vocabulary_size)

    def initial_states(self, context: Tensor) -> States:
        """(B, C) → (B, H) each: what the LSTM keeps of the image, which it reads once (10)."""
        image = self.image(context)
        return self.lstm(self.lstm.feed(image), self.lstm.initial(image))

    def forward(self, tokens: Tensor, states: States, *held: Tensor) -> tuple[Tensor, States]:
        """(R,) words and (R, H) each → logits (R, V) and the new states (11), (12)."""
        after = self.lstm(self.lstm.feed(self.words(tokens)), states)
        return self.output(after[0]), after


class ShowAndTell(nn.Module):
    """Both halves."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.convolutions)
        self.decoder = Decoder(config)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """Ours, with the names of `torch.nn.LSTMCell` in the LSTM."""
    lstm = {"ih": "input", "hh": "recurrence"}
    return Rename(
        {
            "convolutions.*.filter": "encoder.convolutions.*.filter",
            "convolutions.*.norm": "encoder.convolutions.*.norm",
            "image": "decoder.image",
            "embedding": "decoder.words",
            "output": "decoder.output",
        }
        | {
            f"lstm.{leaf}_{theirs}": f"decoder.lstm.{ours}.{leaf}"
            for theirs, ours in lstm.items()
            for leaf in ("weight", "bias")
        }
    )


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: ShowAndTell, image: ImageSpec | None) -> Graphs:
    """`admit` (B dynamic) and `step` (R dynamic; one token a call)."""
    source = prepare_source(model, image)
    return recurrent_graphs(model.decoder, model.encoder, source)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="show-and-tell",
    tasks={"caption": no_section},
    read_config=read_config,
    build=ShowAndTell,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.convolutions.image,
)
