"""Folders of text-to-text checkpoints with tokenizers of `transformers`' own classes.

The tokenizers are trained here on a few sentences; the networks are tiny and random.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.export.twins import randomise
from tests.export.twins.led import LEDForConditionalGeneration

SENTENCES = [
    "The small red circle is above the large blue square.",
    "El círculo rojo está encima del cuadrado azul, ¿verdad?",
    "Der kleine Hund schläft heute im Garten; morgen reisen wir nach Köln.",
    "Le chat noir dort dans la cuisine, où il fait chaud.",
    "Where is Pedro's black cat? It isn't here: 12 tables, 1992 chairs.",
    "translate English to German: The weather is wonderful. summarize: everything",
]
NASTY = [
    *SENTENCES,
    "  two  spaces\tand a tab ",
    "ﬁne ½ Ⅳ ＡＢＣ é e\u0301 ñ",
    "emoji 👩‍👩‍👧 🇩🇪 and 中文字符，日本語テキスト",
    "عربي עברית ไทย",
    "zero\u200bwidth \u00ad soft, nbsp\u00a0here",
    "</s> <pad> <unk> in the text",
    "x",
]
_TINY: dict[str, Any] = {
    "d_model": 24,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "scale_embedding": True,
}
_T5: dict[str, Any] = {
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 1,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
    "task_specific_params": {
        "summarization": {"prefix": "summarize: "},
        "translation_en_to_de": {"prefix": "translate English to German: "},
        "translation_en_to_fr": {"prefix": "translate English to French: "},
    },
}
_DEEP_T5 = {name: value for name, value in _T5.items() if name != "task_specific_params"}
_DEEP_T5 |= {"num_layers": 2, "num_decoder_layers": 2}
_METASPACE = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)


def _unigram(first: list[str]) -> list[tuple[str, float]]:
    """Pieces with scores, special ones in front."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = _METASPACE
    trainer = trainers.UnigramTrainer(vocab_size=150, unk_token="<unk>", special_tokens=["<unk>"])
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
    return [*((token, 0.0) for token in first), *((text, score) for text, score in pieces[1:])]


def byte_pairs(
    first: list[str], *, is_byte_level: bool
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges, special tokens in front."""
    tokenizer = Tokenizer(models.BPE(unk_token=None if is_byte_level else "<unk>"))
    alphabet = []
    if is_byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = _METASPACE
    trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=first, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def _t5(folder: Path) -> Any:
    return transformers.T5Tokenizer(vocab=_unigram(["<pad>", "</s>", "<unk>"]), extra_ids=10)


def _mbart50(folder: Path) -> Any:
    return transformers.MBart50Tokenizer(vocab=_unigram(["<unk>", "<s>", "</s>"]))


def _nllb(folder: Path) -> Any:
    vocabulary, merges = byte_pairs(["<s>", "<pad>", "</s>", "<unk>"], is_byte_level=False)
    return transformers.NllbTokenizer(vocab=vocabulary, merges=merges)


def _seamless(folder: Path) -> Any:
    first = ["<pad>", "<unk>", "<s>", "</s>"]
    vocabulary, merges = byte_pairs(first, is_byte_level=False)
    languages = [f"__{code}__" for code in ("eng", "deu", "fra", "cmn", "cmn_Hant")]
    return transformers.SeamlessM4TTokenizer(
        vocab=vocabulary, merges=merges, additional_special_tokens=languages
    )


def _pegasus(folder: Path) -> Any:
    pieces = _unigram(["<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk>"])
    return transformers.PegasusTokenizer(vocab=pieces, offset=12)


def _bert(folder: Path) -> Any:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=first)
    tokenizer.train_from_iterator([text.lower() for text in SENTENCES] * 4, trainer)
    return transformers.BertTokenizer(vocab=tokenizer.get_vocab())


def _blenderbot(folder: Path) -> Any:
    first = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    vocabulary, merges = byte_pairs(first, is_byte_level=True)
    return transformers.BlenderbotTokenizer(vocab=vocabulary, merges=merges)


def _bart(folder: Path) -> Any:
    first = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary, merges = byte_pairs(first, is_byte_level=True)
    return transformers.BartTokenizer(vocab=vocabulary, merges=merges)


def _m2m100(folder: Path) -> Any:
    """One with sentencepiece itself, and ids of its own for the pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4),
        model_writer=model,
        vocab_size=150,
        model_type="bpe",
        character_coverage=1.0,
        minloglevel=2,
    )
    pieces = folder / "sentencepiece.bpe.model"
    pieces.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    texts = [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]
    vocabulary = {text: n for n, text in enumerate(["<s>", "<pad>", "</s>", "<unk>", *texts])}
    ids = folder / "vocab.json"
    ids.write_text(json.dumps(vocabulary), encoding="utf-8")
    languages = sorted(
        transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
    )
    return transformers.M2M100Tokenizer(
        str(ids), str(pieces), additional_special_tokens=[f"__{code}__" for code in languages]
    )


def fsmt_tokenizer(folder: Path, languages: tuple[str, str] = ("en", "de")) -> Any:
    """One with a vocabulary for each side, which lack some pieces that merges make.

    Not trained: the trainer's merges of equal counts have another order in each process.
    """
    marks = "&apos; &apos;s &quot; @-@ &#91; &#93; &lt; &gt; &amp; &#124; , . ? ! : ; ( ) - ... Мир"
    words = re.findall(r"\w+", " ".join(SENTENCES)) + marks.split()
    merges: dict[tuple[str, str], None] = {}
    pieces: dict[str, None] = {}
    for word in words:
        first, *others = *word[:-1], f"{word[-1]}</w>"
        pieces |= dict.fromkeys((first, *others, *word))
        for other in others:
            merges[first, other] = None
            first += other
            pieces[first] = None
    for side, step in (("src", 7), ("tgt", 9)):
        kept = [piece for place, piece in enumerate(pieces) if place % step]
        kept = kept if side == "src" else kept[::-1]
        ids = {
            piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *kept])
        }
        (folder / f"vocab-{side}.json").write_text(json.dumps(ids), encoding="utf-8")
    lines = (f"{left} {right} 1\n" for left, right in merges)
    (folder / "merges.txt").write_text("".join(lines), encoding="utf-8")
    files = (str(folder / name) for name in ("vocab-src.json", "vocab-tgt.json", "merges.txt"))
    return transformers.FSMTTokenizer([*languages], *files)


def _two_vocabularies(vocab_size: int) -> Any:
    """The configuration of FSMT, whose target's vocabulary has other tokens."""
    return transformers.FSMTConfig(src_vocab_size=vocab_size, tgt_vocab_size=vocab_size, **_TINY)


def _pair(vocab_size: int) -> Any:
    """The configuration of BERT with BERT as the decoder."""
    half = {
        "vocab_size": vocab_size, "hidden_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 3, "intermediate_size": 32, "max_position_embeddings": 64,
    }  # fmt: skip
    decoder = transformers.BertConfig(**half, is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig(
        encoder=transformers.BertConfig(**half).to_dict(), decoder=decoder.to_dict()
    )
    config.decoder_start_token_id, config.eos_token_id, config.pad_token_id = 2, 3, 0
    return config


def _gemma(folder: Path) -> Any:
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    vocabulary, merges = byte_pairs(first, is_byte_level=False)
    return transformers.GemmaTokenizer(vocab=vocabulary, merges=merges)


def _stack(vocab_size: int) -> dict[str, Any]:
    """Gemma as a part of T5Gemma."""
    return {
        "vocab_size": vocab_size, "hidden_size": 24, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 32,
        "max_position_embeddings": 64, "sliding_window": 5, "query_pre_attn_scalar": 8,
    }  # fmt: skip


def _stacks(vocab_size: int) -> Any:
    """The configuration of T5Gemma."""
    stack = _stack(vocab_size)
    return transformers.T5GemmaConfig(encoder=stack, decoder=stack)


_MULTILINGUAL = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
KINDS: dict[str, tuple[Callable[[Path], Any], Any, Any, dict[str, Any]]] = {
    "t5": (_t5, transformers.T5ForConditionalGeneration, transformers.T5Config, _T5),
    "bart": (_bart, transformers.BartForConditionalGeneration, transformers.BartConfig, _TINY),
    "led": (
        _bart, LEDForConditionalGeneration, transformers.LEDConfig,
        {name: value for name, value in _TINY.items() if name != "scale_embedding"}
        | {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}
        | {"attention_window": 8},
    ),
    "pegasus": (
        _pegasus, transformers.PegasusForConditionalGeneration, transformers.PegasusConfig, _TINY,
    ),
    "umt5": (_t5, transformers.UMT5ForConditionalGeneration, transformers.UMT5Config, _DEEP_T5),
    "longt5": (
        _t5, transformers.LongT5ForConditionalGeneration, transformers.LongT5Config,
        _DEEP_T5 | {"local_radius": 3, "encoder_attention_type": "transient-global"},
    ),
    "switch_transformers": (
        _t5, transformers.SwitchTransformersForConditionalGeneration,
        transformers.SwitchTransformersConfig,
        _DEEP_T5 | {"num_experts": 3, "num_sparse_encoder_layers": 1, "expert_capacity": 9}
        | {"num_sparse_decoder_layers": 1},
    ),
    "pegasus_x": (
        _pegasus, transformers.PegasusXForConditionalGeneration, transformers.PegasusXConfig,
        _TINY | {"num_global_tokens": 2, "block_size": 8},
    ),
    "blenderbot": (
        _blenderbot, transformers.BlenderbotForConditionalGeneration,
        transformers.BlenderbotConfig, _TINY | {"encoder_no_repeat_ngram_size": 0},
    ),
    "t5gemma": (_gemma, transformers.T5GemmaForConditionalGeneration, _stacks, {}),
    "bert2bert": (_bert, transformers.EncoderDecoderModel, _pair, {}),
    "mbart-50": (
        _mbart50, transformers.MBartForConditionalGeneration, transformers.MBartConfig,
        _TINY | _MULTILINGUAL,
    ),
    "nllb": (
        _nllb, transformers.M2M100ForConditionalGeneration, transformers.M2M100Config,
        _TINY | _MULTILINGUAL,
    ),
    "m2m100": (
        _m2m100, transformers.M2M100ForConditionalGeneration, transformers.M2M100Config,
        _TINY | _MULTILINGUAL,
    ),
    "fsmt-en-de": (
        fsmt_tokenizer, transformers.FSMTForConditionalGeneration, _two_vocabularies, {},
    ),
    "seamless": (
        _seamless, transformers.SeamlessM4Tv2ForTextToText, transformers.SeamlessM4Tv2Config,
        {name: value for name, value in _TINY.items() if name != "d_model"}
        | {"hidden_size": 24, "max_new_tokens": None},
    ),
}  # fmt: skip
"""Name → tokenizer, model and configuration classes, and the configuration's fields."""


def write(kind: str, folder: Path) -> tuple[Any, Any]:
    """The tokenizer and the model, saved to a folder; every parameter is random."""
    make, model_class, config_class, fields = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make(folder)
    model = model_class(config_class(vocab_size=len(tokenizer), **fields)).eval()
    randomise(model, seed=4)
    _sharpen(model)
    # `transformers` limits a length that nothing gives to 20 tokens.
    model.generation_config.max_length = 24
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return tokenizer, model


def _sharpen(model: torch.nn.Module) -> None:
    """Enlarges the layers' matrices: outputs then differ from text to text, and in their tokens.

    With smaller ones, most outputs are one token repeated, whatever the text.
    """
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and ".layer" in name and "relative" not in name:
                weight.mul_(3)


def every(folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """All kinds, each in a folder of its own."""
    for kind in KINDS:
        yield kind, *write(kind, folder / kind)
