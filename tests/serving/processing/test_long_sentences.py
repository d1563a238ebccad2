"""Sentences in parts that fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.processing.long_sentences import with_parts
from serving.processing.sentences import split_sentences


def parts(text: str, most: int = 12, kept: tuple[tuple[int, int], ...] = ()) -> list[str]:
    paragraph = with_parts(split_sentences(text), lambda part: len(part) <= most, kept)
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
