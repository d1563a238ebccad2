"""Text of a sequence while it grows, and where stop strings end it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inference.bundle.inputs import TokenizerSpec
from inference.processing.detokenizer import Detokenizer, Replacement, Stripping
from inference.processing.tokenizer_kinds import (
    FastTokenizer,
    SentencePiecePair,
    Tokenizer,
    clean_up,
)
from inference.tasks.shared.incremental_text import StopStrings
from tests.inference.processing.test_text import CHECKPOINTS, TEXTS, byte_level, write_marian

Make = Callable[[Path], tuple[Tokenizer, int]]
SHARES_FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def marian(folder: Path) -> tuple[Tokenizer, int]:
    return SentencePiecePair(write_marian(folder), folder), 70


def marian_cleaned(folder: Path) -> tuple[Tokenizer, int]:
    spec = write_marian(folder).model_copy(update={"clean_up_spaces": True})
    return SentencePiecePair(spec, folder), 70


def translator(_: Path) -> tuple[Tokenizer, int]:
    folder = CHECKPOINTS / "example-es-en"
    files = {"source": "source.spm", "target": "target.spm", "vocab": "vocab.json"}
    words = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    spec = TokenizerSpec(
        kind="sentencepiece_pair", pad_token_id=len(words) - 1, eos_token_id=0, unk_token_id=1,
        files=files,
    )  # fmt: skip
    return SentencePiecePair(spec, folder), len(words)


def fast(name: str) -> Make:
    def load(_: Path) -> tuple[Tokenizer, int]:
        spec = TokenizerSpec(
            kind="tokenizers", pad_token_id=0, files={"tokenizer": "tokenizer.json"}
        )
        size = tokenizers.Tokenizer.from_file(str(CHECKPOINTS / name / "tokenizer.json"))
        return FastTokenizer(spec, CHECKPOINTS / name), size.get_vocab_size()

    return load


def bytes_of_gpt2(folder: Path) -> tuple[Tokenizer, int]:
    return FastTokenizer(byte_level(folder), folder), 320


def word_pieces(folder: Path) -> tuple[Tokenizer, int]:
    """BERT's kind: `##` joins, spaces before punctuation are cleaned up."""
    words = ["[PAD]", "do", "##n", "'", "t", "n't", "##ing", ".", ",", "?", "'s", "é", "##é", "'m"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[PAD]")
    )
    tokenizer.decoder = tokenizers.decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens(["[PAD]"])
    return saved(tokenizer, folder, clean_up_spaces=True), len(words)


def unigram(folder: Path) -> tuple[Tokenizer, int]:
    """T5's kind: spaces are part of the pieces, the first is dropped."""
    pieces = ["<pad>", "▁", "▁the", "the", "▁▁", "s", "é", ".", "▁.", "\n"]
    model = tokenizers.models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>"])
    return saved(tokenizer, folder), len(pieces)


def saved(tokenizer: tokenizers.Tokenizer, folder: Path, **fields: bool) -> Tokenizer:
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {"tokenizer": "tokenizer.json"}
    return FastTokenizer(
        TokenizerSpec(kind="tokenizers", pad_token_id=0, files=files, **fields), folder
    )


KINDS: dict[str, Make] = {
    "marian": marian,
    "marian cleaned": marian_cleaned,
    "example-es-en": translator,
    "example-captioner": fast("example-captioner"),
    "example-clip": fast("example-clip"),
    "byte-level": bytes_of_gpt2,
    "word pieces": word_pieces,
    "unigram": unigram,
}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory) -> tuple[Tokenizer, int]:
    return request.param(tmp_path_factory.mktemp("tokenizer"))


def streamed(tokenizer: Tokenizer, ids: list[int], cuts: random.Random | None = None) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    pieces, place = [], 0
    while place < len(ids):
        size = cuts.randint(1, 4) if cuts else 1
        pieces.append(detokenizer.add(ids[place : place + size]))
        place += size
    return [*pieces, detokenizer.finish()]


@SHARES_FIXTURES
@given(st.data())
def test_pieces_of_any_tokens_are_the_text(kind: tuple[Tokenizer, int], data) -> None:
    tokenizer, size = kind
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=25))
    cuts = random.Random(data.draw(st.integers(0, 99)))
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)
    assert "".join(streamed(tokenizer, ids, cuts)) == tokenizer.decode(ids)


@SHARES_FIXTURES
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
@example("naïve 漢字 🙂🙂 …")
@example(" \n\n  x ")
def test_pieces_of_any_text_are_the_text(kind: tuple[Tokenizer, int], text: str) -> None:
    tokenizer, _ = kind
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


def test_half_a_character_waits_for_the_other_half(tmp_path: Path) -> None:
    tokenizer, _ = bytes_of_gpt2(tmp_path)
    ids = tokenizer.encode("a🙂b", add_special_tokens=False)
    assert len(ids) == 6
    assert streamed(tokenizer, ids) == ["a", "", "", "", "🙂", "b", ""]
    assert streamed(tokenizer, ids[:3]) == ["a", "", "", "\N{REPLACEMENT CHARACTER}"]
    detokenizer = tokenizer.detokenizer()  # complete text is returned at once, even from one call
    assert [detokenizer.add(ids[:3]), detokenizer.add(ids[3:])] == ["a", "🙂b"]


@pytest.mark.parametrize("text", TEXTS)
def test_words_come_as_soon_as_they_are_whole(tmp_path: Path, text: str) -> None:
    tokenizer, _ = bytes_of_gpt2(tmp_path)
    ids = tokenizer.encode(text, add_special_tokens=False)
    seen, detokenizer = "", tokenizer.detokenizer()
    for place, number in enumerate(ids, start=1):
        seen += detokenizer.add([number])
        assert seen == tokenizer.decode(ids[:place]).rstrip("\N{REPLACEMENT CHARACTER}")


def test_decoding_is_linear() -> None:
    decoded = 0

    def decode(ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return "x" * len(ids)

    detokenizer = Detokenizer(decode)
    for number in range(1000):
        detokenizer.add([number])
    detokenizer.finish()
    assert decoded <= 4 * 1000


@given(st.lists(st.text(alphabet=" .'nt!s<x", max_size=4), max_size=8))
def test_filters_do_to_parts_what_they_do_to_the_whole(parts: list[str]) -> None:
    whole = "".join(parts)
    spaced = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
    for make, expected in (
        (lambda: [Stripping()], whole.strip()),
        (lambda: [Replacement(old, old.strip()) for old in spaced], clean_up(whole)),
        (lambda: [Replacement("<x", "")], whole.replace("<x", "")),
        (lambda: [Replacement("xx", "x"), Stripping()], whole.replace("xx", "x").strip()),
    ):
        texts = dict(enumerate(parts))
        detokenizer = Detokenizer(lambda ids, t=texts: "".join(t[n] for n in ids), make())
        pieces = [detokenizer.add([number]) for number in texts]
        assert "".join([*pieces, detokenizer.finish()]) == expected


class TestPieces:
    """Tokens as people read them."""

    def test_of_marian_have_spaces_and_names(self, tmp_path: Path) -> None:
        tokenizer, _ = translator(tmp_path)
        ids = tokenizer.encode("el mundo no es suficiente")
        pieces = tokenizer.pieces(ids, of_source=True)
        assert "".join(pieces) == " el mundo no es suficiente</s>"
        assert len(pieces) == len(ids)

    def test_of_byte_level_are_the_text_cut_up(self, tmp_path: Path) -> None:
        tokenizer, _ = bytes_of_gpt2(tmp_path)
        ids = tokenizer.encode("the world, é")
        assert "".join(tokenizer.pieces(ids[1:-1])).startswith("the world, ")
        assert tokenizer.pieces(ids)[0] == "<s>"
        assert tokenizer.pieces(tokenizer.encode("🙂"))[1] == "\N{REPLACEMENT CHARACTER}"

    def test_of_unigram_keep_their_spaces(self, tmp_path: Path) -> None:
        tokenizer, _ = unigram(tmp_path)
        assert tokenizer.pieces([2, 3, 0]) == [" the", "the", "<pad>"]


LETTERS = "ab\n"
texts = st.text(alphabet=LETTERS, max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text, read letter by letter, until it holds a stop string."""
    for place in range(1, len(text) + 1):
        ends = [stop for stop in stops if text[:place].endswith(stop)]
        if ends:
            return text[: place - max(map(len, ends))], True
    return text, False


@given(st.lists(texts, max_size=12), st.lists(texts.filter(bool), max_size=4))
@example(["aab", "aab", "aaba"], ["aabaaba"])
@example(["ab", "a"], ["b", "ab"])
def test_text_ends_where_a_naive_search_ends_it(parts: list[str], stops: list[str]) -> None:
    strings = StopStrings(stops)
    passed = [strings.add(part) for part in parts]
    is_stopped = strings.is_stopped
    expected = cut("".join(parts), stops)
    assert ("".join(passed) + strings.finish(), is_stopped) == expected


@given(st.text(alphabet=LETTERS, max_size=30), st.lists(texts.filter(bool), max_size=3))
def test_no_more_is_held_back_than_may_begin_a_stop(text: str, stops: list[str]) -> None:
    strings, passed = StopStrings(stops), ""
    for place, letter in enumerate(text, start=1):
        passed += strings.add(letter)
        if strings.is_stopped:
            break
        begun = [
            size
            for stop in stops
            for size in range(1, len(stop))
            if text[:place].endswith(stop[:size])
        ]
        assert len(passed) == place - max(begun, default=0)


def test_nothing_follows_the_stop() -> None:
    strings = StopStrings(["\n"])
    assert strings.add("one\ntwo") == "one"
    assert strings.add("three") == strings.finish() == ""


@pytest.mark.parametrize("text", ["a", "aac", "ab", "a" * 254 + "c", "a" * 300])
def test_each_character_is_compared_once_and_each_held_text_once_more(text: str) -> None:
    compared = 0

    class Counted(str):
        def startswith(self, *arguments):
            nonlocal compared
            compared += 1
            return super().startswith(*arguments)

    strings = StopStrings([Counted("a" * 255 + "b")])
    pieces = 10_000 // len(text)
    for _ in range(pieces):
        strings.add(text)
    assert compared <= pieces * (len(text) + 1)
