"""The `tokenizer.json` of a checkpoint as `transformers` uses it, converted from other files."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.labels import check_label_counts
from export.tokenizer.byte_tokenizer import byte_tokenizer, is_of_bytes
from export.tokenizer.siglip_tokenizer import PIECES_FILE, is_siglip, tokenizer_json
from inference.bundle.inputs import TokenizerSpec
from inference.errors import CheckpointError

FAST_FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
SEGMENTS = "token_type_ids"
_NO_PROTOBUF_CHECK = "TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FastTokenizer:
    """A `tokenizer.json`.

    Attributes:
        content: As it travels with a bundle.
        special: Name → text of the special tokens of the tokenizer's class, e.g. `pad_token`; empty
            where `transformers` does not load it.
        padding_side: By the settings, else the class's (Gemma's pad on the left).
    """

    content: bytes
    special: Mapping[str, str]
    padding_side: str = "right"

    @cached_property
    def added(self) -> dict[str, int]:
        """Text → id of the tokens beside the vocabulary.

        Raises:
            CheckpointError: an entry has no text, or no id.
        """
        listed = self._parsed.get("added_tokens") or ()
        try:
            found = {each["content"]: each["id"] for each in listed}
        except (KeyError, TypeError):
            found = {"": None}
        if not _are_ids(found):
            raise CheckpointError(
                f"{FAST_FILE}: added_tokens must be a list of tokens with content and id"
            )
        return found

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token → id; the pieces of a Unigram model are listed in the order of their ids.

        Raises:
            CheckpointError: it is neither such a table nor such a list.
        """
        model = self._parsed.get("model") or {}
        given = (model.get("vocab") or {}) if isinstance(model, dict) else model
        try:
            if isinstance(given, list):
                given = {piece: index for index, (piece, _) in enumerate(given)}
        except (TypeError, ValueError):
            given = None
        if not isinstance(given, dict) or not _are_ids(given):
            raise CheckpointError(
                f"{FAST_FILE}: model.vocab must be an object of tokens and ids, or a list of pieces"
            )
        return given

    @cached_property
    def _parsed(self) -> dict[str, Any]:
        tokenizer = json.loads(self.content)
        if not isinstance(tokenizer, dict):
            raise CheckpointError(f"{FAST_FILE} is not a JSON object")
        return tokenizer


def _are_ids(table: Mapping[Any, Any]) -> bool:
    """Whether a table's entries are texts and numbers from 0 on."""
    return all(isinstance(text, str) for text in table) and all(
        type(token) is int and token >= 0 for token in table.values()
    )


def read_fast_tokenizer(checkpoint: Checkpoint) -> FastTokenizer:
    """`tokenizer.json` as `transformers` uses it.

    Most tokenizer classes of `transformers` 5 take vocabulary and merges from the file and build
    normaliser, pre-tokenizer and post-processor themselves, by `tokenizer_config.json`
    (`do_lower_case`, `add_prefix_space`, `legacy`, `add_bos_token`): what the file holds of those
    is ignored. Where `transformers` is not installed the file is used as it is.
    """
    check_label_counts(checkpoint.config)
    side = str((settings := checkpoint.json(SETTINGS)).get("padding_side", "right"))
    if is_siglip(checkpoint, settings):
        return FastTokenizer(tokenizer_json(_pieces(checkpoint, PIECES_FILE), settings), {}, side)
    if checkpoint.has(FAST_FILE):
        content = read_file(checkpoint, FAST_FILE)
        try:
            json.loads(content)
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.folder / FAST_FILE} is damaged: {error}") from error
        return _rebuild(checkpoint) or FastTokenizer(content, {}, side)
    if is_of_bytes(checkpoint.config, settings):
        return FastTokenizer(byte_tokenizer(settings), {}, side)
    return _convert(checkpoint)


def _rebuild(checkpoint: Checkpoint) -> FastTokenizer | None:
    """The file as `AutoTokenizer` builds it; None where it does not load."""
    try:
        return _from_transformers(checkpoint.folder, checkpoint.content_hash)
    except ImportError:
        log.warning(
            "%s is used as it is: `transformers`, whose classes may change it by %s, is not "
            "installed (pip install 'triptych[convert]')",
            checkpoint.folder / FAST_FILE,
            SETTINGS,
        )
    except Exception as error:  # `tokenizers` raises bare Exception
        log.info("`transformers` does not load the tokenizer of %s: %s", checkpoint.folder, error)
    return None


def _convert(checkpoint: Checkpoint) -> FastTokenizer:
    """`tokenizer.json` made by `transformers`' own converter (extra `[convert]`).

    Raises:
        CheckpointError: `transformers` is not installed, or has no such tokenizer.
    """
    missing = f"{checkpoint.folder} has no {FAST_FILE}"
    try:
        return _from_transformers(checkpoint.folder, checkpoint.content_hash)
    except Exception as error:  # `tokenizers` raises bare Exception
        if isinstance(error, ImportError) and error.name == "transformers":
            raise CheckpointError(
                f"{missing}; install the converter with `pip install 'triptych[convert]'`, or save "
                "the tokenizer in the fast format"
            ) from None
        raise CheckpointError(f"{missing} and it could not be made: {error}") from error


@lru_cache(maxsize=1)
def _from_transformers(folder: Path, content_hash: str) -> FastTokenizer:
    """The backend that `AutoTokenizer` runs.

    Args:
        content_hash: Of the folder; a changed folder is read again.

    Raises:
        ImportError: `transformers` is not installed, or lacks a library for this tokenizer.
        Exception: the folder has no tokenizer that it can load, or one in Python alone.
    """
    from transformers import AutoTokenizer

    _import_sentencepiece_model()
    with warnings.catch_warnings(action="ignore"), _quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError("its tokenizer has no fast form")
    content = str(backend.to_str()).encode()
    if SEGMENTS not in tokenizer.model_input_names:
        content = without_segments(content)
    names = tokenizer.special_tokens_map
    special = {name: str(text) for name, text in names.items()}
    return FastTokenizer(content, special, tokenizer.padding_side)


def without_segments(content: bytes) -> bytes:
    """`tokenizer.json` that puts all tokens of a pair into segment 0.

    `transformers` sends no segments where a tokenizer's `model_input_names` lack them, and the
    network then takes all for 0, whatever the post-processor says.
    """
    tokenizer = json.loads(content)
    processor = tokenizer.get("post_processor") or {}
    changed = False
    for each in (processor, *(processor.get("processors") or ())):
        for name in ("single", "pair"):
            for piece in each.get(name) or ():
                for part in piece.values():
                    changed |= part["type_id"] != 0
                    part["type_id"] = 0
    return json.dumps(tokenizer, ensure_ascii=False).encode() if changed else content


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without the notes of `transformers`, e.g. that a `model_type` of ours is unknown to it."""
    from transformers.utils import logging as notes

    level = notes.get_verbosity()
    notes.set_verbosity_error()
    try:
        yield
    finally:
        notes.set_verbosity(level)


def _import_sentencepiece_model() -> None:
    """Imports the message class of `.model` files, which `transformers` converts with.

    Its generated code may be newer than the protobuf runtime, which grpcio and Triton's client
    hold back; protobuf refuses that unless this variable is set, and `transformers` then fails
    with the advice to install tiktoken. The message has been the same since 2018.
    """
    before = os.environ.get(_NO_PROTOBUF_CHECK)
    os.environ[_NO_PROTOBUF_CHECK] = "true"
    try:
        with suppress(ImportError):
            import_module("sentencepiece.sentencepiece_model_pb2")
    finally:
        os.environ.pop(_NO_PROTOBUF_CHECK)
        if before is not None:
            os.environ[_NO_PROTOBUF_CHECK] = before


def _pieces(checkpoint: Checkpoint, file: str) -> Any:
    """The message in a file of sentencepiece.

    Raises:
        CheckpointError: it is damaged.
    """
    from google.protobuf.message import DecodeError

    _import_sentencepiece_model()
    message = import_module("sentencepiece.sentencepiece_model_pb2").ModelProto
    try:
        return message.FromString(read_file(checkpoint, file))
    except DecodeError as error:
        raise CheckpointError(f"{checkpoint.folder / file} is damaged: {error}") from error


def check_tokenizers(spec: TokenizerSpec | None, files: Mapping[str, bytes]) -> None:
    """Refuses a `tokenizer.json` that serving could not load, or not use.

    Raises:
        CheckpointError: it is none.
    """
    named = {} if spec is None or spec.kind != "tokenizers" else spec.files
    for file in named.values():
        try:
            Tokenizer.from_str(files[file].decode()).encode("a \n")
        except BaseException as error:  # `tokenizers` raises bare Exception, and panics
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise CheckpointError(f"{file} is damaged: {error}") from error


def read_file(checkpoint: Checkpoint, file: str) -> bytes:
    """The contents of a file of the checkpoint.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        return (checkpoint.folder / file).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{checkpoint.folder} has no readable {file}") from error
