"""Which tokenizer files travel with a bundle, and the special ids that go with them."""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from export.checkpoint.checkpoint import INSTRUCTION_TOKENIZER, Checkpoint, read_json
from export.tokenizer.byte_tokenizer import byte_tokenizer, is_of_bytes, with_special_tokens
from export.tokenizer.siglip_tokenizer import PIECES_FILE as SIGLIP_PIECES
from export.tokenizer.siglip_tokenizer import is_siglip, tokenizer_json
from inference.bundle.manifest import TokenizerSpec
from inference.errors import CheckpointError

FAST_FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
SEGMENTS = "token_type_ids"
MASK_TOKENS = ("[MASK]", "<mask>")
PIECES_FILE = "sentencepiece.bpe.model"
VOCABULARY = "vocab.json"
_LANGUAGE_ORDERS = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""The languages of M2M-100 (Fan et al. 2021, arXiv 2010.11125, table 1) and of its WMT 2021 models,
in the order of their tokens' ids."""
_NO_PROTOBUF_CHECK = "TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK"
_PREFIX = re.compile(r">>\S+<<")
_LANGUAGES = re.compile(r"(?:^|[-_])([a-z]{2})-([a-z]{2})$")

log = logging.getLogger(__name__)

TokenizerFiles = Mapping[str, bytes]
"""File name in the bundle → contents."""


@dataclass(frozen=True)
class _Fast:
    """A `tokenizer.json`.

    Attributes:
        content: As it travels with a bundle.
        special: Name → text of the special tokens of the tokenizer's class, e.g. `pad_token`; empty
            where `transformers` does not load it.
    """

    content: bytes
    special: Mapping[str, str]

    @cached_property
    def parsed(self) -> dict[str, Any]:
        """The content."""
        tokenizer: dict[str, Any] = json.loads(self.content)
        return tokenizer


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


def fast_tokenizer(
    checkpoint: Checkpoint, *, needs_padding: bool = True
) -> tuple[TokenizerSpec, TokenizerFiles]:
    """`tokenizer.json`, converted from older files where there is none.

    Args:
        needs_padding: Whether a padding or an end token must be there. Decoders of prompts alone
            mask what they pad, so that any token will do; GPT-1 is published with neither.

    Raises:
        CheckpointError: no tokenizer, or one that has to be converted and cannot be here.
    """
    if is_vocabulary_of_pieces(checkpoint):
        return _sentencepiece(checkpoint)
    fast = _fast(checkpoint)
    settings = checkpoint.json(SETTINGS)
    if is_of_bytes(checkpoint.config, settings):
        settings = with_special_tokens(settings)
    ids = {
        name: _special_id(name, settings, fast, checkpoint.config)
        for name in ("pad_token", "eos_token", "bos_token", "unk_token")
    }
    pad = ids["pad_token"]
    pad = ids["eos_token"] if pad is None else pad
    if pad is None and not needs_padding:
        pad = ids["unk_token"] or 0
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
    return spec, {FAST_FILE: fast.content}


def instruction_file(checkpoint: Checkpoint) -> tuple[str, bytes]:
    """Name in a bundle, and content, of the tokenizer of what an image encoder reads.

    Raises:
        CheckpointError: there is no such file.
    """
    file = f"{INSTRUCTION_TOKENIZER}/{FAST_FILE}"
    return f"{INSTRUCTION_TOKENIZER}.json", _read(checkpoint, file)


def mask_token(checkpoint: Checkpoint) -> tuple[str, int]:
    """The token that stands for a masked word, and its id.

    Old folders do not name it: there it is the token of BERT's or RoBERTa's tokenizers.

    Raises:
        CheckpointError: the tokenizer has none.
    """
    known = _vocabulary(_fast(checkpoint).parsed)
    named = [checkpoint.json(file).get("mask_token") for file in (SETTINGS, SPECIAL_TOKENS)]
    texts = [_content(token) for token in named if token is not None]
    for text in (*texts, *MASK_TOKENS):
        if text is not None and text in known:
            return text, known[text]
    raise CheckpointError(f"{checkpoint.folder}: the tokenizer has no mask token")


def special_tokens(checkpoint: Checkpoint) -> dict[str, int]:
    """Text → id of the special tokens that the tokenizer adds to its vocabulary.

    Raises:
        CheckpointError: no tokenizer, or a damaged one.
    """
    if is_vocabulary_of_pieces(checkpoint):
        return _added_to_pieces(checkpoint)
    tokenizer = _fast(checkpoint).parsed
    return {added["content"]: added["id"] for added in tokenizer.get("added_tokens", ())}


def special_text(checkpoint: Checkpoint, name: str) -> str | None:
    """The text of a special token, e.g. `bos_token`, from the tokenizer's settings."""
    for file in (SETTINGS, SPECIAL_TOKENS):
        text = _content(checkpoint.json(file).get(name))
        if text is not None:
            return text
    return None


def languages(checkpoint: Checkpoint) -> tuple[tuple[str, str], ...]:
    """(source, target), from the tokenizer's settings, else from a name like `opus-mt-es-en`."""
    settings = checkpoint.json(SETTINGS)
    pair = settings.get("source_lang"), settings.get("target_lang")
    if all(isinstance(code, str) and re.fullmatch("[a-z]{2}", code) for code in pair):
        return ((str(pair[0]), str(pair[1])),)
    named = _LANGUAGES.search(checkpoint.name)
    return ((named[1], named[2]),) if named else ()


def _fast(checkpoint: Checkpoint) -> _Fast:
    """`tokenizer.json` as `transformers` uses it.

    Most tokenizer classes of `transformers` 5 take vocabulary and merges from the file and build
    normaliser, pre-tokenizer and post-processor themselves, by `tokenizer_config.json`
    (`do_lower_case`, `add_prefix_space`, `legacy`, `add_bos_token`): what the file holds of those
    is ignored. Where `transformers` is not installed the file is used as it is.
    """
    if is_siglip(checkpoint, settings := checkpoint.json(SETTINGS)):
        return _Fast(tokenizer_json(_pieces(checkpoint, SIGLIP_PIECES), settings), {})
    if checkpoint.has(FAST_FILE):
        content = _read(checkpoint, FAST_FILE)
        try:
            json.loads(content)
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.folder / FAST_FILE} is damaged: {error}") from error
        return _rebuilt(checkpoint) or _Fast(content, {})
    if is_of_bytes(checkpoint.config, settings):
        return _Fast(byte_tokenizer(settings), {})
    return _converted(checkpoint)


def is_vocabulary_of_pieces(checkpoint: Checkpoint) -> bool:
    """Whether ids come from a `vocab.json` of sentencepiece's pieces (M2M-100)."""
    return not checkpoint.has(FAST_FILE) and all(
        checkpoint.has(file) for file in (PIECES_FILE, VOCABULARY)
    )


def _sentencepiece(checkpoint: Checkpoint) -> tuple[TokenizerSpec, TokenizerFiles]:
    """One sentencepiece model for both sides, ids from `vocab.json`, special tokens behind them."""
    vocabulary = read_json(checkpoint.folder / VOCABULARY)
    settings = checkpoint.json(SETTINGS)
    ids = {}
    for name, default in (("pad", "<pad>"), ("eos", "</s>"), ("unk", "<unk>"), ("bos", "<s>")):
        token = settings.get(f"{name}_token") or default
        text = token.get("content") if isinstance(token, Mapping) else token
        if text not in vocabulary:
            raise CheckpointError(f"{checkpoint.folder / VOCABULARY} has no {text}")
        ids[f"{name}_token_id"] = vocabulary[text]
    files = {"pieces": PIECES_FILE, "vocab": VOCABULARY}
    spec = TokenizerSpec(
        kind="sentencepiece",
        files=files,
        special_tokens=_added_to_pieces(checkpoint),
        clean_up_spaces=settings.get("clean_up_tokenization_spaces") is True,
        **ids,
    )
    return spec, {file: _read(checkpoint, file) for file in files.values()}


def _added_to_pieces(checkpoint: Checkpoint) -> dict[str, int]:
    """`__xx__` of every language → its id; they follow the vocabulary in a fixed order."""
    size = len(read_json(checkpoint.folder / VOCABULARY))
    order = checkpoint.json(SETTINGS).get("language_codes", "m2m100")
    if order not in _LANGUAGE_ORDERS:
        raise CheckpointError(
            f"{checkpoint.folder / SETTINGS}: language_codes = {order!r} is not supported, "
            f"only {', '.join(_LANGUAGE_ORDERS)} are"
        )
    codes = _LANGUAGE_ORDERS[order].split()
    return {f"__{code}__": size + place for place, code in enumerate(codes)}


def _special_id(
    name: str, settings: Mapping[str, Any], fast: _Fast, config: Mapping[str, Any]
) -> int | None:
    """A special token's id: by its text in the settings, from the configuration, or by its class.

    Old folders name no tokens (`{"do_lower_case": true}`), and their `config.json` not all. A text
    that only a class has must be in the vocabulary: `transformers` adds what is not behind it,
    where the network has no row.
    """
    text = _content(settings.get(name))
    known = _vocabulary(fast.parsed)
    if text in known:
        return known[text]
    for section in (config, config.get("decoder"), config.get("text_config")):
        value = (section or {}).get(f"{name}_id")
        if isinstance(value, list) and value:  # several end tokens; the first one pads
            value = value[0]
        if isinstance(value, int):
            return value
    return _vocabulary(fast.parsed, has_added=False).get(fast.special.get(name))


def _content(token: object) -> str | None:
    """The text of a special token, which settings hold as such or with its options."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _vocabulary(tokenizer: Mapping[str, Any], *, has_added: bool = True) -> dict[str | None, int]:
    """Token → id; the pieces of a Unigram model are listed in the order of their ids."""
    vocabulary = tokenizer.get("model", {}).get("vocab")
    known: dict[str | None, int] = {}
    if isinstance(vocabulary, Mapping):
        known |= vocabulary
    elif isinstance(vocabulary, list):
        known |= {piece: index for index, (piece, _) in enumerate(vocabulary)}
    added = tokenizer.get("added_tokens", ()) if has_added else ()
    return known | {each["content"]: each["id"] for each in added}


def _rebuilt(checkpoint: Checkpoint) -> _Fast | None:
    """The file as `AutoTokenizer` builds it; None where it does not load."""
    try:
        return _from_transformers(checkpoint.folder, checkpoint.content_hash())
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


def _converted(checkpoint: Checkpoint) -> _Fast:
    """`tokenizer.json` made by `transformers`' own converter (extra `[convert]`).

    Raises:
        CheckpointError: `transformers` is not installed, or has no such tokenizer.
    """
    try:
        converted = _from_transformers(checkpoint.folder, checkpoint.content_hash())
    except ImportError as error:
        if error.name != "transformers":
            raise CheckpointError(
                f"{checkpoint.folder} has no {FAST_FILE} and it could not be made: {error}"
            ) from error
        raise CheckpointError(
            f"{checkpoint.folder} has no {FAST_FILE}; install the converter with "
            "`pip install 'triptych[convert]'`, or save the tokenizer in the fast format"
        ) from None
    except Exception as error:  # `tokenizers` raises bare Exception
        raise CheckpointError(
            f"{checkpoint.folder} has no {FAST_FILE} and it could not be made: {error}"
        ) from error
    if converted is None:
        raise CheckpointError(f"{checkpoint.folder} has a tokenizer without a fast form")
    return converted


@lru_cache(maxsize=1)
def _from_transformers(folder: Path, content_hash: str) -> _Fast | None:
    """The backend that `AutoTokenizer` runs; None for one in Python.

    Args:
        content_hash: Of the folder; a changed folder is read again.

    Raises:
        ImportError: `transformers` is not installed, or lacks a library for this tokenizer.
        Exception: the folder has no tokenizer that it can load.
    """
    from transformers import AutoTokenizer

    _import_sentencepiece_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    content = str(backend.to_str()).encode()
    if SEGMENTS not in tokenizer.model_input_names:
        content = without_segments(content)
    names = tokenizer.special_tokens_map
    return _Fast(content, {name: str(text) for name, text in names.items()})


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


def with_written_tokens(content: bytes, control: Set[str]) -> bytes:
    """`tokenizer.json` whose special tokens are part of a decoded text.

    Args:
        control: Those that are not.
    """
    tokenizer = json.loads(content)
    for token in tokenizer.get("added_tokens") or ():
        token["special"] = token["content"] in control
    return json.dumps(tokenizer, ensure_ascii=False).encode()


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
        return message.FromString(_read(checkpoint, file))
    except DecodeError as error:
        raise CheckpointError(f"{checkpoint.folder / file} is damaged: {error}") from error


def _read(checkpoint: Checkpoint, file: str) -> bytes:
    try:
        return (checkpoint.folder / file).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{checkpoint.folder} has no readable {file}") from error


def marks_single_texts(files: TokenizerFiles) -> bool:
    """Whether tokens of a single text are in another segment than 0, as XLNet's class token is."""
    if FAST_FILE not in files:
        return False
    tokenizer = Tokenizer.from_str(files[FAST_FILE].decode())
    return any(tokenizer.encode("a").type_ids)
