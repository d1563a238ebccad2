"""Tokenizer folders of every kind, trained on a few lines, and a corpus that is hard to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.inference.processing.tokenizer_files import byte_pairs

CORPUS = [
    "", " ", "   ", "\n\t ", "a", "Hello, world!", " leading and trailing  ", "two  spaces   three",
    "don't WON'T we're", "👩‍🚀👨‍👩‍👧‍👦 🏳️‍🌈", "e\u0301 n\u0303 \u1e69 s\u0323\u0307 Å", "ﬁ ½ ① Ａ",
    "你好，世界。日本語テキスト 한국어", "مرحبا بالعالم", "שָׁלוֹם עולם",
    "a\u0000b", "\u0000", "\ufeffBOM",
    "a\u200bb\u00adc\u2028d\u0085e", "\u0007bell\u001b[0m", "𝒳𐍈🂡", "[CLS] [SEP] [MASK] [PAD] x",
    "<s>a</s> <pad><unk> <mask> </s>", "<|endoftext|>a<|endoftext|>", "x<extra>y <extra> z",
    "İstanbul ǅ ß ẞ", "ΑΣ σς Σ.", "1234567 12.5% 3,000", "http://x.y/z?q=1&r=2#f", "▁▁a ▁b",
    "Ġa Ċ", "\r\nline\r\n", "\u3000wide\u3000", "x" * 300, "word " * 200, "ab\U0010ffff\ue000",
    "café naïve résumé ÀÉÎ", "<0x0A><0x41>",
]  # fmt: skip
LINES = [
    "the quick brown fox jumps over the lazy dog", "Hello world, don't stop 123",
    "café naïve résumé", "你好 世界 日本語", "مرحبا بالعالم", "שלום עולם", "e\u0301 \u00e9",
    "we're they'll I'm 3000", "  two  spaces", "Ärger über Öl",
] * 5  # fmt: skip
GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BERT_NAMES = {
    "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]",
    "mask_token": "[MASK]",
}  # fmt: skip
_ROBERTA_NAMES = {
    "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>",
    "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>",
}  # fmt: skip
_GPT2_NAMES = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_LLAMA_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_EXTRA = {
    "content": "<extra>", "special": False, "lstrip": True, "rstrip": False,
    "normalized": False, "single_word": False,
}  # fmt: skip


def _template(tokenizer: Tokenizer, single: str, pair: str) -> Any:
    names = {word.partition(":")[0] for word in f"{single} {pair}".split()} - {"$A", "$B"}
    special = [(name, tokenizer.token_to_id(name)) for name in sorted(names)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


@cache
def _word_pieces(lowercase: bool, accents: bool | None = None, chinese: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=accents, handle_chinese_chars=chinese
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        LINES, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special)
    )
    tokenizer.post_processor = _template(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    return tokenizer


def _bytes(special: tuple[str, ...], *, prefix: bool = False, gpt4: bool = False) -> Tokenizer:
    words: Any = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if gpt4:
        split = pre_tokenizers.Split(Regex(GPT4_SPLIT), "isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        words = pre_tokenizers.Sequence([split, plain])
    return byte_pairs(400, special, LINES, words=words)


def _roberta(*, prefix: bool = False) -> Tokenizer:
    tokenizer = _bytes(_ROBERTA_SPECIAL, prefix=prefix)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=prefix)
    return tokenizer


def _llama3() -> Tokenizer:
    tokenizer = _bytes(("<|begin|>", "<|end|>"), gpt4=True)
    tokenizer.post_processor = _template(tokenizer, "<|begin|> $A", "<|begin|> $A <|begin|>:1 $B:1")
    return tokenizer


def _with_added() -> Tokenizer:
    tokenizer = _bytes(("<|endoftext|>",))
    tokenizer.add_tokens([AddedToken("<extra>", lstrip=True, normalized=False)])
    return tokenizer


def _unigram(special: tuple[str, ...], single: str, pair: str, *, lower: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    steps = [normalizers.Nmt(), normalizers.NFKC()]
    if lower:
        steps = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([*steps, spaces])
    split, mark = pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, mark])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=list(special), unk_token="<unk>"
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.post_processor = _template(tokenizer, single, pair)
    return tokenizer


def _with_byte_fallback(*, legacy: bool) -> Tokenizer:
    """Llama 2's: BPE over marked words, unknown characters as bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    special = ["<unk>", "<s>", "</s>", *bytes_]
    tokenizer.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=500, special_tokens=special)
    )
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = [t for t in file["added_tokens"] if t["content"] not in bytes_]
    tokenizer = Tokenizer.from_str(json.dumps(file))
    if legacy:
        marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(marks)
        tokenizer.pre_tokenizer = None
    decoding = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*decoding, decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = _template(tokenizer, "<s> $A", "<s> $A <s>:1 $B:1")
    return tokenizer


Make = Callable[[], Tokenizer]
_XLMR = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_T5_NAMES = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
_ALBERT = _BERT_NAMES | {"pad_token": "<pad>", "unk_token": "<unk>"}
_ALBERT_SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
FOLDERS: dict[str, tuple[str, str, Make, Mapping[str, Any]]] = {
    "bert-uncased": (
        "bert", "BertTokenizer", lambda: _word_pieces(True), _BERT_NAMES | {"do_lower_case": True},
    ),
    "bert-cased": (
        "bert", "BertTokenizer", lambda: _word_pieces(False),
        _BERT_NAMES | {"do_lower_case": False},
    ),
    "bert, settings against the file": (
        "bert", "BertTokenizer", lambda: _word_pieces(True), _BERT_NAMES | {"do_lower_case": False},
    ),
    "bert, file against the defaults": (
        "bert", "BertTokenizer", lambda: _word_pieces(False), _BERT_NAMES,
    ),
    "bert, accents and Chinese": (
        "bert", "BertTokenizer", lambda: _word_pieces(True, False, False),
        _BERT_NAMES
        | {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False},
    ),
    "distilbert": ("distilbert", "DistilBertTokenizer", lambda: _word_pieces(True), _BERT_NAMES),
    "mpnet": (
        "mpnet", "MPNetTokenizer", lambda: _word_pieces(True),
        _BERT_NAMES | {"do_lower_case": True, "bos_token": "[CLS]", "eos_token": "[SEP]"},
    ),
    "gpt2": ("gpt2", "GPT2Tokenizer", lambda: _bytes(("<|endoftext|>",)), _GPT2_NAMES),
    "gpt2, prefix of the file": (
        "gpt2", "GPT2Tokenizer", lambda: _bytes(("<|endoftext|>",), prefix=True), _GPT2_NAMES,
    ),
    "gpt2, prefix of the settings": (
        "gpt2", "GPT2Tokenizer", lambda: _bytes(("<|endoftext|>",)),
        _GPT2_NAMES | {"add_prefix_space": True},
    ),
    "gpt2, added tokens": (
        "gpt2", "GPT2Tokenizer", _with_added,
        _GPT2_NAMES | {"added_tokens_decoder": {"400": _EXTRA}},
    ),
    "roberta": ("roberta", "RobertaTokenizer", _roberta, _ROBERTA_NAMES),
    "roberta, prefix": (
        "roberta", "RobertaTokenizer", lambda: _roberta(prefix=True),
        _ROBERTA_NAMES | {"add_prefix_space": True},
    ),
    "opt": (
        "opt", "GPT2Tokenizer", lambda: _bytes(_ROBERTA_SPECIAL),
        {"add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>",
         "unk_token": "</s>"},
    ),
    "llama3": (
        "llama", "PreTrainedTokenizerFast", _llama3,
        {"bos_token": "<|begin|>", "eos_token": "<|end|>"},
    ),
    "qwen2": (
        "qwen2", "Qwen2Tokenizer", lambda: _bytes(("<|endoftext|>",), gpt4=True),
        {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    ),
    "t5": (
        "t5", "T5Tokenizer",
        lambda: _unigram(("<pad>", "</s>", "<unk>"), "$A </s>", "$A </s> $B </s>"),
        _T5_NAMES | {"extra_ids": 0},
    ),
    "xlm-roberta": (
        "xlm-roberta", "XLMRobertaTokenizer",
        lambda: _unigram(_XLMR, "<s> $A </s>", "<s> $A </s> </s> $B </s>"), _ROBERTA_NAMES,
    ),
    "albert": (
        "albert", "AlbertTokenizer",
        lambda: _unigram(
            _ALBERT_SPECIAL, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", lower=True
        ),
        _ALBERT | {"bos_token": "[CLS]", "eos_token": "[SEP]"},
    ),
    "llama2, legacy": (
        "llama", "LlamaTokenizer", lambda: _with_byte_fallback(legacy=True),
        _LLAMA_NAMES | {"add_bos_token": True, "add_eos_token": False, "legacy": True},
    ),
    "llama2": (
        "llama", "LlamaTokenizer", lambda: _with_byte_fallback(legacy=False),
        _LLAMA_NAMES | {"add_bos_token": True, "legacy": False},
    ),
    "llama2, end instead of start": (
        "llama", "LlamaTokenizer", lambda: _with_byte_fallback(legacy=False),
        _LLAMA_NAMES | {"add_bos_token": False, "add_eos_token": True, "legacy": False},
    ),
    "gemma": (
        "gemma2", "GemmaTokenizer", lambda: _with_byte_fallback(legacy=False),
        _LLAMA_NAMES | {"add_bos_token": True, "pad_token": "<unk>"},
    ),
}  # fmt: skip
"""Kind → `model_type`, tokenizer class, the file's maker, fields of `tokenizer_config.json`."""


def write_folder(kind: str, folder: Path) -> None:
    """A checkpoint's tokenizer files and the `config.json` that `AutoTokenizer` reads."""
    model_type, tokenizer_class, make, settings = FOLDERS[kind]
    make().save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", {"model_type": model_type})
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": tokenizer_class, **settings})


def write_json(path: Path, value: object) -> None:
    """A JSON file."""
    path.write_text(json.dumps(value), encoding="utf-8")


CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>' + message['content'] + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>"]


def chat_tokenizer() -> Tokenizer:
    """Byte-level BPE of 64 tokens that adds a start token of its own to plain texts."""
    lines = ["abba caba bac ab ba cab abc " * 3]
    tokenizer = byte_pairs(64, SPECIAL, lines, alphabet="abc|<>Ġsuer")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer
