"""What a converted checkpoint consists of, and how it becomes a folder in Hugging Face format.

A translator's vocabulary is one that reads and writes sentencepiece's pieces.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from export.layers.attention.positions import spread_sinusoids
from inference.errors import CheckpointError

CONFIG = "config.json"
SETTINGS = "tokenizer_config.json"
_SHARD_BYTES = 256 << 20
_MOST_ENTRIES = 10_000
_MOST_RATIO = 50
"""Of unpacked bytes to an archive's; weights hardly shrink."""
_SPARE_BYTES = 16 << 20
_MOST_GROWTH = 16
"""Of weights to the files they come from: bytes become floats, and tied tables are two."""
_MOST_POSITIONS = 1 << 26
"""Numbers of a table that no file holds."""
TRANSLATOR = "translator"
"""`model_type` of `export/models/encoder_decoders/translator.py`."""
TIMM_RECIPE = "timm_pretrained_cfg"
"""Field of `config.json` with timm's preparation of images."""
_TOKENIZER_FILES = (
    *("tokenizer.json", SETTINGS, "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model"),
)
_PIECES = (
    ("source.spm", "target.spm"),
    *((name, name) for name in ("sentencepiece.model", "sentencepiece.bpe.model", "vocab.spm")),
)
"""Names of sentencepiece's models for source and target, in the order of their precedence."""


@dataclass
class Conversion:
    """A checkpoint as Hugging Face would store it.

    Attributes:
        config: `config.json`.
        generation: `generation_config.json`.
        tensors: Names of `transformers` and values, made one after the other.
        files: Of the tokenizer.
        notes: One line for each thing that differs from what was read.
    """

    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tensors: Iterable[tuple[str, Tensor]]
    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def write(self, folder: Path, size: int) -> None:
        """Writes the folder; weights in files of `_SHARD_BYTES`, so that few are in memory.

        Args:
            size: Bytes of what was read.

        Raises:
            CheckpointError: names stand for the same weights very many times.
        """
        most = _MOST_GROWTH * size + _SPARE_BYTES
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        write_json(folder / CONFIG, self.config)
        write_json(folder / "generation_config.json", self.generation)
        places: dict[str, str] = {}
        for number, shard in enumerate(_shards(self.tensors)):
            most -= sum(tensor.nbytes for tensor in shard.values())
            if most < 0:
                raise CheckpointError(
                    f"its tensors have over {_MOST_GROWTH} times the bytes of its files, which no "
                    "checkpoint needs"
                )
            file = f"model-{number:05}.safetensors"
            save_file(shard, folder / file)
            places |= dict.fromkeys(shard, file)
        write_json(folder / "model.safetensors.index.json", {"weight_map": places})


def _shards(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        shard[name] = tensor.contiguous().clone()  # pieces of one tensor share its memory
        size += tensor.nbytes
        if size >= _SHARD_BYTES:
            yield shard
            shard, size = {}, 0
    if shard:
        yield shard


def write_json(path: Path, value: object) -> None:
    """A JSON file."""
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is no such file.

    Raises:
        CheckpointError: unreadable, or not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return value


def copied(folder: Path) -> dict[str, bytes]:
    """The files of a tokenizer of `transformers` that are there."""
    paths = (folder / name for name in _TOKENIZER_FILES)
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def sentencepiece_models(folders: Sequence[Path]) -> tuple[bytes, bytes] | None:
    """The models for source and target; None where no folder has them."""
    for folder in folders:
        for source, target in _PIECES:
            if (folder / source).is_file() and (folder / target).is_file():
                return (folder / source).read_bytes(), (folder / target).read_bytes()
    return None


def sinusoids(count: int, width: int) -> Tensor:
    """(count, width): `spread_sinusoids` of sizes that a file states.

    Raises:
        CheckpointError: no network has so large a table.
    """
    if count * width > _MOST_POSITIONS:
        raise CheckpointError(f"{count} positions of {width} numbers are more than a network has")
    return spread_sinusoids(count, width)


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive that fills neither memory nor disk.

    Raises:
        CheckpointError: no archive, damaged, or larger than one of weights of its size can be.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [entry.file_size for entry in archive.infolist()]
            most = _MOST_RATIO * path.stat().st_size + _SPARE_BYTES
            if len(sizes) > _MOST_ENTRIES or sum(sizes) > most:
                raise CheckpointError(
                    f"{path} has over {_MOST_ENTRIES} files or unpacks to over {most >> 20} MiB, "
                    "which no archive of weights of its size does"
                )
            yield archive
    except _DAMAGES as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is damaged: {reason}") from error


_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)
"""What reading an archive raises; RuntimeError for an encrypted entry."""


def shown(value: object) -> str:
    """A value for messages, of a bounded length: references may make a list stand for very much."""
    return repr(value)[:80] if isinstance(value, str | int | float | None) else type(value).__name__


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
        return torch.cat([table, table.new_zeros(int(self.has_further_row), *table.shape[1:])])

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
