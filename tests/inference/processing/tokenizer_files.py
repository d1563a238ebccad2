"""Tokenizers of several kinds, trained in the test on a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer
from transformers import PreTrainedTokenizerFast

from inference.bundle.inputs import TokenizerSpec
from inference.processing.tokenizer_kinds import FastTokenizer


def byte_pairs(
    size: int,
    special: Sequence[str],
    lines: Sequence[str],
    alphabet: Sequence[str] = (),
    words: PreTokenizer | None = None,
) -> Tokenizer:
    """A tokenizer of that many tokens, without a post-processor.

    Args:
        special: Its first tokens.
        alphabet: Bytes that are tokens; by default all.
        words: How a text is divided; by default as GPT-2 does it, without a space in front.
    """
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = words or ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=list(alphabet) or ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(lines, trainer)
    return made


CORPUS = """Ada Lovelace was born in London and wrote about engines.
The small red circle lies left of the large blue square.
Grace Hopper found a moth, wrote it down: "first actual case of bug being found".
El niño comió en São Paulo; l'été à Genève était très beau.
東京タワーは赤い。 Straße und Gemüse 🙂 👩‍🚀 are here, e\u0301 too.""".splitlines()
NASTY = [
    "Ada Lovelace was born in London.",
    "  two  spaces\tand a tab ",
    "👩‍🚀🙂 in Genève, e\u0301t\u0301e",
    "東京タワーは赤い。",
    "שלום עולם مرحبا",
    "a\u0000b\u200bc\ufeff",
    "un-be-liev-able, isn't it? ... ok",
    "ABC [MASK] <mask> [SEP] </s> x",
    "ﬁn Ⅻ ½ İstanbul",
    "zzzz qqqq " * 3,
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
KINDS = ("word pieces", "bytes", "unigram")


def _word_pieces() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=160, special_tokens=SPECIAL, show_progress=False, limit_alphabet=60
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def _bytes() -> Tokenizer:
    made = byte_pairs(340, SPECIAL, CORPUS)
    made.post_processor = processors.RobertaProcessing(
        ("[SEP]", 3), ("[CLS]", 2), trim_offsets=True, add_prefix_space=False
    )
    return made


def _unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=160, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    # As XLNet: the class token is last and has a segment of its own.
    made.post_processor = processors.TemplateProcessing(
        single="$A:0 [SEP]:0 [CLS]:2",
        pair="$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


_MAKERS = dict(zip(KINDS, (_word_pieces, _bytes, _unigram), strict=True))


def trained(kind: str, folder: Path) -> tuple[FastTokenizer, PreTrainedTokenizerFast]:
    """Our tokenizer and that of `transformers` for the same file, written to `folder`."""
    made = _MAKERS[kind]()
    made.save(str(folder / "tokenizer.json"))
    spec = TokenizerSpec(
        kind="tokenizers", pad_token_id=0, unk_token_id=1, files={"tokenizer": "tokenizer.json"}
    )
    names = zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True)
    tokens = {f"{name}_token": token for name, token in names}
    theirs = PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **tokens)
    return FastTokenizer(spec, folder), theirs
