"""Exported tokenizers give the ids, offsets and texts of `AutoTokenizer` on a hard corpus."""

from __future__ import annotations

import builtins
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.tokenizer.tokenizer import fast_tokenizer
from inference.errors import CheckpointError
from inference.processing.tokenizer_kinds import FastTokenizer
from tests.export.tokenizer.tiny_tokenizers import CORPUS, FOLDERS, LINES, write_folder, write_json

REBUILT = {
    "bert, settings against the file",
    "bert, file against the defaults",
    "gpt2, prefix of the file",
    "gpt2, prefix of the settings",
    "t5",
    "xlm-roberta",
    "qwen2",
    "gemma",
    "llama2, legacy",
}
"""Kinds whose file alone gives other ids than `AutoTokenizer`."""


def exported(folder: Path, target: Path) -> FastTokenizer:
    """The tokenizer of a bundle that was exported from the folder."""
    spec, contents = fast_tokenizer(open_checkpoint(str(folder)))
    target.mkdir()
    for name, content in contents.items():
        (target / name).write_bytes(content)
    return FastTokenizer(spec, target)


@cache
def pair(kind: str, base: Path) -> tuple[Any, FastTokenizer, Path]:
    """`transformers`' tokenizer of a folder, ours, and the folder."""
    folder = base / "checkpoint"
    folder.mkdir()
    write_folder(kind, folder)
    return AutoTokenizer.from_pretrained(folder), exported(folder, base / "bundle"), folder


@pytest.fixture(params=FOLDERS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def both(kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, FastTokenizer, Path]:
    return pair(kind, tmp_path_factory.mktemp("tokenizer"))


def assert_equal(oracle: Any, ours: FastTokenizer) -> None:
    for text in CORPUS:
        want = oracle(text, return_offsets_mapping=True, return_token_type_ids=True)
        got = ours.encode_text(text, with_offsets=True)
        assert list(got.ids) == want["input_ids"], text
        assert [tuple(o) for o in got.offsets] == [tuple(o) for o in want["offset_mapping"]], text
        assert ours.encode(text) == want["input_ids"], text
        plain = oracle(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == plain, text
        for ids in (want["input_ids"], plain, plain[1:]):
            assert ours.decode(ids) == oracle.decode(ids, skip_special_tokens=True), text


def test_ids_offsets_and_texts_equal_those_of_transformers(both) -> None:
    assert_equal(*both[:2])


def test_pairs_equal_those_of_transformers(both) -> None:
    oracle, ours, _ = both
    for first, second in zip(CORPUS, reversed(CORPUS), strict=True):
        # in a list, because a pair of its own with an empty second text counts as one text
        want = oracle([(first, second)])  # without segments where its class sends none
        got = ours.encode_text(first, second)
        assert list(got.ids) == want["input_ids"][0], (first, second)
        sent = want.get("token_type_ids") or [[0] * len(got.ids)]
        assert list(got.segments) == sent[0], (first, second)


def test_streamed_text_equals_the_whole(both) -> None:
    _, ours, _ = both
    for text in CORPUS:
        ids = ours.encode(text)
        detokenizer = ours.detokenizer()
        pieces = [detokenizer.add([number]) for number in ids]
        assert "".join([*pieces, detokenizer.finish()]) == ours.decode(ids), text


def test_file_alone_would_differ_for_classes_that_rebuild_it(kind: str, both) -> None:
    oracle, _, folder = both
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    differs = any(file.encode(text).ids != oracle(text)["input_ids"] for text in CORPUS)
    assert differs == (kind in REBUILT)


def test_file_is_used_as_it_is_without_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_folder("gpt2", tmp_path)
    importing = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "transformers":
            raise ImportError(name="transformers")
        return importing(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    _, contents = fast_tokenizer(open_checkpoint(str(tmp_path)))
    assert contents["tokenizer.json"] == (tmp_path / "tokenizer.json").read_bytes()
    assert "is used as it is" in caplog.text
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"triptych\[convert\]"):
        fast_tokenizer(open_checkpoint(str(tmp_path)))


def test_changed_folder_is_read_again(tmp_path: Path) -> None:
    write_folder("bert-uncased", tmp_path)
    before = fast_tokenizer(open_checkpoint(str(tmp_path)))[1]
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    write_json(tmp_path / "tokenizer_config.json", settings | {"do_lower_case": False})
    assert fast_tokenizer(open_checkpoint(str(tmp_path)))[1] != before


def _pieces(folder: Path, file: str, special: dict[str, int]) -> None:
    """A sentencepiece model with byte fallback off."""
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(LINES), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "pieces"), vocab_size=120,
        hard_vocab_limit=False, minloglevel=2, **special,
    )  # fmt: skip
    corpus.unlink()
    (folder / "pieces.vocab").unlink()
    (folder / "pieces.model").rename(folder / file)


def _vocabulary_of(kind: str) -> dict[str, Any]:
    """The model section of a kind's tokenizer file."""
    section: dict[str, Any] = json.loads(FOLDERS[kind][2]().to_str())["model"]
    return section


def _slow_folder(kind: str, folder: Path) -> None:
    """The files of a folder from before `tokenizer.json`."""
    if kind == "bert":
        words = _vocabulary_of("bert-uncased")["vocab"]
        text = "".join(f"{word}\n" for word in sorted(words, key=words.get))
        (folder / "vocab.txt").write_text(text, encoding="utf-8")
        write_json(folder / "tokenizer_config.json", {"do_lower_case": True})
    elif kind in ("gpt2", "roberta"):
        model = _vocabulary_of(kind)
        write_json(folder / "vocab.json", model["vocab"])
        merges = "".join(f"{' '.join(merge)}\n" for merge in model["merges"])
        (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    elif kind == "t5":
        _pieces(folder, "spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1})
        write_json(folder / "tokenizer_config.json", {"extra_ids": 0})
    elif kind == "albert":
        own = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
        _pieces(folder, "spiece.model", own | {"user_defined_symbols": "[CLS],[SEP],[MASK]"})
    else:
        _pieces(folder, "sentencepiece.bpe.model", {})
    write_json(folder / "config.json", {"model_type": kind, "pad_token_id": 1})


@pytest.mark.parametrize("kind", ["bert", "gpt2", "roberta", "t5", "albert", "xlm-roberta"])
def test_slow_folders_are_converted(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    _slow_folder(kind, folder)
    ours = exported(folder, tmp_path / "bundle")
    assert_equal(AutoTokenizer.from_pretrained(folder), ours)


def test_tokenizer_that_transformers_cannot_load_is_used_as_it_is(tmp_path: Path) -> None:
    vocabulary = {"added_tokens": [{"id": 9, "content": "<end>"}], "model": {"vocab": {"<p>": 3}}}
    write_json(tmp_path / "tokenizer.json", vocabulary)
    write_json(tmp_path / "tokenizer_config.json", {"eos_token": "<end>"})
    spec, contents = fast_tokenizer(Checkpoint(tmp_path, "x", {}))
    assert spec.eos_token_id == 9
    assert json.loads(contents["tokenizer.json"]) == vocabulary
