from __future__ import annotations

import pytest

from inference.errors import InvalidRequest
from inference.tasks.translation.languages import (
    LanguageEncoding,
    LanguagePairs,
    LanguageTokens,
    prefix_direction,
    token_direction,
)

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
