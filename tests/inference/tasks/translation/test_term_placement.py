"""Terms take the place of the words that attend to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inference.processing.terms import FoundTerm
from inference.tasks.translation.term_placement import SourceTerm, contains, placed
from tests.inference.tiny_models import WordTokenizer

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
    target = placed(ids, weights, sources, tokenizer)
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
    assert placed(ids, weights, [SourceTerm(term("ECB"), 2, 3)], tokenizer).text == wanted


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
    assert placed(ids, weights, sources, tokenizer).text == "cat dog two"


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
