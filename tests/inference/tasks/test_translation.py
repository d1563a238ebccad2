"""Languages of translators, and where terms go in a translation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inference.errors import InvalidRequest
from inference.processing.terms import FoundTerm
from inference.tasks.translation.languages import (
    LanguageEncoding,
    LanguagePairs,
    LanguageTokens,
    prefix_direction,
    token_direction,
)
from inference.tasks.translation.term_placement import SourceTerm, contains, place_terms
from tests.inference.tiny_models import WordTokenizer

CODES = {"eng_Latn": 7, "fra_Latn": 8, "zho_Hans": 9, "zho_Hant": 10}
ALIASES = {"en": ("eng_Latn",), "fr": ("fra_Latn",), "zh": ("zho_Hans", "zho_Hant")}
END = 2


def tokens(**fields: object) -> LanguageTokens:
    values = {"codes": CODES, "aliases": ALIASES, "place": "before", **fields}
    return LanguageTokens.model_validate(values)


@pytest.mark.parametrize("asked", [("eng_Latn", "fra_Latn"), ("en", "FR")])
def test_source_stands_in_front_and_target_begins_the_output(asked: tuple[str, str]) -> None:
    found = token_direction(tokens(), *asked, END, "it")
    assert found == LanguageEncoding("", (7,), (END,), True, 8)


def test_source_stands_behind_where_the_model_was_trained_so() -> None:
    found = token_direction(tokens(place="behind"), "en", "fr", END, "it")
    assert found == LanguageEncoding("", (), (END, 7), True, 8)


def test_one_target_is_not_forced_and_need_not_be_given() -> None:
    only = tokens(place="behind", target="fra_Latn")
    assert token_direction(only, "en", None, END, "it").forced_bos_token_id is None
    with pytest.raises(InvalidRequest, match="does not translate into en; supported is: fra_Latn"):
        token_direction(only, "fr", "en", END, "it")


@pytest.mark.parametrize(
    ("asked", "field", "message"),
    [
        (("en", None), "target", r"give target, one of eng_Latn, fra_Latn"),
        ((None, "fr"), "source", r"give source, one of eng_Latn"),
        (("xx", "fr"), "source", r"it does not have that language; supported are: eng_Latn, fra"),
        (("en", "zh"), "target", r"target zh is ambiguous for it: give one of zho_Hans, zho_Hant"),
    ],
)
def test_languages_that_do_not_resolve_are_refused_by_name(
    asked: tuple[str, str], field: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        token_direction(tokens(), *asked, END, "it")
    assert caught.value.field == field


WORDS = {("en", "de"): "to German: ", ("en", "fr"): "to French: "}


def test_words_are_those_of_the_only_pair_that_fits() -> None:
    assert prefix_direction(WORDS, None, "fr", "it").words == "to French: "
    assert prefix_direction(WORDS, "en", "de", "it").words == "to German: "


@pytest.mark.parametrize("asked", [(None, None), ("en", None)])
def test_several_pairs_that_fit_are_listed(asked: tuple[str | None, None]) -> None:
    with pytest.raises(InvalidRequest, match=r"several languages: .* one pair of en-de, en-fr"):
        prefix_direction(WORDS, *asked, "it")


def test_pair_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"other languages: .* one pair of en-de, en-fr"):
        prefix_direction(WORDS, "de", "fr", "it")


def test_a_language_is_not_translated_into_itself() -> None:
    pairs = LanguagePairs(frozenset({"en", "de"}), frozenset({"en", "fr"}))
    assert ("de", "en") in pairs
    assert ("en", "en") not in pairs
    assert ("fr", "en") not in pairs


Term = tuple[int, str]


def term(rendering: str, **forms: bool) -> FoundTerm:
    return FoundTerm(0, 1, rendering, **forms)


def result(text: str, looks_at: list[int], terms: list[Term], **forms: bool) -> str:
    """Each word of a text attends to one source token, the end token to the last."""
    tokenizer = WordTokenizer()
    ids = tokenizer.encode(text)
    weights = np.full((len(ids), 8), 0.01)
    for row, source in enumerate([*looks_at, 7]):
        weights[row, source] = 0.9
    sources = [SourceTerm(term(words, **forms), at, at + 1) for at, words in terms]
    target = place_terms(ids, weights, sources, tokenizer)
    assert len(target.pieces) == len(target.weights)
    return target.text


def test_a_word_is_replaced_by_the_rendering() -> None:
    assert result("my sister works", [0, 1, 2], [(1, "aunt")]) == "my aunt works"


def test_neighbouring_words_of_one_term_are_replaced_together() -> None:
    assert result("the central bank opens", [0, 2, 2, 3], [(2, "ECB")]) == "the ECB opens"


@pytest.mark.parametrize(("attention", "wanted"), [(0.6, "the ECB opens"), (0.7, "ECB opens")])
def test_a_neighbour_with_less_attention_is_no_part_of_the_term(
    attention: float, wanted: str
) -> None:
    """An article attends to its noun most of all, too, but not as much as a word of a term."""
    tokenizer = WordTokenizer()
    ids = tokenizer.encode("the bank opens")
    weights = np.full((len(ids), 8), 0.01)
    for row, (source, weight) in enumerate([(2, attention), (2, 0.9), (3, 0.9), (7, 0.9)]):
        weights[row, source] = weight
    assert place_terms(ids, weights, [SourceTerm(term("ECB"), 2, 3)], tokenizer).text == wanted


def test_a_rendering_that_is_there_stays() -> None:
    assert result("my aunt works", [0, 1, 2], [(2, "aunt")]) == "my aunt works"


def test_each_term_takes_a_place_of_its_own() -> None:
    terms = [(0, "cat"), (2, "cat")]
    assert result("dog and dog", [0, 1, 2], terms) == "cat and cat"
    assert result("dog and cat", [0, 1, 2], terms) == "cat and cat"


def test_where_nothing_attends_the_nearest_word_is_replaced() -> None:
    assert result("one two", [0, 1], [(5, "six")]) in ("six two", "one six", "Six two")


def test_more_terms_than_words_are_appended() -> None:
    found = result("one", [0], [(0, "cat"), (1, "dog"), (2, "fox")])
    assert sorted(found.split()) == ["cat", "dog", "fox"]


def test_terms_do_not_become_one_word() -> None:
    class Joined(WordTokenizer):
        def decode(self, ids: Sequence[int]) -> str:
            return super().decode(ids).replace(" ~", "")

    tokenizer = Joined()
    ids = tokenizer.encode("one ~' ~two")
    weights = np.eye(4, 8)
    sources = [SourceTerm(term("cat"), 0, 1), SourceTerm(term("dog"), 1, 2)]
    assert place_terms(ids, weights, sources, tokenizer).text == "cat dog two"


def test_case_follows_place_and_term() -> None:
    assert result("Sister works", [0, 1], [(0, "aunt")]) == "Aunt works"
    assert result("my Sister works", [0, 1, 2], [(1, "aunt")]) == "my aunt works"
    assert result("my sister works", [0, 1, 2], [(1, "aunt")], is_upper=True) == "my AUNT works"
    assert result("Sister works", [0, 1], [(0, "eBay")], is_copied=True) == "eBay works"


def test_contains_counts_whole_words_and_each_once() -> None:
    assert contains("a diner", [term("diner")])
    assert contains("Diner.", [term("diner")])
    assert not contains("diners", [term("diner")])
    assert not contains("one diner", [term("diner"), term("diner")])
    assert contains("new york york", [term("york"), term("new york")])
    assert not contains("new york", [term("york"), term("new york")])
    assert not contains("EBAY", [term("eBay", is_copied=True)])
