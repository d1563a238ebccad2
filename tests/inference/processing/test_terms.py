"""Terms are found as whole words, the longest first, in the forms that their case allows."""

from __future__ import annotations

import re

import pytest

from inference.errors import InvalidRequest
from inference.processing.terms import (
    PATTERNS,
    TermIndex,
    WordEdges,
    composed,
    is_word_character,
    joins,
    word_edges,
)


def found(text: str, glossary: dict[str, str], copied: tuple[str, ...] = ()) -> list[str]:
    terms = TermIndex(glossary, copied, ()).find(composed(text))
    return [f"{text[one.start : one.end]}>{one.rendering}" for one in terms]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("el restaurante nuevo", ["restaurante>diner"]),
        ("Restaurante. RESTAURANTE!", ["Restaurante>diner", "RESTAURANTE>diner"]),
        ("restaurantes, subrestaurante, restaurante2, restaurante_", []),
        ("¿restaurante? «restaurante» l'restaurante", ["restaurante>diner"] * 3),
        ("", []),
    ],
)
def test_words_in_lower_case_are_found_in_every_case(text: str, wanted: list[str]) -> None:
    assert found(text, {"restaurante": "diner"}) == wanted


def test_words_with_capitals_are_found_as_they_are() -> None:
    glossary = {"Apple": "Apple", "apple": "Apfel"}
    assert found("an apple by Apple, APPLE", glossary) == [
        "apple>Apfel", "Apple>Apple", "APPLE>Apfel"
    ]  # fmt: skip
    assert found("an apple", {"Apple": "x"}) == []


def test_the_longest_of_overlapping_terms_counts() -> None:
    glossary = {"New": "a", "New York": "b", "York City": "c", "city": "d"}
    assert found("New York City, New City", glossary) == ["New York>b", "City>d", "New>a", "City>d"]


def test_spaces_in_terms_and_composed_characters_make_no_difference() -> None:
    assert found("la casa blanca", {" casa  blanca ": "White  Hut"}) == ["casa blanca>White Hut"]
    assert TermIndex({"cafe\u0301": "x"}, (), ()).find("un caf\u00e9")[0].rendering == "x"


def test_copied_texts_win_and_keep_their_case() -> None:
    assert found("IBM ibm", {"ibm": "big"}, ("IBM",)) == ["IBM>IBM", "ibm>big"]
    assert found("x {name}s %s", {}, ("{name}", "%s")) == ["{name}>{name}", "%s>%s"]


def test_scripts_without_spaces_have_no_edges_of_words() -> None:
    assert found("我在餐厅吃饭", {"餐厅": "diner"}) == ["餐厅>diner"]
    assert not is_word_character("餐")
    assert joins("año", 1)
    assert not joins("año", 0)


def test_capital_letters_of_a_whole_term_are_seen() -> None:
    (term,) = TermIndex({"ok": "fine"}, (), ()).find("OK")
    assert term.is_upper
    assert not TermIndex({"OK": "fine"}, (), ()).find("OK")[0].is_upper


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("urls", "ver https://example.com/a?b=c. y www.x.org, (http://y.z)",
         ["https://example.com/a?b=c", "www.x.org", "http://y.z"]),
        ("emails", "a: jo.doe+x@mail.example.org.", ["jo.doe+x@mail.example.org"]),
        ("placeholders", "{name} {{user.id}} ${x} %s %1$s %d, %(n)s %.2f %@ 100% sure",
         ["{name}", "{{user.id}}", "${x}", "%s", "%1$s", "%d", "%(n)s", "%.2f", "%@"]),
        ("tags", "<b>a</b> &amp; <br/> 1 < 2 > 0", ["<b>", "</b>", "&amp;", "<br/>"]),
    ],
)  # fmt: skip
def test_kinds_of_text_are_found(kind: str, text: str, wanted: list[str]) -> None:
    terms = TermIndex({}, (), (kind,)).find(text)
    assert [one.rendering for one in terms] == wanted
    assert all(one.is_copied and text[one.start : one.end] == one.rendering for one in terms)


@pytest.mark.parametrize(
    "unit", ["{", "%", "<a", "www.", "a@", "&", "{{", "%(", "https://", "-a@b."]
)
def test_long_hostile_texts_are_read_in_time(unit: str) -> None:
    text = unit * (40_000 // len(unit))
    assert TermIndex({"a" * n: "x" for n in range(1, 200)}, (), PATTERNS).find(text) is not None


COPIED = {
    "urls": "https://example.org/" + "a" * 1_900,
    "emails": "a" * 64 + "@" + "b" * 63 + (".c" + "d" * 62) * 8,
    "placeholders": "{{" + "x" * 100 + "}}",
    "tags": "</a" + "b" * 500 + ">",
}
"""Kind → a text of nearly the greatest length."""


@pytest.mark.parametrize("kind", COPIED)
def test_kinds_of_text_are_found_across_the_parts_that_are_searched(kind: str) -> None:
    for before in (0, 9_950, 9_999, 10_000, 19_990, 29_000):
        text = " ".join(["," * before, *[COPIED[kind]] * 20])
        found = [(one.start, one.end) for one in TermIndex({}, (), [kind]).find(text)]
        assert found == [match.span() for match in PATTERNS[kind].finditer(text)]
        assert len(found) == 20


def test_no_search_for_a_kind_holds_the_interpreter_for_a_whole_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []

    class Pattern:
        def search(self, text: str, start: int, end: int) -> re.Match[str] | None:
            searched.append(end - start)
            return emails.search(text, start, end)

    emails = PATTERNS["emails"]
    monkeypatch.setitem(PATTERNS, "emails", Pattern())
    assert TermIndex({}, (), ["emails"]).find("가" * 100_000 + " a@b.c")[0].rendering == "a@b.c"
    assert len(searched) > 1
    assert max(searched) <= 13_000


def test_edges_of_tokens() -> None:
    class Tokenizer:
        def pieces(self, ids: object, *, of_source: bool = False) -> list[str]:
            return [" din", "er", ".", " (", "\ufffd", "", "</s>", " 中"]

    edges = WordEdges.of(Tokenizer(), 8)
    assert edges.begins.tolist() == [False, True, False, False, True, False, False, False]
    assert edges.ends.tolist() == [True, True, False, False, True, False, False, False]


@pytest.mark.parametrize("before", range(9_960, 10_005, 4))
def test_marks_are_counted_across_the_parts_that_are_searched(before: int) -> None:
    text = "\u00e9" * before + "\u0301" * 30
    assert composed(text + "a" * 20_000)
    with pytest.raises(InvalidRequest, match="combining marks"):
        composed(text + "\u0301" + "a" * 20_000)


@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u0344", "\u0591\u05b0"])
def test_texts_with_many_marks_in_a_row_are_refused_unread(marks: str) -> None:
    text = "a" + marks * 100
    with pytest.raises(InvalidRequest, match=r"texts\.0 has more than 30 combining marks"):
        composed(text, "texts.0")
    with pytest.raises(InvalidRequest, match="combining marks"):
        TermIndex({text: "x"}, (), ())
    assert composed("e\u0301" * 1000 + "ộ" * 1000) == "é" * 1000 + "ộ" * 1000
    assert composed("a" + "\u0301" * 30) == "á" + "\u0301" * 29


def test_comparisons_of_a_request_are_bounded() -> None:
    index = TermIndex({"a" * n: "x" for n in range(1, 200)}, (), ())
    with pytest.raises(InvalidRequest, match="more than 5000000 comparisons"):
        index.find("a " * 30_000)


@pytest.mark.parametrize("text", ["", "a", "uno dos, tres-4!", "¿qué 中文 x"])
def test_edges_of_words_are_those_of_each_place(text: str) -> None:
    assert word_edges(text) == [not joins(text, place) for place in range(len(text) + 1)]
