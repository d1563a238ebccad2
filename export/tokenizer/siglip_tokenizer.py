"""SigLIP's tokenizer as a `tokenizer.json`: `transformers` has it in Python alone.

Texts are lower case and without ASCII punctuation before sentencepiece reads them, as for training
(`SiglipTokenizer.canonicalize_text`). Ids differ from `SiglipTokenizer` in texts that write out a
special token: one that ends with `</s>` gets another, and what stands directly behind a token keeps
its first letter.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from export.checkpoint.checkpoint import Checkpoint
from inference.errors import CheckpointError

PIECES_FILE = "spiece.model"
CLASS = "SiglipTokenizer"
_SPACE = r"[\s\x1c-\x1f]"
"""What Python's `re` and `str.strip` take for white space."""
_WORD_START = "▁"


def is_siglip(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> bool:
    """Whether `transformers` reads the folder's pieces with that class, whatever else it holds."""
    own = settings.get("tokenizer_class")
    is_own = own == CLASS or (own is None and checkpoint.config.get("model_type") == "siglip")
    return is_own and checkpoint.has(PIECES_FILE)


def tokenizer_json(pieces: Any, settings: Mapping[str, Any]) -> bytes:
    """The same tokenizer for `tokenizers`.

    Args:
        pieces: The `ModelProto` of `spiece.model`.
        settings: Of `tokenizer_config.json`.

    Raises:
        CheckpointError: the pieces are no unigram model, or lack a special token.
    """
    if pieces.trainer_spec.model_type != 1:
        raise CheckpointError(f"{PIECES_FILE} must be a unigram model")
    vocabulary = [(piece.piece, piece.score) for piece in pieces.pieces]
    numbers = {text: number for number, (text, _) in enumerate(vocabulary)}
    special = [_special(settings, name, numbers) for name in ("unk", "eos")]
    made = Tokenizer(models.Unigram(vocabulary, numbers[special[0]], byte_fallback=False))
    made.normalizer = normalizers.Sequence(
        [
            *_canonical(is_lower_case=settings.get("do_lower_case", True)),
            *_pieces(pieces.normalizer_spec.precompiled_charsmap),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_WORD_START, prepend_scheme="first", split=True
    )
    made.decoder = decoders.Metaspace(replacement=_WORD_START, prepend_scheme="first")
    # Each part of a text is stripped, whatever the folder says about its special tokens.
    made.add_special_tokens(
        [AddedToken(text, lstrip=True, rstrip=True, normalized=False) for text in special]
    )
    end = special[1]
    made.post_processor = TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, numbers[end])]
    )
    return str(made.to_str()).encode()


def _canonical(*, is_lower_case: bool) -> list[normalizers.Normalizer]:
    """Lower case, no punctuation, single spaces; one in front stays, as a word start does it."""
    lower = [
        # Python writes a sigma at the end of a word in its own form.
        normalizers.Replace(Regex(r"(?<=\p{L})Σ(?!\p{L})"), "ς"),
        normalizers.Lowercase(),
    ]
    return [
        normalizers.Replace(_WORD_START, " "),
        *(lower if is_lower_case else ()),
        normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""),
        normalizers.Replace(Regex(f"{_SPACE}+"), " "),
        normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex("^ "), 2 * _WORD_START),
    ]


def _pieces(charsmap: bytes) -> list[normalizers.Normalizer]:
    """What sentencepiece does to a text: its map of characters, then no double or last spaces."""
    return [
        *([normalizers.Precompiled(charsmap)] if charsmap else ()),
        normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex(" {2,}"), " "),
    ]


def _special(settings: Mapping[str, Any], name: str, numbers: Mapping[str, int]) -> str:
    """The text of a special token, which must be a piece."""
    token = settings.get(f"{name}_token") or {"unk": "<unk>", "eos": "</s>"}[name]
    text = token["content"] if isinstance(token, Mapping) else str(token)
    if text not in numbers:
        raise CheckpointError(f"{PIECES_FILE} has no {text}")
    return text
