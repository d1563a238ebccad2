"""Recurrent models of texts out of PyTorch's own layers, or of equations where it has none.

The references of `export/models/rnn_encoder.py` and `rnn_lm.py`; they share nothing with them but
the names in a checkpoint. Called as models of `transformers` are, one unpadded row at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.export import recurrent_paper

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

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """(1, T, D) → (1, T, N·H)."""
        read = x[0].double().numpy()
        for number in range(self.layers):
            both = [self._weights(f"l{number}{suffix}") for suffix in self.suffixes]
            read = recurrent_paper.layer(self.cell, *[*both, None][:2], read)
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


class RnnModel(nn.Module):
    """An embedding and recurrent layers.

    Args:
        values: `config.json`.
    """

    config_class = dict
    outputs: str | None = None

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.values = values
        cell, hidden = values["cell"], values["hidden_size"]
        self.is_bidirectional = values.get("bidirectional", False)
        self.embedding = nn.Embedding(values["vocab_size"], values["embedding_size"])
        sizes = (values["embedding_size"], hidden, values.get("num_layers", 1))
        self.rnn: nn.Module
        if cell in _TORCH:
            self.rnn = _TORCH[cell](*sizes, batch_first=True, bidirectional=self.is_bidirectional)
        else:
            self.rnn = Written(cell, *sizes, bidirectional=self.is_bidirectional)
        self.width = hidden * (1 + self.is_bidirectional)

    def forward(self, input_ids: Tensor) -> Any:
        """(1, T) → fields by name."""
        return _Outputs(last_hidden_state=self.hidden(input_ids))

    def hidden(self, input_ids: Tensor) -> Tensor:
        """(1, T) → (1, T, N·H)."""
        return self.rnn(self.embedding(input_ids))[0]

    def save_pretrained(self, folder: Path) -> None:
        """A folder of our format."""
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.values), encoding="utf-8")


class RnnForTokenClassification(RnnModel):
    """One to one."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.classifier = nn.Linear(self.width, values["num_labels"])

    def forward(self, input_ids: Tensor) -> Any:
        """(1, T) → logits (1, T, C)."""
        return _Outputs(logits=self.classifier(self.hidden(input_ids)))


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
        return _Outputs(logits=self.classifier(pooled))


class RnnForCausalLM(RnnModel):
    """One word behind the other."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.output = nn.Linear(self.width, values["vocab_size"])

    def forward(self, input_ids: Tensor) -> Any:
        """(1, T) → logits (1, T, V)."""
        return _Outputs(logits=self.output(self.hidden(input_ids)))


class _Outputs(dict[str, Tensor]):
    """Fields, also as attributes."""

    __getattr__ = dict.__getitem__
