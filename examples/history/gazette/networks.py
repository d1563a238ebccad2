"""Translators of the gazette without attention, with it, and of attention alone, to be trained.

All have about the same number of parameters. Modules of `torch.nn` where they have the names of a
checkpoint: trained with these, saved as they are, read by `export/models`.

Legend: B sentences, S source words, T target words, E width of a word, H width of a state.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from export.layers.attention.positions import interleaved_sinusoids
from export.models.recurrent.bahdanau import Bahdanau, read_config
from export.training.bahdanau import PADDING, START, Batch, initialise, teacher_forced

CONFIGS: dict[str, dict[str, Any]] = {
    "initial": {
        "model_type": "rnn-seq2seq",
        "embedding_size": 48,
        "hidden_size": 96,
        "cell": "gru-reset-after",
        "bidirectional": True,
        "context": "initial",
    },
    "context": {
        "model_type": "rnn-seq2seq",
        "embedding_size": 48,
        "hidden_size": 88,
        "cell": "gru-reset-after",
        "bidirectional": True,
        "context": "final",
    },
    "mean": {
        "model_type": "rnn-seq2seq",
        "embedding_size": 48,
        "hidden_size": 88,
        "cell": "gru-reset-after",
        "bidirectional": True,
        "context": "mean",
    },
    "attention": {
        "model_type": "bahdanau",
        "embedding_size": 56,
        "hidden_size": 80,
        "attention_size": 56,
        "readout_size": 56,
    },
    "transformer": {
        "model_type": "transformer",
        "d_model": 80,
        "nhead": 4,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "dim_feedforward": 256,
    },
}
"""`config.json` of each, without the sizes that all share."""


class Side(nn.Module):
    """Words and a GRU over them; the decoder has three more layers."""

    def __init__(self, vocabulary: int, words: int, read: int, hidden: int, *, both: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, words)
        self.rnn = nn.GRU(words + read, hidden, batch_first=True, bidirectional=both)


class Decoder(Side):
    """Also the first states, of the context, and the scores of words."""

    def __init__(
        self, vocabulary: int, words: int, context: int, hidden: int, *, fed: bool
    ) -> None:
        super().__init__(vocabulary, words, context if fed else 0, hidden, both=False)
        self.initial = nn.Linear(context, hidden)
        self.output = nn.Linear(hidden, vocabulary)


class Recurrent(nn.Module):
    """`rnn-seq2seq` of one layer, bidirectional: one vector for the whole source."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        vocabulary, words = config["vocab_size"], config["embedding_size"]
        hidden, self.context = config["hidden_size"], config["context"]
        fed = self.context != "initial"
        self.encoder = Side(vocabulary, words, 0, hidden, both=True)
        self.decoder = Decoder(vocabulary, words, 2 * hidden, hidden, fed=fed)
        initialise_recurrent(self)

    def forward(self, batch: Batch, dropout: float) -> Tensor:
        """Logits (B, T, V)."""
        context = self.read(batch)
        words = nn.functional.dropout(self.decoder.embedding(shifted(batch.target)), dropout)
        if self.context != "initial":
            spread = context[:, None].expand(-1, words.shape[1], -1)
            words = torch.cat([words, spread], dim=-1)
        first = self.decoder.initial(context).tanh()
        states, _ = self.decoder.rnn(words, first[None])
        return self.decoder.output(states)

    def read(self, batch: Batch) -> Tensor:
        """The context (B, 2·H)."""
        lengths = batch.lengths.long()
        packed = nn.utils.rnn.pack_padded_sequence(
            self.encoder.embedding(batch.source), lengths, batch_first=True, enforce_sorted=False
        )
        states, final = self.encoder.rnn(packed)
        if self.context != "mean":
            return torch.cat([final[0], final[1]], dim=-1)
        padded, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
        return padded.sum(dim=1) / lengths[:, None]


class Attending(Bahdanau):
    """`bahdanau`, as `examples/en_fr` trains it."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(read_config(config))
        initialise(self)

    def forward(self, batch: Batch, dropout: float) -> Tensor:
        """Logits (B, T, V)."""
        return teacher_forced(self, batch, dropout)


class Transformer(nn.Module):
    """`transformer`: norms behind the sub-layers, sinusoids, one table of words."""

    positions: Tensor

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["d_model"]
        sizes = {"d_model": width, "nhead": config["nhead"], "batch_first": True, "dropout": 0.0,
                 "dim_feedforward": config["dim_feedforward"]}  # fmt: skip
        self.embedding = nn.Embedding(config["vocab_size"], width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        read = nn.TransformerEncoderLayer(**sizes)
        written = nn.TransformerDecoderLayer(**sizes)
        # Without the norm behind each stack, which the paper does not have.
        self.transformer = nn.Transformer(
            width,
            custom_encoder=nn.TransformerEncoder(
                read, config["num_encoder_layers"], enable_nested_tensor=False
            ),
            custom_decoder=nn.TransformerDecoder(written, config["num_decoder_layers"]),
            batch_first=True,
        )
        table = interleaved_sinusoids(config["max_positions"], width)
        self.register_buffer("positions", table, persistent=False)

    def forward(self, batch: Batch, dropout: float) -> Tensor:
        """Logits (B, T, V)."""
        padding = batch.source == PADDING
        target = shifted(batch.target)
        later = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        states = self.transformer(
            nn.functional.dropout(self._embedded(batch.source), dropout),
            nn.functional.dropout(self._embedded(target), dropout),
            tgt_mask=later,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return states @ self.embedding.weight.T

    def _embedded(self, tokens: Tensor) -> Tensor:
        width = self.embedding.embedding_dim
        return self.embedding(tokens) * width**0.5 + self.positions[: tokens.shape[1]]


def shifted(target: Tensor) -> Tensor:
    """What is read before each target word, (B, T)."""
    return nn.functional.pad(target[:, :-1], (1, 0), value=START).clamp(min=0)


def initialise_recurrent(model: nn.Module) -> None:
    """Orthogonal recurrences, zero biases, and words of unit variance.

    With the small words of `initialise` the context is so weak that the decoder ignores it.
    """
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            nn.init.zeros_(weight)
        elif "weight_hh" in name:
            for square in weight.data.split(weight.shape[1]):
                nn.init.orthogonal_(square)
        elif "embedding" in name:
            nn.init.normal_(weight)
        else:
            nn.init.xavier_uniform_(weight)


_NETWORKS: dict[str, Callable[[dict[str, Any]], nn.Module]] = {
    "rnn-seq2seq": Recurrent,
    "bahdanau": Attending,
    "transformer": Transformer,
}


def network(config: dict[str, Any]) -> nn.Module:
    """A network of a whole configuration, weights drawn."""
    return _NETWORKS[config["model_type"]](config)


def parameters(model: nn.Module) -> int:
    """Their number."""
    return sum(weight.numel() for weight in model.parameters())
