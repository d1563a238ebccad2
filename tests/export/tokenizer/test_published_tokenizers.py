"""Tokenizer files as they are published: vocabularies alone, and settings that name no token.

One line is one checkpoint of the hub. Its special tokens are those of `transformers`' class.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoTokenizer

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.tokenizer.languages import token_section
from export.tokenizer.tokenizer import fast_tokenizer, mask_token
from inference.errors import CheckpointError
from inference.processing.tokenizer_kinds import FastTokenizer
from tests.export.checkpoint.text_folders import NASTY, SENTENCES, byte_pairs

WORDS = sorted({word for sentence in SENTENCES for word in sentence.lower().split()})
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
Write = Callable[[Path], None]


def words(*first: str, last: tuple[str, ...] = ()) -> Write:
    """`vocab.txt`."""
    lines = [*first, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *last]
    return lambda folder: _write(folder / "vocab.txt", "\n".join(lines) + "\n")


def pairs(*first: str) -> Write:
    """`vocab.json` and `merges.txt` of bytes."""

    def write(folder: Path) -> None:
        vocabulary, merges = byte_pairs(list(first), is_byte_level=True)
        _write(folder / "vocab.json", json.dumps(vocabulary))
        lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
        _write(folder / "merges.txt", "\n".join(lines) + "\n")

    return write


def pieces(file: str, **options: Any) -> Write:
    """A model of sentencepiece."""

    def write(folder: Path) -> None:
        model = io.BytesIO()
        defaults = {"vocab_size": 105, "model_type": "unigram", "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES * 4), model_writer=model, **(defaults | options)
        )
        (folder / file).write_bytes(model.getvalue())

    return write


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Published:
    """A folder's files."""

    write: Write
    config: dict[str, Any]
    settings: dict[str, Any] | None = None
    special: dict[str, str] = field(default_factory=dict)


BERT = words("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FORMS = {
    "bert-base-cased of 2018": Published(BERT, {"model_type": "bert"}, {"do_lower_case": False}),
    "a BERT of vocab.txt alone": Published(BERT, {"model_type": "bert"}),
    "google/electra-small": Published(BERT, {"model_type": "electra"}, {"do_lower_case": True}),
    "distilbert/distilbert-base-uncased": Published(
        BERT, {"model_type": "distilbert", "pad_token_id": 0}, {"do_lower_case": True}
    ),
    "microsoft/mpnet-base": Published(
        words("<s>", "<pad>", "</s>", "[UNK]", "<unk>", last=("<mask>",)),
        {"model_type": "mpnet", "pad_token_id": 1}, {"do_lower_case": True},
    ),
    "cardiffnlp/twitter-roberta-base-sentiment-latest": Published(
        pairs(*ROBERTA), {"model_type": "roberta"},
        special={"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
    ),
    "facebook/bart-large-cnn": Published(
        pairs(*ROBERTA), {"model_type": "bart", "eos_token_id": 2, "pad_token_id": 1},
        {"model_max_length": 1024},
    ),
    "FacebookAI/xlm-roberta-base": Published(
        pieces("sentencepiece.bpe.model"), {"model_type": "xlm-roberta"}, {"model_max_length": 512}
    ),
    "albert/albert-base-v2": Published(
        pieces("spiece.model", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
               user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"]),
        {"model_type": "albert"}, {"model_max_length": 512},
    ),
    "xlnet/xlnet-base-cased": Published(
        pieces("spiece.model", pad_id=-1,
               control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]),
        {"model_type": "xlnet", "pad_token_id": 5}, {"model_max_length": 512},
    ),
    "microsoft/deberta-v3-base": Published(
        pieces("spm.model", pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]",
               bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]"),
        {"model_type": "deberta-v2"}, {"do_lower_case": False, "vocab_type": "spm"},
    ),
    "google-t5/t5-small": Published(
        pieces("spiece.model", **T5_IDS),
        {"model_type": "t5", "eos_token_id": 1, "pad_token_id": 0}, {"model_max_length": 512},
    ),
    "google/mt5-small": Published(
        pieces("spiece.model", **T5_IDS), {"model_type": "mt5", "tokenizer_class": "T5Tokenizer"},
        {"extra_ids": 0, "additional_special_tokens": None, "tokenizer_file": None},
        {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    ),
    "facebook/mbart-large-50-many-to-many-mmt": Published(
        pieces("sentencepiece.bpe.model"), {"model_type": "mbart", "vocab_size": 200},
        {"src_lang": None, "tgt_lang": None, "tokenizer_class": "MBart50Tokenizer"},
    ),
}  # fmt: skip


def publish(name: str, folder: Path) -> Checkpoint:
    """The folder of a line."""
    form = FORMS[name]
    form.write(folder)
    _write(folder / "config.json", json.dumps(form.config))
    if form.settings is not None:
        _write(folder / "tokenizer_config.json", json.dumps(form.settings))
    if form.special:
        _write(folder / "special_tokens_map.json", json.dumps(form.special))
    return open_checkpoint(str(folder))


@pytest.mark.parametrize("name", FORMS)
def test_published_tokenizer_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    checkpoint = publish(name, tmp_path)
    spec, files = fast_tokenizer(checkpoint)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert spec.pad_token_id == theirs.pad_token_id
    assert spec.unk_token_id == theirs.unk_token_id
    if spec.eos_token_id is not None:
        assert spec.eos_token_id == theirs.eos_token_id
    if theirs.mask_token is not None:
        assert mask_token(checkpoint) == (theirs.mask_token, theirs.mask_token_id)
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    ours = FastTokenizer(spec, tmp_path)
    for text in NASTY:
        ids = theirs(text).input_ids
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_languages_of_a_sentencepiece_model_alone_are_read(tmp_path: Path) -> None:
    checkpoint = publish("facebook/mbart-large-50-many-to-many-mmt", tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    codes = token_section(None, checkpoint)["tokens"]["codes"]
    assert codes["de_DE"] == theirs.convert_tokens_to_ids("de_DE")
    assert len(codes) == 52


def test_padding_token_of_a_class_must_be_in_the_vocabulary(tmp_path: Path) -> None:
    """`transformers` would add it behind the last row of the network's table."""
    words("[UNK]", "[CLS]", "[SEP]", "[MASK]")(tmp_path)
    _write(tmp_path / "config.json", '{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match="no padding or end token"):
        fast_tokenizer(open_checkpoint(str(tmp_path)))
