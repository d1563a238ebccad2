"""Sentences in parts that fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import TooLong
from inference.processing.long_sentences import with_parts
from inference.processing.sentences import split_sentences


def parts(text: str, most: int = 12, kept: tuple[tuple[int, int], ...] = ()) -> list[str]:
    whole = split_sentences(text)
    paragraph, divided = with_parts(whole, lambda part: len(part) <= most, kept)
    assert divided == sum(one not in paragraph.sentences for one in whole.sentences)
    assert paragraph.join(paragraph.sentences) == text
    return list(paragraph.sentences)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uno dos tres", ["uno dos tres"]),
        ("uno dos tres cuatro", ["uno dos tres", "cuatro"]),
        ("uno dos; tres, cuatro", ["uno dos;", "tres, cuatro"]),
        ("uno dos, tres cuatro", ["uno dos,", "tres cuatro"]),
        ("a, uno dos tres cuatro", ["a, uno dos", "tres cuatro"]),
        ("uno - dos tres - cuatro", ["uno -", "dos tres -", "cuatro"]),
        ("  uno. dos tres cuatro cinco\n\n", ["uno.", "dos tres", "cuatro cinco"]),
        ("uno dos   tres   cuatro", ["uno dos", "tres", "cuatro"]),
        ("abcdefghijklmnop", ["abcdefghijkl", "mnop"]),
        ("一二三四五六，七八九十一二三四", ["一二三四五六，", "七八九十一二三四"]),
        ("abcdefghijkl\u0301mnop", ["abcdefghijk", "l\u0301mnop"]),
        ("क" * 12 + "िकक", ["क" * 11, "किकक"]),
        ("क" * 11 + "्षक", ["क" * 10, "क्षक"]),
        ("aaaaaaaaaa👩\u200d👧bb", ["aaaaaaaaaa", "👩\u200d👧bb"]),
        ("ཀཁགངཀ་ཁགངཅཆཇཉཏ", ["ཀཁགངཀ་", "ཁགངཅཆཇཉཏ"]),
        ("ሀለሐመሠ፣ ረሰሸቀበተቸኀ", ["ሀለሐመሠ፣", "ረሰሸቀበተቸኀ"]),
        ("مرحبا بكم، هنا اليوم", ["مرحبا بكم،", "هنا اليوم"]),
    ],
)
def test_cuts_are_where_a_reader_pauses(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


def test_terms_are_not_cut() -> None:
    text = "uno dos buena comida tres"
    assert parts(text) == ["uno dos", "buena comida", "tres"]
    assert parts(text, kept=((4, 13),)) == ["uno", "dos buena", "comida tres"]
    assert parts("uno. " + text, 10, ((9, 18),)) == ["uno.", "uno", "dos buena", "comida", "tres"]
    assert parts("xxxxxx{abcdefgh}yy", kept=((6, 16),)) == ["xxxxxx", "{abcdefgh}yy"]


def test_what_never_fits_is_left_as_it_is() -> None:
    assert parts("uno dos", 0) == ["u", "n", "o", "d", "o", "s"]
    assert parts("buena comida", 5, ((0, 12),))


@given(st.text(max_size=80), st.integers(1, 20))
def test_nothing_is_lost_and_every_part_fits(text: str, most: int) -> None:
    for part in parts(text, most):
        assert part.strip() == part
        assert len(part) <= most or not part.isascii()


def test_division_ends_where_there_are_enough_parts() -> None:
    read: list[int] = []

    def fits(text: str) -> bool:
        read.append(len(text))
        return len(text) <= 12

    seen: list[str] = []

    def count(part: str) -> None:
        seen.append(part)
        if len(seen) == 3:
            raise TooLong("enough")

    with pytest.raises(TooLong):
        with_parts(split_sentences("uno dos tres " * 100_000), fits, count=count)
    assert seen == ["uno dos tres"] * 3
    assert len(read) < 100


spans = st.lists(st.integers(0, 60), max_size=12, unique=True).map(
    lambda places: list(zip(sorted(places)[::2], sorted(places)[1::2], strict=False))
)


@given(st.text(st.sampled_from("ab ,;.中"), max_size=60), st.integers(1, 12), spans)
def test_spans_that_are_far_away_do_not_matter(
    text: str, most: int, kept: list[tuple[int, int]]
) -> None:
    near = [span for span in kept if span[0] < len(text)]
    far = [(start + 1000, end + 1000) for start, end in kept]
    assert parts(text, most, tuple(near)) == parts(text, most, (*near, *far))
