"""The networks of the recurrent examples out of `torch.nn`'s layers, and their checkpoints.

They are trained and measured with PyTorch's own layers, and loops over whole texts where it has
none, so that the served networks, which are ours (`export/models/recurrent/rnn_encoder.py`,
`rnn_lm.py`), are compared with something else than themselves.

All are a `tokenizer.json` with a vocabulary of the training texts; `<unk>` is what is not in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

PADDING, UNKNOWN, END = range(3)
SPECIAL = ("<pad>", "<unk>", "<|endoftext|>")
"""The last one ends a text and, as in GPT-2, may begin it."""
_MARKS = '[.,?!;:"()¿¡]'
_CLITICS = "(n't|'s|')"


def reversible_words(texts: Iterable[str]) -> Tokenizer:
    """Words with the space before them, and marks: decoding gives the text back."""
    pieces = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex("[.,?!\n]"), "isolated")]
    )
    tokenizer = _tokenizer(pieces, normalizers.NFC(), texts, 1)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def characters(texts: Iterable[str], least: int = 1) -> Tokenizer:
    """Single characters: decoding gives the text back."""
    pieces = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer = _tokenizer(pieces, normalizers.NFC(), texts, least)
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def plain_words(texts: Iterable[str], least: int = 1) -> Tokenizer:
    """Words in lower case without spaces, marks, and the clitics 's and n't."""
    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(_MARKS), "isolated"),
            pre_tokenizers.Split(Regex(_CLITICS), "isolated"),
        ]
    )
    steps = [normalizers.NFC(), normalizers.Replace("’", "'"), normalizers.Lowercase()]
    return _tokenizer(pieces, normalizers.Sequence(steps), texts, least)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, longest: int) -> None:
    """Writes both files; `longest` is in tokens."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "pad_token": SPECIAL[PADDING],
        "unk_token": SPECIAL[UNKNOWN],
        "bos_token": SPECIAL[END],
        "eos_token": SPECIAL[END],
        "model_max_length": longest,
    }
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _tokenizer(
    pieces: pre_tokenizers.PreTokenizer,
    normalizer: normalizers.Normalizer,
    texts: Iterable[str],
    least: int,
) -> Tokenizer:
    counts = Counter(
        piece
        for text in texts
        for piece, _ in pieces.pre_tokenize_str(normalizer.normalize_str(text))
    )
    found = [piece for piece, count in counts.items() if count >= least]
    ranked = sorted(found, key=lambda piece: (-counts[piece], piece))
    vocabulary = {name: number for number, name in enumerate([*SPECIAL, *ranked])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pieces
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


class SearchedRnn(nn.Module):
    """One layer of the cell that Zoph & Le 2017 found, its parameters named as those of `nn.RNN`.

    The cell is `NASCell` of TensorFlow's contrib.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        far = hidden**-0.5  # as in torch
        self.weight_ih_l0 = nn.Parameter(torch.empty(8 * hidden, width).uniform_(-far, far))
        self.weight_hh_l0 = nn.Parameter(torch.empty(8 * hidden, hidden).uniform_(-far, far))
        self.bias_ih_l0 = nn.Parameter(torch.zeros(8 * hidden))
        self.bias_hh_l0 = nn.Parameter(torch.zeros(8 * hidden))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """(B, T, E) → (B, T, H)."""
        fed = nn.functional.linear(x, self.weight_ih_l0, self.bias_ih_l0)
        hidden = memory = fed.new_zeros(len(x), self.weight_hh_l0.shape[1])
        found = []
        for now in fed.unbind(1):
            recurred = nn.functional.linear(hidden, self.weight_hh_l0, self.bias_hh_l0)
            both = zip(now.chunk(8, -1), recurred.chunk(8, -1), strict=True)
            first = [a * b if at == 3 else a + b for at, (a, b) in enumerate(both)]
            gates = [first[at].sigmoid() for at in (0, 2, 5, 7)]
            added = (gates[0] * first[1].relu()).tanh() + memory
            memory = added.tanh() * (gates[1] + first[3].relu()).tanh()
            out = (first[4].tanh() * gates[2]).tanh() + (first[6].tanh() + gates[3]).sigmoid()
            hidden = (memory * out.tanh()).tanh()
            found.append(hidden)
        return torch.stack(found, dim=1), None


class TapeLstm(nn.Module):
    """One layer of a Long Short-Term Memory-Network (Cheng et al. 2016, §3.1).

    Args:
        attention: Width of the network that scores earlier states.
    """

    def __init__(self, width: int, hidden: int, attention: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, hidden)
        self.query = nn.Linear(width + hidden, attention, bias=False)
        self.key = nn.Linear(hidden, attention)
        self.score = nn.Linear(attention, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) → (B, T, H)."""
        summary = memory = x.new_zeros(len(x), self.cell.hidden_size)
        keys: list[Tensor] = []
        tape: list[Tensor] = []
        for now in x.unbind(1):
            if tape:
                query = self.query(torch.cat([now, summary], dim=-1))
                scores = self.score((query[:, None] + torch.stack(keys, dim=1)).tanh())
                mixed = (scores.softmax(dim=1) * torch.stack(tape, dim=1)).sum(dim=1)
                summary, memory = mixed.chunk(2, dim=-1)
            hidden, kept = self.cell(now, (summary, memory))
            keys.append(self.key(hidden))
            tape.append(torch.cat([hidden, kept], dim=-1))
        return torch.stack(tape, dim=1).chunk(2, dim=-1)[0]


class TapeLstms(nn.ModuleList):
    """Layers of an LSTMN, each reading the states of the one below."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """(B, T, E) → (B, T, H)."""
        for layer in self:
            x = layer(x)
        return x, None


CELLS: Mapping[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru-reset-after": nn.GRU}
CLASSES, TAGGING, NEXT = (
    "RnnForSequenceClassification",
    "RnnForTokenClassification",
    "RnnForCausalLM",
)
_WEIGHTS = "model.safetensors"


class Network(nn.Module):
    """An embedding, recurrent layers and a linear layer, named as in our checkpoint format.

    Args:
        config: `config.json`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        (self.kind,) = config["architectures"]
        self.is_bidirectional = config.get("bidirectional", False)
        width, hidden = config["embedding_size"], config["hidden_size"]
        self.embedding = nn.Embedding(config["vocab_size"], width)
        self.rnn = self._layers(width, hidden)
        if self.kind == NEXT:
            self.output = nn.Linear(hidden, config["vocab_size"])
        else:
            classes = len(config["id2label"])
            self.classifier = nn.Linear(hidden * (1 + self.is_bidirectional), classes)

    def _layers(self, width: int, hidden: int) -> nn.Module:
        if "attention_size" in self.config:
            return TapeLstms([TapeLstm(width, hidden, self.config["attention_size"])])
        if self.config["cell"] == "nas":
            return SearchedRnn(width, hidden)
        made: nn.Module = CELLS[self.config["cell"]](
            width,
            hidden,
            self.config.get("num_layers", 1),
            batch_first=True,
            bidirectional=self.is_bidirectional,
        )
        return made

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) right-padded, (B,) → logits: (B, T, V), (B, T, C), or (B, C) of a classifier."""
        embedded = self.embedding(tokens)
        if self.kind == NEXT:  # padding follows what is scored
            is_loop = not isinstance(self.rnn, nn.RNNBase)  # whose many casts take longer
            with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and not is_loop):
                states = self.rnn(embedded)[0]
            return self.output(states)
        with torch.autocast(
            "cpu", enabled=False
        ):  # twice as slow in bfloat16 where rows are ragged
            return self._ragged(embedded, lengths)

    def _ragged(self, embedded: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, final = self.rnn(packed)
        if self.kind == TAGGING:
            return self.classifier(pad_packed_sequence(states, batch_first=True)[0])
        hidden = final[0] if isinstance(final, tuple) else final  # (layers · N, B, H)
        last = hidden[-2:] if self.is_bidirectional else hidden[-1:]
        return self.classifier(torch.cat(list(last), dim=-1))


def configuration(
    kind: str, vocabulary: int, longest: int, labels: tuple[str, ...], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """`config.json`.

    Args:
        labels: Of a classifier or tagger.
        sizes: `cell`, `embedding_size`, `hidden_size` and what else differs from the defaults.
    """
    values = {
        "model_type": "rnn-lm" if kind == NEXT else "rnn-encoder",
        "architectures": [kind],
        "vocab_size": vocabulary,
        "max_positions": longest,
        "pad_token_id": PADDING,
        "dtype": "float16",
        **sizes,
    }
    if kind == NEXT:
        values |= {"bos_token_id": END, "eos_token_id": END}
    if labels:
        values["id2label"] = {str(index): label for index, label in enumerate(labels)}
    return values


def save(network: Network, folder: Path) -> None:
    """Writes the configuration, generation defaults and float16 weights."""
    tensors = {name: value.half().contiguous() for name, value in network.state_dict().items()}
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    _write(folder / "config.json", network.config)
    if network.kind == NEXT:
        generation = {
            "bos_token_id": END,
            "eos_token_id": END,
            "pad_token_id": PADDING,
            "bad_words_ids": [[UNKNOWN], [PADDING]],
            "max_length": network.config["max_positions"],
        }
        _write(folder / "generation_config.json", generation)


def load(folder: Path) -> Network:
    """A saved network in float32."""
    network = Network(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    weights = {name: value.float() for name, value in load_file(folder / _WEIGHTS).items()}
    network.load_state_dict(weights)
    return network.eval()


def initialise(network: Network) -> None:
    """Orthogonal recurrences, and forget gates that begin open (Gers et al. 2000; Jozefowicz 2015).

    Other weights as PyTorch draws them.
    """
    hidden = network.config["hidden_size"]
    for name, weight in network.rnn.named_parameters():
        if "weight_hh" in name:
            for block in weight.data.split(hidden):
                nn.init.orthogonal_(block)
        elif "bias_ih" in name and network.config["cell"] == "lstm":
            weight.data[hidden : 2 * hidden] = 1  # the gates i, f, g, o stand in this order


def _write(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
