"""Recurrent networks written from their papers' equations.

The oracle of `export/layers/recurrence/cells.py` for cells that `torch.nn` lacks: names are the
papers', no batch, no padding. It shares nothing with the module but the names of parameters.

The references of `export/models/recurrent/rnn_encoder.py` and `rnn_lm.py`; they share nothing with
them but the names in a checkpoint. Called as models of `transformers` are, one unpadded row at a
time.

The oracle of `export/models/recurrent/bahdanau.py`, which no library has: no batch, no padding, no
beams, no cache, float64; names are the paper's. It shares nothing with the module but the
checkpoint's file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.export.models.transformer_paper import (
    Array,
    NumpyPaper,
    Outputs,
    PaperModel,
    sigmoid,
    softmax,
)

Weights = Mapping[str, Array]


def blocks(weights: Weights, name: str, count: int) -> list[tuple[Array, Array]]:
    """(matrix, bias) of each block."""
    matrices = np.split(weights[f"{name}.weight"], count)
    return list(zip(matrices, np.split(weights[f"{name}.bias"], count), strict=True))


def affine(block: tuple[Array, Array], x: Array) -> Array:
    return block[0] @ x + block[1]


def elman(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    (W,), (U,) = blocks(w, "input", 1), blocks(w, "recurrence", 1)
    return np.tanh(affine(W, x) + affine(U, h)), c


def lstm(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """Graves 2013, eq. 7 to 11; without peepholes their weights are zero."""
    W_i, W_f, W_c, W_o = blocks(w, "input", 4)
    U_i, U_f, U_c, U_o = blocks(w, "recurrence", 4)
    w_ci, w_co, w_cf = w.get("peephole", np.zeros((3, len(h))))
    i = sigmoid(affine(W_i, x) + affine(U_i, h) + w_ci * c)
    f = sigmoid(affine(W_f, x) + affine(U_f, h) + w_cf * c)
    c = f * c + i * np.tanh(affine(W_c, x) + affine(U_c, h))
    o = sigmoid(affine(W_o, x) + affine(U_o, h) + w_co * c)
    return o * np.tanh(c), c


def gru(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """Cho et al. 2014, eq. 5 to 8: U multiplies r ⊙ h."""
    W_r, W_z, W_h = blocks(w, "input", 3)
    U_r, U_z, U_h = blocks(w, "recurrence", 3)
    r = sigmoid(affine(W_r, x) + affine(U_r, h))
    z = sigmoid(affine(W_z, x) + affine(U_z, h))
    return z * h + (1 - z) * np.tanh(affine(W_h, x) + affine(U_h, r * h)), c


def gru_reset_after(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """As `torch.nn.GRU`'s documentation has it."""
    W_r, W_z, W_n = blocks(w, "input", 3)
    U_r, U_z, U_n = blocks(w, "recurrence", 3)
    r = sigmoid(affine(W_r, x) + affine(U_r, h))
    z = sigmoid(affine(W_z, x) + affine(U_z, h))
    return (1 - z) * np.tanh(affine(W_n, x) + r * affine(U_n, h)) + z * h, c


def mut1(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """Jozefowicz et al. 2015, §4."""
    W_z, W_r = blocks(w, "input", 2)
    U_r, U_h = blocks(w, "recurrence", 2)
    z = sigmoid(affine(W_z, x))
    r = sigmoid(affine(W_r, x) + affine(U_r, h))
    return np.tanh(affine(U_h, r * h) + np.tanh(added(w, x))) * z + h * (1 - z), c


def mut2(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    W_z, W_h = blocks(w, "input", 2)
    U_z, U_r, U_h = blocks(w, "recurrence", 3)
    z = sigmoid(affine(W_z, x) + affine(U_z, h))
    r = sigmoid(added(w, x) + affine(U_r, h))
    return np.tanh(affine(U_h, r * h) + affine(W_h, x)) * z + h * (1 - z), c


def mut3(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    W_z, W_r, W_h = blocks(w, "input", 3)
    U_z, U_r, U_h = blocks(w, "recurrence", 3)
    z = sigmoid(affine(W_z, x) + affine(U_z, np.tanh(h)))
    r = sigmoid(affine(W_r, x) + affine(U_r, h))
    return np.tanh(affine(U_h, r * h) + affine(W_h, x)) * z + h * (1 - z), c


def nas(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """Zoph and Le 2017, base 8, line by line as `NASCell` of TensorFlow's contrib has it."""
    X = [affine(W, x) for W in blocks(w, "input", 8)]
    M = [affine(U, h) for U in blocks(w, "recurrence", 8)]
    layer1_0 = sigmoid(X[0] + M[0])
    layer1_1 = np.maximum(X[1] + M[1], 0)
    layer1_2 = sigmoid(X[2] + M[2])
    layer1_3 = np.maximum(X[3] * M[3], 0)
    layer1_4 = np.tanh(X[4] + M[4])
    layer1_5 = sigmoid(X[5] + M[5])
    layer1_6 = np.tanh(X[6] + M[6])
    layer1_7 = sigmoid(X[7] + M[7])
    l2_0 = np.tanh(layer1_0 * layer1_1)
    l2_1 = np.tanh(layer1_2 + layer1_3)
    l2_2 = np.tanh(layer1_4 * layer1_5)
    l2_3 = sigmoid(layer1_6 + layer1_7)
    l2_0 = np.tanh(l2_0 + c)
    c = l2_0 * l2_1
    return np.tanh(c * np.tanh(l2_2 + l2_3)), c


def added(w: Weights, x: Array) -> Array:
    """The input where it is added to a state, through a matrix if it has another width."""
    return w["bypass.weight"] @ x if "bypass.weight" in w else x


EQUATIONS = {
    "rnn": elman,
    "lstm": lstm,
    "lstm-peephole": lstm,
    "gru": gru,
    "gru-reset-after": gru_reset_after,
    "mut1": mut1,
    "mut2": mut2,
    "mut3": mut3,
    "nas": nas,
}


def states(
    cell: str, weights: Weights, inputs: Sequence[Array], first: Array | None = None
) -> list[Array]:
    """The state after each input of one row; before the first one it is zero by default."""
    width = weights["recurrence.weight"].shape[1]
    h, c, found = np.zeros(width) if first is None else first, np.zeros(width), []
    for x in inputs:
        h, c = EQUATIONS[cell](weights, x, h, c)
        found.append(h)
    return found


def layer(
    cell: str,
    rightward: Weights,
    leftward: Weights | None,
    inputs: Array,
    first: Array | None = None,
) -> Array:
    """(T, D) → (T, N·H)."""
    found = [states(cell, rightward, list(inputs), first)]
    if leftward is not None:
        found.append(states(cell, leftward, list(inputs[::-1]))[::-1])
    return np.concatenate(found, axis=-1)


_TORCH = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru-reset-after": nn.GRU}
_BLOCKS = {  # blocks of the input's and of the state's matrix
    "lstm-peephole": (4, 4),
    "gru": (3, 3),
    "mut1": (2, 2),
    "mut2": (2, 3),
    "mut3": (3, 3),
    "nas": (8, 8),
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
            read = layer(self.cell, *[*both, None][:2], read, before)
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


class RnnForSequenceClassification(RnnForTokenClassification):
    """Many to one."""

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


class LstmnForCausalLM(PaperModel):
    """Cheng et al. 2016, §3, position by position in float64; names are the paper's."""

    outputs: str | None = None

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.embedding = nn.Embedding(values["vocab_size"], values["embedding_size"])
        hidden, attention = values["hidden_size"], values["attention_size"]
        self.rnn, width = nn.ModuleList(), values["embedding_size"]
        for _ in range(values.get("num_layers", 1)):
            query = nn.Linear(width + hidden, attention, bias=False)
            key, score = nn.Linear(hidden, attention), nn.Linear(attention, 1, bias=False)
            parts = {"cell": nn.LSTMCell(width, hidden), "query": query, "key": key, "score": score}
            self.rnn.append(nn.ModuleDict(parts))
            width = hidden
        self.output = nn.Linear(hidden, values["vocab_size"])

    def forward(self, input_ids: Tensor) -> Any:
        """(1, T) → logits (1, T, V)."""
        words = list(self.embedding(input_ids)[0].double().numpy())
        for layer in self.rnn:
            words = self.layer(
                {name: value.double().numpy() for name, value in layer.state_dict().items()}, words
            )
        hidden = torch.from_numpy(np.stack(words)).float()
        return Outputs(logits=self.output(hidden)[None])

    def layer(self, w: Weights, inputs: Sequence[Array]) -> list[Array]:
        """§3.1, eq. 5 to 9; the sums over an empty tape are zero."""
        width = w["key.weight"].shape[1]
        W_x, W_h_tilde = np.split(w["query.weight"], [inputs[0].shape[0]], axis=1)
        W = np.concatenate([w["cell.weight_hh"], w["cell.weight_ih"]], axis=1)
        b = w["cell.bias_hh"] + w["cell.bias_ih"]
        H: list[Array] = []
        C: list[Array] = []
        h_tilde = np.zeros(width)
        for x in inputs:
            a = [
                w["score.weight"][0]
                @ np.tanh(w["key.weight"] @ h + w["key.bias"] + W_x @ x + W_h_tilde @ h_tilde)
                for h in H
            ]
            s = softmax(np.array(a)) if a else a
            h_tilde = sum((s_i * h for s_i, h in zip(s, H, strict=True)), np.zeros(width))
            c_tilde = sum((s_i * c for s_i, c in zip(s, C, strict=True)), np.zeros(width))
            i, f, candidate, o = np.split(W @ np.concatenate([h_tilde, x]) + b, 4)
            c = sigmoid(f) * c_tilde + sigmoid(i) * np.tanh(candidate)
            H.append(sigmoid(o) * np.tanh(c))
            C.append(c)
        return H


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


class Unit:
    """§A.1.1: W stacks what the input gives to z, r and the candidate; so do U's two tensors."""

    def __init__(self, weights: Mapping[str, Array], name: str) -> None:
        self.W_z, self.W_r, self.W = np.split(weights[f"{name}.input.weight"], 3)
        self.b_z, self.b_r, self.b = np.split(weights[f"{name}.input.bias"], 3)
        self.U_z, self.U_r = np.split(weights[f"{name}.gates.weight"], 2)
        self.U = weights[f"{name}.candidate.weight"]

    def __call__(self, x: Array, s: Array) -> Array:
        z = sigmoid(self.W_z @ x + self.b_z + self.U_z @ s)
        r = sigmoid(self.W_r @ x + self.b_r + self.U_r @ s)
        candidate = np.tanh(self.W @ x + self.b + self.U @ (r * s))
        return (1 - z) * s + z * candidate


class Paper(NumpyPaper):
    """One checkpoint's network; the tensors' shapes suffice, `config.json` is not used."""

    def __init__(
        self, weights: Mapping[str, NDArray[np.floating]], config: Mapping[str, Any]
    ) -> None:
        super().__init__(weights, config)
        self.rightward = Unit(self.weights, "encoder.gru.rightward")
        self.leftward = Unit(self.weights, "encoder.gru.leftward")
        self.unit = Unit(self.weights, "decoder.unit")

    def annotations(self, source: Sequence[int]) -> list[Array]:
        """§3.2, §A.2.1: h_j of each source word."""
        words = [self.weights["encoder.words.weight"][word] for word in source]
        zero = np.zeros(self.rightward.U.shape[0])
        forwards, backwards = [zero], [zero]
        for word in words:
            forwards.append(self.rightward(word, forwards[-1]))
        for word in reversed(words):
            backwards.append(self.leftward(word, backwards[-1]))
        pairs = zip(forwards[1:], reversed(backwards[1:]), strict=True)
        return [np.concatenate(pair) for pair in pairs]

    def attention(self, s: Array, h: Sequence[Array]) -> Array:
        """§A.1.2: α_ij over j."""
        query = self.linear("decoder.attention.query", s)
        scores = [
            self.linear(
                "decoder.attention.score",
                np.tanh(query + self.linear("decoder.attention.key", h_j)),
            )
            for h_j in h
        ]
        return softmax(np.concatenate(scores))

    def decode(self, source: Sequence[int], target: Sequence[int]) -> tuple[Array, Array]:
        """§A.2.2, teacher-forced: logits (T, V) and alignments (T, S) after each target word."""
        h = self.annotations(source)
        s = np.tanh(self.linear("decoder.initial", h[0][self.rightward.U.shape[0] :]))
        logits, alignments = [], []
        for word in target:
            y = self.weights["decoder.words.weight"][word]
            alpha = self.attention(s, h)
            c = sum(weight * h_j for weight, h_j in zip(alpha, h, strict=True))
            s = self.unit(np.concatenate([y, c]), s)
            t_tilde = self.linear("decoder.readout", np.concatenate([s, y, c]))
            t = np.maximum(t_tilde[0::2], t_tilde[1::2])
            logits.append(self.linear("decoder.output", t))
            alignments.append(alpha)
        return np.stack(logits), np.stack(alignments)
