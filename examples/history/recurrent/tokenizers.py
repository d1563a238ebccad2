"""Tokenizers of the recurrent examples: whole words, or characters.

All are a `tokenizer.json` with a vocabulary of the training texts; `<unk>` is what is not in it.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

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
