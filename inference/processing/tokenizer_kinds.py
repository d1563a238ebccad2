"""Tokenizers with the same ids and texts as `transformers`, without `transformers`.

Four kinds: a pair of sentencepiece models with one vocabulary (Marian's), one such model with a
vocabulary, Moses' words in byte pairs, and everything that `tokenizers` reads from a
`tokenizer.json`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as RustTokenizer
from tokenizers.models import BPE

from inference.bundle.inputs import INSTRUCTION, TokenizerSpec
from inference.bundle.manifest import Bundle
from inference.errors import BundleError
from inference.processing.detokenizer import (
    Detokenizer,
    Filter,
    GrowingDetokenizer,
    Replacement,
    Stripping,
)
from inference.processing.tokenizer import EncodedText, Rows, Tokenizer

WORD_START = "▁"  # sentencepiece's mark for a space
_LETTER = "x"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)
# The same replacements in the same order as `transformers`' clean_up_tokenization.
_CLEAN_UP = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


_UNKNOWN = "<unk>"
_WORD_END = "</w>"
_DASH = "@-@"
"""Moses' word for a dash within one, which joins those beside it."""
_LOOKING_AHEAD = frozenset({"cs", "fi", "fr", "ga", "it"})
"""Languages in which a word's space may depend on the words behind it."""

ANY = Rows()


class SentencePiecePair:
    """Marian's tokenizer: one sentencepiece model a side, ids from a shared `vocab.json`.

    The ids are those of `transformers.MarianTokenizer`: special tokens written out in the text
    (`</s>`) become themselves, a leading `>>xx<<` is one token, pieces that the vocabulary lacks
    are unknown. The kind `sentencepiece` is the same with one model for both sides, further
    special tokens behind the vocabulary, and no `>>xx<<` (`transformers.M2M100Tokenizer`).
    """

    def __init__(self, spec: TokenizerSpec, folder: Path, rows: Rows = ANY) -> None:
        self._rows = rows
        self._has_prefixes = spec.kind == "sentencepiece_pair"
        self._source, self._target = self._sides(spec, folder)
        self._ids = _vocabulary(folder / spec.files["vocab"]) | spec.special_tokens
        self._unknown, self._end = _require_token(spec, "unk"), _require_token(spec, "eos")
        self._special_ids = {spec.pad_token_id, self._end, self._unknown, spec.bos_token_id}
        special = {piece for piece, number in self._ids.items() if number in self._special_ids}
        special |= set(spec.special_tokens)
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        # Folders with `separate_vocabs` have a vocabulary for each side.
        target = _vocabulary(folder / spec.files.get("target_vocab", spec.files["vocab"]))
        target |= spec.special_tokens
        self._pieces = {n: piece for piece, n in target.items() if piece not in special}
        self._target_ids = {piece: number for number, piece in self._pieces.items()}
        self._source_names = {number: piece for piece, number in self._ids.items()}
        self._target_names = {number: piece for piece, number in target.items()}
        self._clean_up = spec.clean_up_spaces
        self._adds_end = spec.adds_end

    def _sides(self, spec: TokenizerSpec, folder: Path) -> tuple[Any, Any]:
        """What divides sources, and targets, into pieces."""
        sides = ("source", "target") if self._has_prefixes else ("pieces", "pieces")
        source, target = (
            SentencePieceProcessor(model_file=str(folder / spec.files[side])) for side in sides
        )
        return source, target

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a source text, `</s>` at the end where the model reads it."""
        ids = [self._ids.get(piece, self._unknown) for piece in self._split(text)]
        ids += [self._end] if add_special_tokens and self._adds_end else []
        self._rows.check(ids, self._source_names.get)
        return ids

    def tokens_without_rows(self) -> list[str]:
        """Tokens for texts of which the model has no embedding."""
        return self._rows.without(self._ids.items())

    def encode_output(self, text: str) -> list[int] | None:
        """Ids of a target text; None if the vocabulary lacks a piece of it."""
        found = [self._target_ids.get(piece) for piece in self._target.encode(text, out_type=str)]
        ids = [number for number in found if number is not None]
        return ids if None not in found and self._rows.writes(ids) else None

    def decode(self, ids: Sequence[int]) -> str:
        text = self._raw(ids).strip()
        return clean_up(text) if self._clean_up else text

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(
            self._raw, [Stripping(), *(_clean_up_filters() if self._clean_up else ())]
        )

    def pieces(self, ids: Sequence[int], *, of_source: bool = False) -> list[str]:
        """Pieces of either side; a space in place of the mark at the start of a word."""
        names = self._source_names if of_source else self._target_names
        unknown = names.get(self._unknown, "")
        return [names.get(number, unknown).replace(WORD_START, " ") for number in ids]

    def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
        return [self._bytes(number) or b"" for number in ids]

    def token_bytes(self, count: int) -> list[bytes | None] | None:
        return list(map(self._bytes, range(count)))

    def _bytes(self, number: int) -> bytes | None:
        """Bytes of a token of the target; None for special tokens."""
        piece = self._pieces.get(number)
        if piece is None:
            return None
        byte = _BYTE.fullmatch(piece)
        return _of_byte(byte) if byte else piece.replace(WORD_START, " ").encode()

    def _raw(self, ids: Sequence[int]) -> str:
        """Target text before leading and trailing spaces are removed."""
        pieces = [self._pieces[number] for number in ids if number in self._pieces]
        # sentencepiece drops spaces before the first letter, also those of a piece in mid-text.
        text = str(self._target.decode_pieces([_LETTER, *pieces])).removeprefix(_LETTER)
        return text.replace(WORD_START, " ")

    def _split(self, text: str) -> list[str]:
        pieces: list[str] = []
        for part in filter(None, self._special.split(text)):
            if self._special.fullmatch(part):
                pieces.append(part)
                continue
            if self._has_prefixes and (language := _LANGUAGE.match(part)):
                pieces.append(language.group())
                part = part[language.end() :]
            pieces.extend(self._source.encode(part, out_type=str))
        return pieces


class MosesPair(SentencePiecePair):
    """Moses' words in byte pairs, with a vocabulary for each side.

    Ids and texts are those of `transformers.FSMTTokenizer`, but for `encode_output`, whose words
    and ids are the target's here. The rules of words are those of `sacremoses`.
    """

    def __init__(self, spec: TokenizerSpec, folder: Path, rows: Rows = ANY) -> None:
        super().__init__(spec, folder, rows)
        language = spec.languages[1]
        # Imported here: it takes a third of a second, which other tokenizers need not wait for.
        self._joining = import_module("sacremoses").MosesDetokenizer(language)
        self._looks_ahead = language in _LOOKING_AHEAD

    def _sides(self, spec: TokenizerSpec, folder: Path) -> tuple[Any, Any]:
        lines = (folder / spec.files["merges"]).read_text(encoding="utf-8").split("\n")[:-1]
        split = ((rank, line.split()) for rank, line in enumerate(lines))
        ranks = {(words[0], words[1]): rank for rank, words in split if len(words) > 1}
        merges = sorted(ranks, key=lambda pair: ranks[pair])
        source, target = (
            _MosesPieces(language, _vocabulary(folder / spec.files[side]), merges)
            for language, side in zip(spec.languages, ("vocab", "target_vocab"), strict=True)
        )
        return source, target

    def decode(self, ids: Sequence[int]) -> str:
        text = str(self._joining.detokenize(self._raw(ids).split()))
        return clean_up(text) if self._clean_up else text

    def detokenizer(self) -> Detokenizer:
        filters = _clean_up_filters() if self._clean_up else ()
        return GrowingDetokenizer(
            lambda ids: str(self._joining.detokenize(self._raw(ids).split())),
            self._certain,
            filters,
        )

    def _certain(self, ids: Sequence[int]) -> str:
        """The beginning of the text that further tokens cannot change."""
        words = self._raw(ids).rpartition(" ")[0].split()
        last = words.pop() if words else ""
        while words and _DASH in (last, words[-1]):
            last = words.pop()
        return "" if self._looks_ahead else str(self._joining.detokenize(words))

    def pieces(self, ids: Sequence[int], *, of_source: bool = False) -> list[str]:
        """Pieces of either side; a space in place of the mark at the end of a word."""
        names = self._source_names if of_source else self._target_names
        found = [names.get(number, _UNKNOWN).replace(_WORD_END, " ") for number in ids]
        return [self._joining.unescape_xml(text).replace(_DASH, "-") for text in found]

    def token_bytes(self, count: int) -> None:
        """None: a text is not its tokens one after the other."""

    def _bytes(self, number: int) -> bytes | None:
        return None if number in self._special_ids else self.pieces([number])[0].encode()

    def _raw(self, ids: Sequence[int]) -> str:
        """Moses' words, a space behind each."""
        kept = (number for number in ids if number not in self._special_ids)
        names = (self._target_names.get(number, _UNKNOWN) for number in kept)
        return "".join(name.replace(" ", "").replace(_WORD_END, " ") for name in names)


class _MosesPieces:
    """Divides a text into Moses' words of a language, and these into byte pairs.

    Args:
        known: Pieces of the vocabulary.
        merges: Of byte pairs; the vocabulary may lack what they make.
    """

    def __init__(
        self, language: str, known: Iterable[str], merges: Sequence[tuple[str, str]]
    ) -> None:
        moses = import_module("sacremoses")
        self._normalizer = moses.MosesPunctNormalizer(language, pre_replace_unicode_punct=True)
        self._words = moses.MosesTokenizer(language)
        made = (text for pair in merges for text in (*pair, "".join(pair)))
        symbols = dict.fromkeys((_UNKNOWN, *known, *made))
        self._pairs = BPE(
            {text: number for number, text in enumerate(symbols)},
            merges,
            unk_token=_UNKNOWN,
            end_of_word_suffix=_WORD_END,
        )

    def encode(self, text: str, out_type: type[str]) -> list[str]:
        """The pieces of a text; one without a place in the merges may be unknown."""
        text = self._normalizer.normalize(text)
        text = "".join(each for each in text if not unicodedata.category(each).startswith("C"))
        words = self._words.tokenize(text, aggressive_dash_splits=True)
        return [token.value for word in words for token in self._pairs.tokenize(word)]


class FastTokenizer:
    """A tokenizer described by a `tokenizer.json` (byte-level BPE, WordPiece, unigram)."""

    def __init__(self, spec: TokenizerSpec, folder: Path, rows: Rows = ANY) -> None:
        self._rows = rows
        self._tokenizer = RustTokenizer.from_file(str(folder / spec.files["tokenizer"]))
        # A file may configure truncation and padding: lengths must be the text's own.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # `transformers` cleans up WordPiece only, not byte-level BPE.
        is_bpe = type(self._tokenizer.model).__name__ == "BPE"
        self._clean_up = spec.clean_up_spaces and not is_bpe
        # CLIP's byte-level decoder leaves the end-of-word marks in the text.
        self._word_end = str(self._tokenizer.model.end_of_word_suffix or "") if is_bpe else ""
        model = self._tokenizer.model
        self._continuing = str(getattr(model, "continuing_subword_prefix", None) or "")
        self._unknown = spec.unk_token_id
        decoders = _decoders(self._tokenizer)
        self._is_byte_level = "ByteLevel" in decoders
        self._has_bytes = "ByteFallback" in decoders
        self._trims = _trims_offsets(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(number for number, token in added.items() if token.special)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text as the file's post-processor completes them."""
        return self._check(self._encode(text, add_special_tokens=add_special_tokens))

    def tokens_without_rows(self) -> list[str]:
        """Tokens for texts of which the model has no embedding."""
        return self._rows.without(self._tokenizer.get_vocab(with_added_tokens=True).items())

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def _check(self, ids: list[int]) -> list[int]:
        """The ids; raises InvalidRequest where the model has no embedding of one."""
        self._rows.check(ids, self._tokenizer.id_to_token)
        return ids

    def encode_text(
        self, text: str, second: str | None = None, *, with_offsets: bool = False
    ) -> EncodedText:
        """A text or a pair as the file's post-processor completes them."""
        encoding = self._tokenizer.encode(text, second)
        ids = self._check(encoding.ids)  # each access makes a list
        offsets = encoding.offsets if with_offsets else ()
        words = encoding.word_ids if with_offsets and self._tokenizer.pre_tokenizer else ()
        return EncodedText(ids, encoding.type_ids, encoding.sequence_ids, offsets, words=words)

    def starts(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        """As the base; a special token that is added begins where one ended."""
        encoding = self._tokenizer.encode(text)
        found, end = [], 0
        spans = zip(encoding.ids, encoding.offsets, encoding.special_tokens_mask, strict=True)
        for number, (first, last), is_added in spans:
            if is_added:
                found.append(end)
                continue
            piece = self._piece(number) if self._trims else ""
            found.append(max(0, first - (len(piece) - len(piece.lstrip(" ")))))
            end = max(end, last)
        return encoding.ids, found

    def continues(self, text: str, encoded: EncodedText) -> list[bool]:
        """As the token-classification pipeline of `transformers` decides.

        A word piece is marked by its prefix. Other vocabularies do not mark the pieces of words, so
        that a token without a space at its start continues a word.
        """
        tokens = zip(encoded.ids, encoded.offsets, strict=True)
        if not self._continuing:
            return [
                number != self._unknown and start > 0 and " " not in text[start - 1 : start + 1]
                for number, (start, _) in tokens
            ]
        names = map(self._tokenizer.id_to_token, encoded.ids)
        return [
            number != self._unknown and len(name or "") != end - start
            for name, (number, (start, end)) in zip(names, tokens, strict=True)
        ]

    def token_id(self, text: str) -> int | None:
        """By name in the vocabulary, e.g. `Ġred`, else as encoded without special tokens."""
        number: int | None = self._tokenizer.token_to_id(text)
        if number is not None:
            return self._check([number])[0]
        ids = self._encode(text, add_special_tokens=False)
        return self._check(ids)[0] if len(ids) == 1 and ids[0] != self._unknown else None

    def encode_output(self, text: str) -> list[int] | None:
        """Ids without special tokens; None if the vocabulary lacks some of the text."""
        ids = self._encode(text, add_special_tokens=False)
        return ids if self._unknown not in ids and self._rows.writes(ids) else None

    def decode(self, ids: Sequence[int]) -> str:
        return self.render(ids, skip_special_tokens=True)

    def render(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        text = str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))
        if self._word_end:
            text = text.replace(self._word_end, " ").strip()
        return clean_up(text) if self._clean_up else text

    def detokenizer(self) -> Detokenizer:
        filters: list[Filter] = []
        if self._word_end:
            filters += (Replacement(self._word_end, " "), Stripping())
        return Detokenizer(self._raw, [*filters, *(_clean_up_filters() if self._clean_up else ())])

    def pieces(self, ids: Sequence[int], *, of_source: bool = False) -> list[str]:
        """Each token decoded by itself; U+FFFD for a token that is no whole character."""
        return [self._piece(number) for number in ids]

    def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
        return [b"" if number in self._special else self._bytes(number) for number in ids]

    def token_bytes(self, count: int) -> list[bytes | None] | None:
        """See `ByteTokenizer.token_bytes`; None for word pieces, which a decoder joins with spaces.

        Grammars do not take the unknown token.
        """
        if self._continuing or self._word_end:
            return None
        found: list[bytes | None] = list(map(self._bytes, range(count)))
        if self._unknown is not None and self._unknown < count:
            found[self._unknown] = b""
        return [None if number in self._special else one for number, one in enumerate(found)]

    def _bytes(self, number: int) -> bytes:
        name = self._tokenizer.id_to_token(number)
        if name is None:
            return b""
        if self._is_byte_level and all(character in _BYTES for character in name):
            found = bytes(_BYTES[character] for character in name)
            return found.replace(self._word_end.encode(), b" ") if self._word_end else found
        if self._has_bytes and (byte := _BYTE.fullmatch(name)):
            return _of_byte(byte)
        piece = self._piece(number)
        return piece.removeprefix(self._continuing).encode()

    def _raw(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _piece(self, number: int) -> str:
        text = str(self._tokenizer.decode([number], skip_special_tokens=False))
        if self._word_end:
            return text.replace(self._word_end, " ")
        token = self._tokenizer.id_to_token(number) or ""
        # Decoders like sentencepiece's drop the space of a text's first token.
        return " " + text if token.startswith(WORD_START) and not text.startswith(" ") else text


def _of_byte(found: re.Match[str]) -> bytes:
    """The byte of a token like `<0xF0>`."""
    return bytes([int(found[1], 16)])


def _trims_offsets(tokenizer: RustTokenizer) -> bool:
    """Whether the offsets of tokens leave their spaces out, as those of GPT-2 and RoBERTa do."""
    if tokenizer.post_processor is None:
        return False
    described = json.loads(tokenizer.post_processor.__getstate__())
    each = [described, *described.get("processors", ())]
    return any(one.get("trim_offsets") for one in each)


def _decoders(tokenizer: RustTokenizer) -> set[str]:
    """Kinds of the decoders of a tokenizer; one may be a sequence of others."""
    if tokenizer.decoder is None:
        return set()
    described = json.loads(tokenizer.decoder.__getstate__())
    return {described["type"], *(one["type"] for one in described.get("decoders", ()))}


def _byte_characters() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies (GPT-2's)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = (byte for byte in range(256) if byte not in shown)
    return {chr(byte): byte for byte in shown} | {
        chr(256 + place): byte for place, byte in enumerate(hidden)
    }


_BYTES = _byte_characters()


def clean_up(text: str) -> str:
    """Text without the spaces that word-level tokenizers add before punctuation."""
    for spaced in _CLEAN_UP:
        text = text.replace(spaced, spaced.strip())
    return text


def _clean_up_filters() -> list[Filter]:
    """An incremental `clean_up`."""
    return [Replacement(spaced, spaced.strip()) for spaced in _CLEAN_UP]


def load_tokenizer(bundle: Bundle) -> Tokenizer | None:
    """The bundle's tokenizer, None for a bundle without text.

    Raises:
        BundleError: a file is damaged or the vocabulary lacks a token that the manifest names.
    """
    manifest = bundle.manifest
    rows = Rows(manifest.text_rows, manifest.vocabulary_size)
    return None if manifest.tokenizer is None else _load(bundle, manifest.tokenizer, rows)


def load_instruction_tokenizer(bundle: Bundle) -> Tokenizer | None:
    """The tokenizer of what an image encoder reads; None where it reads no text.

    Raises:
        BundleError: a file is damaged.
    """
    spec = bundle.manifest.tokenizer
    if spec is None or INSTRUCTION not in spec.files:
        return None
    files = {"tokenizer": spec.files[INSTRUCTION]}
    spec = TokenizerSpec(kind="tokenizers", pad_token_id=0, files=files)
    return _load(bundle, spec, Rows(bundle.manifest.source_rows))


def _load(bundle: Bundle, spec: TokenizerSpec, rows: Rows) -> Tokenizer:
    kinds: dict[str, Callable[[TokenizerSpec, Path, Rows], Tokenizer]] = {
        "tokenizers": FastTokenizer,
        "moses_pair": MosesPair,
    }
    kind = kinds.get(spec.kind, SentencePiecePair)
    try:
        return kind(spec, bundle.folder, rows)
    except BundleError:
        raise
    # `tokenizers` raises bare Exception for a damaged file, sentencepiece RuntimeError or OSError.
    except Exception as error:
        raise BundleError(f"{bundle.folder}: cannot load the tokenizer: {error}") from error


def _vocabulary(file: Path) -> dict[str, int]:
    vocabulary: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return vocabulary


def _require_token(spec: TokenizerSpec, name: str) -> int:
    number: int | None = getattr(spec, f"{name}_token_id")
    if number is None:
        raise BundleError(f"a {spec.kind} tokenizer needs {name}_token_id in the manifest")
    return number
