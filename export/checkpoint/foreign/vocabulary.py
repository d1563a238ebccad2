"""The vocabulary of a translator that reads and writes sentencepiece's pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from export.checkpoint.foreign.conversion import SETTINGS
from inference.errors import CheckpointError

_END, _UNKNOWN, _PADDING = "</s>", "<unk>", "<pad>"


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of source and target in the order of their ids; the same where both share a table.

    Attributes:
        source: Tokens that the encoder reads.
        target: Tokens that the decoder writes.
        start: Text of the token that the decoder starts from; None: a vector of zeros.
        end: Text of the end token.
        unknown: Text of the unknown token.
        padding: Texts of padding tokens.
        adds_end: Whether the end token follows a source.
    """

    source: Sequence[str]
    target: Sequence[str]
    start: str | None
    end: str = _END
    unknown: str = _UNKNOWN
    padding: Sequence[str] = (_PADDING, "<blank>")
    adds_end: bool = True

    @property
    def has_further_row(self) -> bool:
        """Whether tables get a row of zeros behind their tokens, for padding and as a start."""
        sides = (self.source, self.target)
        return self.start is None or any(_PADDING not in self._ids(each) for each in sides)

    def rows(self, tokens: Sequence[str]) -> int:
        """Rows of the table of one side."""
        return len(tokens) + self.has_further_row

    def extend(self, table: Tensor) -> Tensor:
        """A table of tokens, or a bias, with the further row."""
        further = table.new_zeros(int(self.has_further_row), *table.shape[1:])
        return torch.cat([table, further])

    def files(self, pieces: tuple[bytes, bytes], pair: tuple[str, str] | None) -> dict[str, bytes]:
        """Those of a tokenizer of the kind `sentencepiece_pair`.

        Args:
            pieces: Sentencepiece's models for source and target.
            pair: Languages of source and target, where they are known.
        """
        tables = {"vocab.json": self._table(self.source)}
        if self.target != self.source:
            tables["target_vocab.json"] = self._table(self.target)
        settings: dict[str, Any] = {"add_eos_token": self.adds_end}
        if pair is not None:
            settings |= {"source_lang": pair[0], "target_lang": pair[1]}
        written = {**tables, SETTINGS: settings}
        files = {name: json.dumps(each, ensure_ascii=False) for name, each in written.items()}
        return {name: text.encode() for name, text in files.items()} | {
            "source.spm": pieces[0],
            "target.spm": pieces[1],
        }

    def generation(self) -> dict[str, Any]:
        """Start, end and padding of answers; the further row is no answer's token."""
        ids = self._table(self.target)
        pad = ids[_PADDING]
        start = pad if self.start is None else ids.get(self._name(self.start))
        if start is None:
            raise CheckpointError(
                f"the vocabulary has no token {self.start}, which answers start from"
            )
        fixed = {"decoder_start_token_id": start, "eos_token_id": ids[_END], "pad_token_id": pad}
        return fixed | ({"bad_words_ids": [[pad]]} if self.has_further_row else {})

    def _name(self, token: str) -> str:
        """The name of a token that our tokenizer reads."""
        names = dict.fromkeys(self.padding, _PADDING) | {self.end: _END, self.unknown: _UNKNOWN}
        return names.get(token, token)

    def _ids(self, tokens: Sequence[str]) -> dict[str, int]:
        ids: dict[str, int] = {}
        for number, token in enumerate(tokens):
            ids.setdefault(self._name(token), number)
        return ids

    def _table(self, tokens: Sequence[str]) -> dict[str, int]:
        """Token → id.

        Raises:
            CheckpointError: the end or the unknown token is missing.
        """
        ids = self._ids(tokens)
        for token, given in ((_END, self.end), (_UNKNOWN, self.unknown)):
            if token not in ids:
                raise CheckpointError(f"the vocabulary has no token {given}")
        return ids | ({_PADDING: len(tokens)} if self.has_further_row else {})
