"""SigLIP's pieces against `SiglipTokenizer`, which `transformers` has in Python alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.tokenizer.tokenizer import fast_tokenizer
from export.tokenizer.tokenizer_json import FAST_FILE, SETTINGS
from inference.errors import CheckpointError
from inference.processing.text import FastTokenizer
from tests.export.checkpoint.text_folders import NASTY, SENTENCES
from tests.export.twins import make_twin

TEXTS = [
    *NASTY,
    "",
    " ",
    "  two in front",
    "- punctuation in front",
    "two behind  ",
    "ΟΔΟΣ ΣΑΣ Σ",
    "İstanbul, Straße",
    "a\x1cb\x1fc\u2028d\x85e\u3000f",
    "ﬁn… “quoted” ½",
    "▁under▁score_d",
    "a - b",
    "foo </s> bar",
    "w" * 30,
    "\u200b x",
    "it's 5% off! 🙂",
    "a\x00b",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SigLIP with pieces and settings, and no `tokenizer.json`."""
    made = tmp_path_factory.mktemp("siglip")
    make_twin("siglip", "odd", made)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.lower() for text in SENTENCES] * 4),
        model_writer=model,
        vocab_size=150,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (made / "spiece.model").write_bytes(model.getvalue())
    theirs(made).save_pretrained(made)
    return made


def theirs(folder: Path, **settings: Any) -> Any:
    return transformers.SiglipTokenizer(str(folder / "spiece.model"), **settings)


def ours(checkpoint: Checkpoint, folder: Path) -> FastTokenizer:
    spec, files = fast_tokenizer(checkpoint)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return FastTokenizer(spec, folder)


@pytest.mark.parametrize("is_lower_case", [True, False])
def test_ids_are_those_of_transformers(folder: Path, tmp_path: Path, is_lower_case: bool) -> None:
    checkpoint = copied(folder, tmp_path, {"do_lower_case": is_lower_case})
    tokenizer = ours(checkpoint, tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(reference) is transformers.SiglipTokenizer
    assert {text: tokenizer.encode(text) for text in TEXTS} == {
        text: reference(text).input_ids for text in TEXTS
    }


def test_texts_are_padded_with_the_end_token(folder: Path) -> None:
    spec, _ = fast_tokenizer(open_checkpoint(str(folder)))
    assert (spec.kind, spec.pad_token_id, spec.eos_token_id, spec.unk_token_id) == (
        "tokenizers", 1, 1, 2,
    )  # fmt: skip


def test_pieces_win_over_a_file_that_transformers_does_not_read(
    folder: Path, tmp_path: Path
) -> None:
    checkpoint = copied(folder, tmp_path, {})
    Tokenizer.from_str('{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, '
                       '"unk_token": "a"}}').save(str(tmp_path / FAST_FILE))  # fmt: skip
    (number, *_) = ours(checkpoint, tmp_path).encode("red")
    assert number == theirs(folder)("red").input_ids[0]


def test_class_is_that_of_the_model_where_the_settings_have_none(
    folder: Path, tmp_path: Path
) -> None:
    checkpoint = copied(folder, tmp_path, {"tokenizer_class": None})
    assert ours(checkpoint, tmp_path).encode("Red!") == theirs(folder)("Red!").input_ids


def test_damaged_pieces_are_refused(folder: Path, tmp_path: Path) -> None:
    checkpoint = copied(folder, tmp_path, {})
    (tmp_path / "spiece.model").write_bytes(b"no pieces")
    with pytest.raises(CheckpointError, match=r"spiece\.model is damaged"):
        fast_tokenizer(checkpoint)


def copied(folder: Path, into: Path, changes: dict[str, Any]) -> Checkpoint:
    """The folder with other settings."""
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / SETTINGS).read_text()) | changes
    (into / SETTINGS).write_text(json.dumps(settings))
    return open_checkpoint(str(into))
