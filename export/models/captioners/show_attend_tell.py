"""Image captioner with soft attention: a small CNN and an LSTM that attends to its features.

Paper: Xu et al. 2015, "Show, Attend and Tell", §3 and §4.2 (arXiv 1502.03044); numbers in brackets
below are its equations.
Checkpoints: `model_type: show-attend-tell`, our own format; `transformers` has no such model.

Legend: B images, R rows (B x beams), N grid cells, D width of an annotation, A width of the
attention, E width of a word, H width of the LSTM, V vocabulary.

Differences from the paper: a small CNN with batch normalisation instead of VGG; annotations carry a
learned position, because a cell's features do not hold its place. The doubly stochastic
penalty is training's (`examples/show_attend_tell/train.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs, no_section
from export.config.config_reader import key, reading
from export.config.weight_names import Rename
from export.decoder_graphs.recurrent import RecurrentDecoder, recurrent_graphs
from export.layers.attention.additive_attention import AdditiveAttention
from export.layers.images.convolutions import ConvolutionalEncoder
from export.models.captioners.captioner_config import CaptionerConfig, prepare_source
from inference.bundle.inputs import AlignmentSpec, ImageSpec

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config(CaptionerConfig):
    """The network's part of `config.json`; the width of its convolutions is D."""

    attention_width: int = key("attention_size")


read_config = reading(Config)


# ---------------------------------------------------------------------------------------- blocks


class LSTMCell(nn.Module):
    """(1) to (3): gates from word, context and state, and what they let through."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inner + width, 4 * width)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """(R, inner) and states (R, H) → new states (R, H)."""
        joined = self.gates(torch.cat([x, hidden], dim=-1))
        keep, write, show, new = joined.chunk(4, dim=-1)
        cell = keep.sigmoid() * cell + write.sigmoid() * new.tanh()
        return show.sigmoid() * cell.tanh(), cell


# --------------------------------------------------------------------------------------- network


class Encoder(ConvolutionalEncoder):
    """Pixels → one annotation a cell of the grid (§3.1.1)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.convolutions)
        self.positions = nn.Parameter(torch.zeros(self.sizes.cells, self.sizes.width))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, or (B, 3, height, width) normalised → (B, N, D)."""
        return self.features(pixels) + self.positions


class Decoder(RecurrentDecoder):
    """Words and annotations → scores of the next word (§3.1.2)."""

    attention: AdditiveAttention

    def __init__(self, config: Config) -> None:
        super().__init__()
        words, hidden, width = config.word_width, config.hidden_width, config.convolutions.width
        self.vocabulary_size = config.vocabulary_size
        self.state_widths = {"hidden": hidden, "cell": hidden}
        self.words = nn.Embedding(config.vocabulary_size, words)
        self.initial_hidden = nn.Linear(width, hidden)
        self.initial_cell = nn.Linear(width, hidden)
        self.attention = AdditiveAttention(hidden, width, config.attention_width)
        self.gate = nn.Linear(hidden, width)
        self.lstm = LSTMCell(words + width, hidden)
        self.from_hidden = nn.Linear(hidden, words)
        self.from_context = nn.Linear(width, words)
        self.output = nn.Linear(words, config.vocabulary_size)

    def initial_states(self, annotations: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, D) → the first state and memory (B, H), from the mean of what is seen."""
        # A product, no sum: ONNX Runtime adds along a middle axis in another order when B is 1,
        # and an image's state would depend on its batch.
        evenly = annotations.new_full((1, 1, annotations.shape[1]), 1 / annotations.shape[1])
        mean = (evenly @ annotations).squeeze(1)
        return self.initial_hidden(mean).tanh(), self.initial_cell(mean).tanh()

    def forward(
        self,
        tokens: Tensor,
        states: tuple[Tensor, ...],
        annotations: Tensor,
        keys: Tensor,
        source: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """(R,) tokens → logits (R, V), new states (R, H) and attention (R, N)."""
        hidden, cell = states
        words = self.words(tokens)
        context, attention = self.attention(hidden, keys, annotations, source)  # (4)-(6), (13)
        context = self.gate(hidden).sigmoid() * context  # §4.2.1
        hidden, cell = self.lstm(torch.cat([words, context], dim=-1), hidden, cell)
        deep = words + self.from_hidden(hidden) + self.from_context(context)  # (7)
        return self.output(deep), (hidden, cell), attention


class ShowAttendTell(nn.Module):
    """Both halves."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: ShowAttendTell, image: ImageSpec | None) -> Graphs:
    """`admit` (B dynamic) and `step` (R, B dynamic; one token a call)."""
    source = prepare_source(model, image)
    return recurrent_graphs(model.decoder, model.encoder, source)


# ----------------------------------------------------------------------------------- declaration

_MODULES = (
    "encoder.convolutions.*.filter",
    "encoder.convolutions.*.norm",
    "decoder.words",
    "decoder.initial_hidden",
    "decoder.initial_cell",
    "decoder.attention.query",
    "decoder.attention.key",
    "decoder.attention.score",
    "decoder.gate",
    "decoder.lstm.gates",
    "decoder.from_hidden",
    "decoder.from_context",
    "decoder.output",
)

ARCHITECTURE = Architecture(
    name="show-attend-tell",
    tasks={"caption": no_section},
    read_config=read_config,
    build=ShowAttendTell,
    rename=lambda config: Rename({name: name for name in (*_MODULES, "encoder.positions")}),
    graphs=graphs,
    image_size=lambda config: config.convolutions.image,
    details=lambda network: {
        "alignment": AlignmentSpec(over="patches", grid=network.config.convolutions.grid)
    },
)
