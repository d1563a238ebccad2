"""Perceiver's tokenizer as a `tokenizer.json`: each byte of a text's UTF-8 is a token.

Jaegle et al. 2021, "Perceiver IO", §4.1 (arXiv 2107.14795): no vocabulary is learned.
`transformers` has this tokenizer in Python only, so the file is written here and not converted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import pre_tokenizers

from inference.errors import CheckpointError

CLASS = "PerceiverTokenizer"
MODEL_TYPE = "perceiver"
SPECIAL = ("pad", "bos", "eos", "mask", "cls", "sep")
"""Names in the order of their ids; byte b has the id 6 + b."""
BYTES = 256
_FLAGS = ("lstrip", "rstrip", "single_word")


def is_of_bytes(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether `config.json` and `tokenizer_config.json` select this tokenizer."""
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    return named == CLASS or (named is None and config.get("model_type") == MODEL_TYPE)


def with_special_tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the names of special tokens that they leave out."""
    given = {name: token for name, token in settings.items() if token is not None}
    return {f"{name}_token": f"[{name.upper()}]" for name in SPECIAL} | given


def byte_tokenizer(settings: Mapping[str, Any]) -> bytes:
    """The contents of `tokenizer.json`.

    A text's bytes are written as ByteLevel's 256 characters, each of which is a word of the
    vocabulary; the special tokens are found in the text before that.

    Raises:
        CheckpointError: added tokens whose ids do not follow the bytes.
    """
    named = with_special_tokens(settings)
    special = [
        _entry(number, named[f"{name}_token"], is_special=True)
        for number, name in enumerate(SPECIAL)
    ]
    vocabulary = {token["content"]: token["id"] for token in special}
    vocabulary |= {sign: len(SPECIAL) + value for value, sign in enumerate(_alphabet())}
    first, last = special[SPECIAL.index("cls")]["content"], special[SPECIAL.index("sep")]["content"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    byte_level["use_regex"] = False
    each = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    file = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [*special, *_further(settings)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [byte_level, each]},
        "post_processor": _template(first, last, vocabulary),
        "decoder": byte_level,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": first},
    }
    return json.dumps(file, ensure_ascii=False).encode()


def _alphabet() -> list[str]:
    """The character that ByteLevel writes for each byte, in the order of the bytes.

    Printable ASCII and Latin-1 stand for themselves, the others for characters from U+0100 on.
    """
    known = set(pre_tokenizers.ByteLevel.alphabet())
    itself = [chr(value) in known for value in range(BYTES)]
    others = iter(range(BYTES, 2 * BYTES))
    return [chr(value if itself[value] else next(others)) for value in range(BYTES)]


def _entry(number: int, token: object, *, is_special: bool) -> dict[str, Any]:
    options = token if isinstance(token, Mapping) else {}
    content = options.get("content", token)
    flags = {flag: options.get(flag) is True for flag in _FLAGS}
    return {"id": number, "content": content, "normalized": False, "special": is_special, **flags}


def _further(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tokens that the folder adds behind the bytes."""
    start = len(SPECIAL) + BYTES
    listed = settings.get("added_tokens_decoder") or {}
    found = {int(number): token for number, token in listed.items() if int(number) >= len(SPECIAL)}
    if sorted(found) != list(range(start, start + len(found))):
        raise CheckpointError(
            f"tokenizer_config.json: added_tokens_decoder has the ids {sorted(found)}; "
            f"a {CLASS}'s start at {start} and have no gaps"
        )
    return [
        _entry(number, token, is_special=token.get("special") is True)
        for number, token in sorted(found.items())
    ]


def _template(first: str, last: str, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """`[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`; the second text has segment 1."""

    def special(text: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": text, "type_id": segment}}

    def sequence(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special(first, 0), sequence("A", 0), special(last, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, sequence("B", 1), special(last, 1)],
        "special_tokens": {
            text: {"id": text, "ids": [vocabulary[text]], "tokens": [text]}
            for text in (first, last)
        },
    }
