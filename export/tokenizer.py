"""Which tokenizer files travel with a bundle, and the special ids that go with them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from export.checkpoint import Checkpoint, read_json
from serving.bundle import TokenizerSpec
from serving.errors import CheckpointError

FAST_FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
_PREFIX = re.compile(r">>\S+<<")
_LANGUAGES = re.compile(r"(?:^|[-_])([a-z]{2})-([a-z]{2})$")

TokenizerFiles = Mapping[str, bytes]
"""File name in the bundle → contents."""


def sentencepiece_pair(checkpoint: Checkpoint) -> tuple[TokenizerSpec, TokenizerFiles]:
    """Marian's two sentencepiece models and one vocabulary.

    Raises:
        CheckpointError: a file or a special token is missing.
    """
    files = {"source": "source.spm", "target": "target.spm", "vocab": "vocab.json"}
    if checkpoint.has("target_vocab.json"):  # `separate_vocabs`
        files["target_vocab"] = "target_vocab.json"
    contents = {file: _read(checkpoint, file) for file in files.values()}
    vocabulary = read_json(checkpoint.folder / files["vocab"])
    for token in ("<pad>", "</s>", "<unk>"):
        if token not in vocabulary:
            raise CheckpointError(f"{checkpoint.folder / 'vocab.json'} has no {token}")
    spec = TokenizerSpec(
        kind="sentencepiece_pair",
        pad_token_id=vocabulary["<pad>"],
        eos_token_id=vocabulary["</s>"],
        unk_token_id=vocabulary["<unk>"],
        files=files,
        target_prefixes=tuple(sorted(token for token in vocabulary if _PREFIX.fullmatch(token))),
    )
    return spec, contents


def fast_tokenizer(checkpoint: Checkpoint) -> tuple[TokenizerSpec, TokenizerFiles]:
    """`tokenizer.json`, converted from older files where there is none.

    Raises:
        CheckpointError: no tokenizer, or one that has to be converted and cannot be here.
    """
    content = _read(checkpoint, FAST_FILE) if checkpoint.has(FAST_FILE) else _converted(checkpoint)
    settings = checkpoint.json(SETTINGS)
    try:
        tokenizer = json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.folder / FAST_FILE} is damaged: {error}") from error
    ids = {
        name: _special_id(name, settings, tokenizer, checkpoint.config)
        for name in ("pad_token", "eos_token", "bos_token", "unk_token")
    }
    pad = ids["pad_token"]
    pad = ids["eos_token"] if pad is None else pad
    if pad is None:
        raise CheckpointError(f"{checkpoint.folder}: no padding or end token in {SETTINGS}")
    spec = TokenizerSpec(
        kind="tokenizers",
        pad_token_id=pad,
        eos_token_id=ids["eos_token"],
        bos_token_id=ids["bos_token"],
        unk_token_id=ids["unk_token"],
        files={"tokenizer": FAST_FILE},
        clean_up_spaces=settings.get("clean_up_tokenization_spaces") is True,
    )
    return spec, {FAST_FILE: content}


def languages(checkpoint: Checkpoint) -> tuple[tuple[str, str], ...]:
    """(source, target), from the tokenizer's settings, else from a name like `opus-mt-es-en`."""
    settings = checkpoint.json(SETTINGS)
    pair = settings.get("source_lang"), settings.get("target_lang")
    if all(isinstance(code, str) and re.fullmatch("[a-z]{2}", code) for code in pair):
        return ((str(pair[0]), str(pair[1])),)
    named = _LANGUAGES.search(checkpoint.name)
    return ((named[1], named[2]),) if named else ()


def _special_id(
    name: str, settings: Mapping[str, Any], tokenizer: Mapping[str, Any], config: Mapping[str, Any]
) -> int | None:
    """A special token's id: from the tokenizer by its text, else from the configuration."""
    token = settings.get(name)
    text = token.get("content") if isinstance(token, Mapping) else token
    vocabulary = tokenizer.get("model", {}).get("vocab")
    known = dict(vocabulary) if isinstance(vocabulary, Mapping) else {}
    known |= {added["content"]: added["id"] for added in tokenizer.get("added_tokens", ())}
    if text in known:
        return int(known[text])
    for section in (config, config.get("decoder"), config.get("text_config")):
        value = (section or {}).get(f"{name}_id")
        if isinstance(value, int):
            return value
    return None


def _converted(checkpoint: Checkpoint) -> bytes:
    """`tokenizer.json` made by `transformers`' own converter (extra `[convert]`).

    Raises:
        CheckpointError: `transformers` is not installed, or has no such tokenizer.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise CheckpointError(
            f"{checkpoint.folder} has no {FAST_FILE}; install the converter with "
            "`pip install 'triptych[convert]'`, or save the tokenizer in the fast format"
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        try:
            AutoTokenizer.from_pretrained(str(checkpoint.folder)).save_pretrained(folder)
            return (Path(folder) / FAST_FILE).read_bytes()
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise CheckpointError(
                f"{checkpoint.folder} has no {FAST_FILE} and it could not be made: {error}"
            ) from error


def _read(checkpoint: Checkpoint, file: str) -> bytes:
    try:
        return (checkpoint.folder / file).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{checkpoint.folder} has no readable {file}") from error
