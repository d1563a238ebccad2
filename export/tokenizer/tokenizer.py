"""Which tokenizer files travel with a bundle, and the special ids that go with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from typing import Any, Literal

from tokenizers import Tokenizer

from export.checkpoint.checkpoint import Checkpoint, read_json
from export.tokenizer.byte_tokenizer import is_of_bytes, with_special_tokens
from export.tokenizer.tokenizer_json import (
    FAST_FILE,
    SETTINGS,
    FastTokenizer,
    read_fast_tokenizer,
    read_file,
)
from inference.bundle.inputs import TokenizerSpec
from inference.errors import CheckpointError

SPECIAL_TOKENS = "special_tokens_map.json"
MASK_TOKENS = ("[MASK]", "<mask>")
_MORE_NAMES = ("extra_special_tokens", "model_specific_special_tokens")
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
    contents = {file: read_file(checkpoint, file) for file in files.values()}
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
        adds_end=checkpoint.json(SETTINGS).get("add_eos_token") is not False,
    )
    return spec, contents


def moses_pair(checkpoint: Checkpoint) -> tuple[TokenizerSpec, TokenizerFiles]:
    """FSMT's two vocabularies and its byte pairs.

    Raises:
        CheckpointError: a file, a special token or the languages are missing, or what the tokenizer
            would do is not supported.
    """
    files = {"vocab": "vocab-src.json", "target_vocab": "vocab-tgt.json", "merges": "merges.txt"}
    settings, place = checkpoint.json(SETTINGS), checkpoint.folder / SETTINGS
    pair: Any = settings.get("langs")
    if not _are_two_texts(pair):
        raise CheckpointError(f"{place}: langs must be the codes of two languages, not {pair!r}")
    if settings.get("do_lower_case"):
        raise CheckpointError(f"{place}: do_lower_case = true is not supported")
    if pair[1] == "cs":
        raise CheckpointError(f"{place}: sacremoses fails at texts in Czech, the target's language")
    ids = _end_and_others(checkpoint, files["vocab"], end="sep")
    if _end_and_others(checkpoint, files["target_vocab"], end="sep") != ids:
        raise CheckpointError(f"{checkpoint.folder}: special tokens have other ids in the target")
    known = set(ids.values())
    added = settings.get("added_tokens_decoder") or {}
    others = [str(_content(token)) for number, token in added.items() if int(number) not in known]
    if others:
        raise CheckpointError(f"{place}: added tokens are not supported: {', '.join(others)}")
    spec = TokenizerSpec(
        kind="moses_pair",
        files=files,
        languages=pair,
        clean_up_spaces=settings.get("clean_up_tokenization_spaces") is True,
        **ids,
    )
    return spec, {file: read_file(checkpoint, file) for file in files.values()}


PAIRS = {"sentencepiece_pair": sentencepiece_pair, "moses_pair": moses_pair}
"""Kinds with a vocabulary or a model for each side."""


def _are_two_texts(value: object) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [str, str]


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
    fast = read_fast_tokenizer(checkpoint)
    settings = checkpoint.json(SETTINGS)
    if is_of_bytes(checkpoint.config, settings):
        settings = with_special_tokens(settings)
    ids = {
        name: _special_id(name, settings, fast, checkpoint.config)
        for name in ("pad_token", "eos_token", "bos_token", "unk_token")
    }
    pad = ids["eos_token"] if ids["pad_token"] is None else ids["pad_token"]
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
        padding_side=_padding_side(fast, checkpoint),
        files={"tokenizer": FAST_FILE},
        clean_up_spaces=settings.get("clean_up_tokenization_spaces") is True,
    )
    return spec, {FAST_FILE: fast.content}


def _padding_side(fast: FastTokenizer, checkpoint: Checkpoint) -> Literal["right", "left"]:
    """The side that `AutoTokenizer` of the folder pads on.

    Raises:
        CheckpointError: neither left nor right.
    """
    if fast.padding_side not in ("right", "left"):
        raise CheckpointError(
            f"{checkpoint.folder / SETTINGS}: padding_side must be left or right, "
            f"not {fast.padding_side!r}"
        )
    return "left" if fast.padding_side == "left" else "right"


def mask_token(checkpoint: Checkpoint) -> tuple[str, int]:
    """The token that stands for a masked word, and its id.

    Old folders do not name it: there it is the token of BERT's or RoBERTa's tokenizers.

    Raises:
        CheckpointError: the tokenizer has none.
    """
    fast = read_fast_tokenizer(checkpoint)
    known = fast.vocabulary | fast.added
    for text in (*_names_of(checkpoint, "mask_token"), *MASK_TOKENS):
        if text in known:
            return text, known[text]
    raise CheckpointError(f"{checkpoint.folder}: the tokenizer has no mask token")


def class_token_id(checkpoint: Checkpoint) -> int | None:
    """The id of the token that stands for a whole text, `[CLS]` or `<s>`; None if there is none."""
    fast = read_fast_tokenizer(checkpoint)
    return _special_id("cls_token", checkpoint.json(SETTINGS), fast, {})


def special_tokens(checkpoint: Checkpoint) -> dict[str, int]:
    """Text → id of the special tokens that the tokenizer adds to its vocabulary.

    Raises:
        CheckpointError: no tokenizer, or a damaged one.
    """
    if is_vocabulary_of_pieces(checkpoint):
        return _added_to_pieces(checkpoint)
    return read_fast_tokenizer(checkpoint).added


def special_text(checkpoint: Checkpoint, name: str) -> str | None:
    """The text of a special token, e.g. `bos_token`, from the tokenizer's settings."""
    return next(iter(_names_of(checkpoint, name)), None)


def _names_of(checkpoint: Checkpoint, name: str) -> list[str]:
    """What the settings, their sections of further names, and the older file say, in that order.

    `transformers` 5 writes names of a model's own beside the usual ones, and a list of tokens
    without names as `extra_special_tokens`.
    """
    settings = checkpoint.json(SETTINGS)
    sections = [settings, *(settings.get(section) for section in _MORE_NAMES)]
    sections.append(checkpoint.json(SPECIAL_TOKENS))
    texts = [_content(each.get(name)) for each in sections if isinstance(each, Mapping)]
    return [text for text in texts if text is not None]


def languages(checkpoint: Checkpoint) -> tuple[tuple[str, str], ...]:
    """(source, target), from the tokenizer's settings, else from a name like `opus-mt-es-en`."""
    settings = checkpoint.json(SETTINGS)
    pair: Any = settings.get("langs")
    if not _are_two_texts(pair):
        pair = settings.get("source_lang"), settings.get("target_lang")
    if all(isinstance(code, str) and re.fullmatch("[a-z]{2}", code) for code in pair):
        return ((str(pair[0]), str(pair[1])),)
    named = _LANGUAGES.search(checkpoint.name)
    return ((named[1], named[2]),) if named else ()


def is_vocabulary_of_pieces(checkpoint: Checkpoint) -> bool:
    """Whether ids come from a `vocab.json` of sentencepiece's pieces (M2M-100)."""
    has_pieces = checkpoint.has(PIECES_FILE) and checkpoint.has(VOCABULARY)
    return has_pieces and not checkpoint.has(FAST_FILE)


def _sentencepiece(checkpoint: Checkpoint) -> tuple[TokenizerSpec, TokenizerFiles]:
    """One sentencepiece model for both sides, ids from `vocab.json`, special tokens behind them."""
    settings = checkpoint.json(SETTINGS)
    files = {"pieces": PIECES_FILE, "vocab": VOCABULARY}
    spec = TokenizerSpec(
        kind="sentencepiece",
        files=files,
        special_tokens=_added_to_pieces(checkpoint),
        clean_up_spaces=settings.get("clean_up_tokenization_spaces") is True,
        **_end_and_others(checkpoint, VOCABULARY),
    )
    return spec, {file: read_file(checkpoint, file) for file in files.values()}


def _end_and_others(checkpoint: Checkpoint, file: str, end: str = "eos") -> dict[str, Any]:
    """The ids of fairseq's four special tokens in a vocabulary.

    Args:
        end: The end token's name in the tokenizer's settings.
    """
    vocabulary, settings = read_json(checkpoint.folder / file), checkpoint.json(SETTINGS)
    ids = {}
    for name, default in (("pad", "<pad>"), ("eos", "</s>"), ("unk", "<unk>"), ("bos", "<s>")):
        text = _content(settings.get(f"{end if name == 'eos' else name}_token")) or default
        if text not in vocabulary:
            raise CheckpointError(f"{checkpoint.folder / file} has no {text}")
        ids[f"{name}_token_id"] = vocabulary[text]
    return ids


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
    name: str, settings: Mapping[str, Any], fast: FastTokenizer, config: Mapping[str, Any]
) -> int | None:
    """A special token's id: by its text in the settings, from the configuration, or by its class.

    Old folders name no tokens (`{"do_lower_case": true}`), and their `config.json` not all. A text
    that only a class has must be in the vocabulary: `transformers` adds what is not behind it,
    where the network has no row.
    """
    text, known = _content(settings.get(name)), fast.vocabulary | fast.added
    if text in known:
        return known[text]
    for section in (config, config.get("decoder"), config.get("text_config")):
        value = (section or {}).get(f"{name}_id")
        if isinstance(value, list) and value:  # several end tokens; the first one pads
            value = value[0]
        if isinstance(value, int):
            return value
    own = fast.special.get(name)
    return None if own is None else fast.vocabulary.get(own)


def _content(token: object) -> str | None:
    """The text of a special token, which settings hold as such or with its options."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def with_written_tokens(content: bytes, control: Set[str]) -> bytes:
    """`tokenizer.json` whose special tokens are part of a decoded text.

    Args:
        control: Those that are not.
    """
    tokenizer = json.loads(content)
    for token in tokenizer.get("added_tokens") or ():
        token["special"] = token["content"] in control
    return json.dumps(tokenizer, ensure_ascii=False).encode()


def marks_single_texts(files: TokenizerFiles) -> bool:
    """Whether tokens of a single text are in another segment than 0, as XLNet's class token is."""
    if FAST_FILE not in files:
        return False
    return any(Tokenizer.from_str(files[FAST_FILE].decode()).encode("a").type_ids)
