"""Recurrent models of texts out of PyTorch's own layers, or of equations where it has none.

The references of `export/models/recurrent/rnn_encoder.py` and `rnn_lm.py`; they share nothing with
them but the names in a checkpoint. Called as models of `transformers` are, one unpadded row at a
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.export.models.paper_model import Outputs, PaperModel
from tests.export.models.recurrent import recurrent_paper

_TORCH = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru-reset-after": nn.GRU}
_BLOCKS = {  # blocks of the input's and of the state's matrix
    "lstm-peephole": (4, 4),
    "gru": (3, 3),
    "mut1": (2, 2),
    "mut2": (2, 3),
    "mut3": (3, 3),
}


class Written(nn.Module):
    """Layers of a cell that torch lacks, with parameters that are named as torch's are."""

    def __init__(
        self, cell: str, width: int, hidden: int, layers: int, *, bidirectional: bool
    ) -> None:
        super().__init__()
        self.cell, self.layers = cell, layers
        self.suffixes = ["", "_reverse"][: 1 + bidirectional]
        read, recurred = _BLOCKS[cell]
        for number in range(layers):
            for suffix in self.suffixes:
                end = f"l{number}{suffix}"
                shapes: dict[str, tuple[int, ...]] = {
                    f"weight_ih_{end}": (read * hidden, width),
                    f"weight_hh_{end}": (recurred * hidden, hidden),
                    f"bias_ih_{end}": (read * hidden,),
                    f"bias_hh_{end}": (recurred * hidden,),
                }
                if cell == "lstm-peephole":
                    shapes[f"peephole_{end}"] = (3, hidden)
                if cell in ("mut1", "mut2") and width != hidden:
                    shapes[f"bypass_{end}"] = (hidden, width)
                for name, shape in shapes.items():
                    self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
            width = len(self.suffixes) * hidden

    def forward(self, x: Tensor, first: Tensor | None = None) -> tuple[Tensor, None]:
        """(1, T, D) → (1, T, N·H).

        Args:
            first: (layers, 1, H) the state of each layer before the first position; by default 0.
        """
        read = x[0].double().numpy()
        for number in range(self.layers):
            both = [self._weights(f"l{number}{suffix}") for suffix in self.suffixes]
            before = None if first is None else first[number, 0].double().numpy()
            read = recurrent_paper.layer(self.cell, *[*both, None][:2], read, before)
        return torch.from_numpy(read).float()[None], None

    def _weights(self, end: str) -> dict[str, np.ndarray]:
        names = {
            "input.weight": "weight_ih",
            "input.bias": "bias_ih",
            "recurrence.weight": "weight_hh",
            "recurrence.bias": "bias_hh",
            "peephole": "peephole",
            "bypass.weight": "bypass",
        }
        own = dict(self.named_parameters())
        return {
            name: own[f"{theirs}_{end}"].detach().double().numpy()
            for name, theirs in names.items()
            if f"{theirs}_{end}" in own
        }


def recurrent(cell: str, sizes: tuple[int, int, int], *, bidirectional: bool) -> nn.Module:
    """Layers of torch, or written ones; sizes are D, H and the number of layers."""
    if cell in _TORCH:
        return _TORCH[cell](*sizes, batch_first=True, bidirectional=bidirectional)
    return Written(cell, *sizes, bidirectional=bidirectional)


class RnnModel(PaperModel):
    """An embedding and recurrent layers."""

    outputs: str | None = None

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        cell, hidden = values["cell"], values["hidden_size"]
        self.is_bidirectional = values.get("bidirectional", False)
        self.embedding = nn.Embedding(values["vocab_size"], values["embedding_size"])
        sizes = (values["embedding_size"], hidden, values.get("num_layers", 1))
        self.rnn = recurrent(cell, sizes, bidirectional=self.is_bidirectional)
        self.width = hidden * (1 + self.is_bidirectional)

    def forward(self, input_ids: Tensor) -> Any:
        """(1, T) → fields by name."""
        return Outputs(last_hidden_state=self.hidden(input_ids))

    def hidden(self, input_ids: Tensor) -> Tensor:
        """(1, T) → (1, T, N·H)."""
        return self.rnn(self.embedding(input_ids))[0]


class RnnForTokenClassification(RnnModel):
    """One to one."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.classifier = nn.Linear(self.width, values["num_labels"])

    def forward(self, input_ids: Tensor) -> Any:
        """(1, T) → logits (1, T, C)."""
        return Outputs(logits=self.classifier(self.hidden(input_ids)))


class RnnForSequenceClassification(RnnModel):
    """Many to one."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.classifier = nn.Linear(self.width, values["num_labels"])

    def forward(self, input_ids: Tensor) -> Any:
        """(1, T) → logits (1, C)."""
        hidden = self.hidden(input_ids)
        pooling = self.values.get("pooling", "final")
        if pooling == "mean":
            pooled = hidden.mean(dim=1)
        elif pooling == "max":
            pooled = hidden.amax(dim=1)
        else:
            pooled = hidden[:, -1].clone()
            if self.is_bidirectional:  # the leftward direction ends at the first word
                half = self.width // 2
                pooled[:, half:] = hidden[:, 0, half:]
        return Outputs(logits=self.classifier(pooled))


class RnnForCausalLM(RnnModel):
    """One word behind the other."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.output = nn.Linear(self.width, values["vocab_size"])

    def forward(self, input_ids: Tensor) -> Any:
        """(1, T) → logits (1, T, V)."""
        return Outputs(logits=self.output(self.hidden(input_ids)))


class RnnSeq2Seq(PaperModel):
    """A source read to its end, and a target from there."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.encoder = RnnModel(values)
        context = self.encoder.width
        words, hidden = values["embedding_size"], values["hidden_size"]
        layers, cell = values.get("num_layers", 1), values["cell"]
        read = words + (context if values["context"] != "initial" else 0)
        self.decoder = nn.ModuleDict(
            {
                "embedding": nn.Embedding(values["vocab_size"], words),
                "initial": nn.Linear(context, layers * hidden * (2 if cell == "lstm" else 1)),
                "rnn": recurrent(cell, (read, hidden, layers), bidirectional=False),
                "output": nn.Linear(hidden, values["vocab_size"]),
            }
        )

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Any:
        """(1, S), (1, T) → logits (1, T, V)."""
        states, half = self.encoder.hidden(input_ids)[0], self.values["hidden_size"]
        if self.values["context"] == "mean":
            context = states.mean(dim=0)
        elif self.encoder.is_bidirectional:
            context = torch.cat([states[-1, :half], states[0, half:]])
        else:
            context = states[-1]
        words = self.decoder["embedding"](decoder_input_ids)
        if self.values["context"] != "initial":
            words = torch.cat([words, context.expand(1, words.shape[1], -1)], dim=-1)
        first = self.decoder["initial"](context).tanh().unflatten(0, (-1, 1, half))  # (n, 1, H)
        if self.values["cell"] == "lstm":  # state and cell of a layer stand side by side
            hidden, _ = self.decoder["rnn"](words, (first[::2], first[1::2]))
        else:
            hidden, _ = self.decoder["rnn"](words, first)
        return Outputs(logits=self.decoder["output"](hidden))
