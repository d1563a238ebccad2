"""`triptych train translate`: files of text → a checkpoint that `transformers` and we read."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import MarianMTModel
from typer.testing import CliRunner, Result

from examples.texts.grammar import sentences
from export.training import bahdanau as train_on_words
from export.training import translation as train_on_text
from export.training.bahdanau import word_level
from export.training.command import app
from export.training.translation import read_parallel_text
from inference.errors import SetupError
from tests.export.training.trainings import (
    assert_finished_is_left_alone,
    assert_resumed_is_uninterrupted,
    assert_same_logits,
)

LANGUAGES = ("--source-language", "es", "--target-language", "en")
RECURRENT = ("--architecture", "bahdanau", *LANGUAGES)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("corpus")
    pairs = list(sentences("train", 300, seed=3))
    files = folder / "a.txt", folder / "b.txt"
    for file, lines in zip(
        files, ([p.spanish for p in pairs], [p.english for p in pairs]), strict=True
    ):
        file.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return files


def run(corpus: tuple[Path, Path], output: Path, *options: str) -> Result:
    source, target = map(str, corpus)
    given = ["translate", "--source", source, "--target", target, "--output", str(output)]
    short = ["--steps", "4", "--pieces", "200", "--held-out", "10"]
    return CliRunner().invoke(app, [*given, *short, *options])


def train(
    corpus: tuple[Path, Path], languages: tuple[str, ...], output: Path, *options: str
) -> Result:
    return run(corpus, output, *languages, *options)


def train_translator(
    corpus: tuple[Path, Path], factory: pytest.TempPathFactory, options: tuple[str, ...]
) -> Path:
    output = factory.mktemp("trained") / "my-translator"
    result = run(corpus, output, *options)
    assert result.exit_code == 0, result.output
    assert "10 held-out pairs: BLEU" in result.output
    return output


@pytest.fixture(scope="module")
def trained(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_translator(corpus, tmp_path_factory, LANGUAGES)


@pytest.fixture(scope="module")
def recurrent(corpus: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_translator(corpus, tmp_path_factory, RECURRENT)


@pytest.mark.slow
def test_transformers_and_we_compute_the_same_logits(trained: Path) -> None:
    theirs = MarianMTModel.from_pretrained(trained, attn_implementation="eager").eval()
    assert_same_logits(theirs, trained)


@pytest.mark.slow
def test_resumed_training_is_the_uninterrupted_one(
    corpus: tuple[Path, Path],
    trained: Path,
    recurrent: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = (train_on_text, LANGUAGES, trained), (train_on_words, RECURRENT, recurrent)
    for module, options, whole in kinds:
        training, again = partial(train, corpus, options), tmp_path / module.__name__
        assert_resumed_is_uninterrupted(monkeypatch, module, "batch_loss", training, whole, again)


@pytest.mark.slow
def test_recurrent_translator_reads_words(corpus: tuple[Path, Path], recurrent: Path) -> None:
    tokenizer = Tokenizer.from_file(str(recurrent / "tokenizer.json"))
    assert tokenizer.get_vocab_size() <= 4 + 2 * 200
    card = (recurrent / "README.md").read_text(encoding="utf-8")
    assert "A small recurrent translator" in card
    other = run(corpus, recurrent, *LANGUAGES)
    assert "architecture was bahdanau and is marian" in other.output.replace("\n", "")


def test_marks_and_elided_words_are_words() -> None:
    text = "C'est «l'eau» (ici), non?"
    tokenizer = word_level([text, text, "rare"], train_on_words._MARKS, most=11)
    encoded = tokenizer.encode(text.replace("'", "’"))
    words = ["▁C'", "est", "▁", "«", "l'", "eau", "»", "▁", "(", "ici", ")", ",", "▁non", "?"]
    assert encoded.tokens == [
        *(w if w in tokenizer.get_vocab() else "<unk>" for w in words),
        "</s>",
    ]
    assert tokenizer.get_vocab_size() == 4 + 11
    everything = word_level([text], train_on_words._MARKS)
    assert everything.decode(everything.encode(text).ids) == text


@pytest.mark.slow
def test_finished_training_is_left_alone(corpus: tuple[Path, Path], trained: Path) -> None:
    assert_finished_is_left_alone(partial(train, corpus, LANGUAGES), trained)


def test_folder_of_something_else_is_refused(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = run(corpus, tmp_path)
    assert result.exit_code == 1
    assert "is not empty and holds no training" in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (b"a\nb\n", b"a\n", "has 2 lines and .*b.txt has 1"),
        (b"", b"", "a.txt is empty"),
        (b"\n \n", b"a\nb\n", "a.txt is empty"),
        (b"a\n\xff\n", b"a\nb\n", "a.txt is not UTF-8: line 2"),
        (b"a\nb\n", b"a\nb\n", "have 2 different pairs"),
        (None, b"a\n", "a.txt does not exist"),
    ],
)
def test_unusable_text_is_refused(
    tmp_path: Path, source: bytes | None, target: bytes, reason: str
) -> None:
    files = tmp_path / "a.txt", tmp_path / "b.txt"
    for file, content in zip(files, (source, target), strict=True):
        if content is not None:
            file.write_bytes(content)
    with pytest.raises(SetupError, match=reason):
        read_parallel_text(*files)


def test_pairs_with_an_empty_side_are_left_out(tmp_path: Path) -> None:
    files = tmp_path / "a.txt", tmp_path / "b.txt"
    files[0].write_text("\ufeff" + "\n".join(["", *map(str, range(30)), "x", ""]), encoding="utf-8")
    files[1].write_text("\n".join(["", *map(str, range(30)), "", ""]), encoding="utf-8")
    text = read_parallel_text(*files)
    assert (len(text.sources), text.skipped) == (30, 2)
    train, held = text.split(5, seed=1)
    assert len(held.sources) == 5
    assert set(train.sources) | set(held.sources) == set(text.sources)
    assert not set(train.sources) & set(held.sources)


@pytest.mark.full
@pytest.mark.parametrize("name", ["trained", "recurrent"])
def test_trained_checkpoint_is_exported(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from export.pipeline.cli import export

    folder: Path = request.getfixturevalue(name)
    export(str(folder), repository=tmp_path)
    manifest = json.loads((tmp_path / folder.name / "1" / "bundle.json").read_text())
    assert manifest["tasks"]["translate"]["languages"] == [["es", "en"]]
