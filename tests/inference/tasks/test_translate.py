"""Sentences, languages, and where terms go in a translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from inference.errors import InvalidRequest, Overloaded, TooLong, Unavailable
from inference.generation import Finished, TokenChunk
from inference.processing.terms import FoundTerm
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.translate import TASK, TranslatePlan
from inference.tasks.translation.languages import (
    LanguageEncoding,
    LanguagePairs,
    LanguageTokens,
    TranslateSection,
    prefix_direction,
    token_direction,
)
from inference.tasks.translation.term_placement import SourceTerm, contains, place_terms
from tests.inference.tiny_models import WordTokenizer, finished, manifest, served
from tests.tasks import cases
from triptych.tasks.translate import TranslateRequest

LIMITS = TaskLimits(max_input_tokens=30, max_client_batch_size=4)


def plan(model: LoadedModel, texts: list[str], **fields: object) -> TranslatePlan:
    return TASK.prepare(
        TranslateRequest(texts=texts, **fields), (), replace(model, task_limits=LIMITS)
    )


def echo(call: object, hypotheses: int = 1) -> Finished:
    """The source read back, worse by one with each hypothesis."""
    ids = tuple(call.inputs["source_ids"].tolist())
    scores = tuple(-0.5 - rank for rank in range(hypotheses))
    turned = [ids if rank == 0 else ids[::-1] for rank in range(hypotheses)]
    return finished(tuple(turned), scores, prompt_tokens=len(ids))


def test_each_sentence_is_one_call(translator: LoadedModel) -> None:
    calls = plan(translator, ["uno dos. tres\ncuatro", "uno"]).calls
    decoded = [translator.tokenizer.decode(call.inputs["source_ids"]) for call in calls]
    assert decoded == ["uno dos.", "tres", "cuatro", "uno"]
    assert all(call.inputs["source_ids"].dtype == np.int64 for call in calls)
    assert all(call.inputs["source_ids"][-1] == 1 for call in calls)  # the end token
    assert {(call.model, call.version) for call in calls} == {("tiny-translate", 3)}
    assert [call.tokens for call in calls] == [3, 2, 2, 2]


def test_a_stream_is_greedy_where_beams_are_the_default(translator: LoadedModel) -> None:
    for fields, is_greedy in (({}, True), ({"num_beams": 1}, None)):
        made = plan(translator, ["uno"], stream=True, **fields)
        assert made.calls[0].options.num_beams == 1
        ids = tuple(made.calls[0].inputs["source_ids"].tolist())
        streaming = made.streaming()
        streaming.add(0, TokenChunk(ids))
        (last,) = streaming.end(0, finished((ids,), (-1.0,), ("stop",)))
        assert last.is_greedy is is_greedy


@pytest.mark.parametrize("fields", [{}, {"divide_long_sentences": True}])
def test_long_sentence_is_divided_and_nothing_is_lost(
    translator: LoadedModel, fields: dict[str, bool]
) -> None:
    text = "uno. " + "dos " * 8 + "tres, " + "cuatro " * 8 + "\n"
    made = plan(translator, [text, "uno. dos"], **fields)
    lengths = [len(call.inputs["source_ids"]) for call in made.calls]
    assert max(lengths) <= 6
    assert len(lengths) > 4
    item, short = made.finish([echo(call) for call in made.calls]).data
    assert item.text == text
    assert (item.finish_reason, item.divided_sentences) == ("stop", 1)
    assert (short.finish_reason, short.divided_sentences) == ("stop", None)
    with pytest.raises(TooLong, match="more than 30 tokens"):
        plan(translator, ["dos " * 60], divide_long_sentences=True)


def test_sentences_end_by_the_rules_of_the_source(translator: LoadedModel) -> None:
    text = "Am 2. Tag kam er."
    for languages, source, calls in (
        ([("de", "en")], None, 1),
        ([("de", "en"), ("es", "en")], "de", 1),
        ([("en", "de")], None, 2),
        ([("de", "en"), ("es", "en")], None, 2),
    ):
        section = TranslateSection(languages=tuple(languages))
        model = replace(translator, sections={"translate": section})
        made = plan(model, [text], source=source)
        assert len(made.calls) == calls


def test_divided_sentence_keeps_its_terms(translator: LoadedModel) -> None:
    text = "dos " * 10 + "buena comida tres"
    made = plan(translator, [text], divide_long_sentences=True, glossary={"buena comida": "grub"})
    (item,) = made.finish([echo(call) for call in made.calls]).data
    forced = [call for call in made.calls if call.options.force_words_ids]
    assert len(forced) == 1
    assert "comida" in translator.tokenizer.decode(forced[0].inputs["source_ids"])
    assert item.error is None


def test_enormous_text_is_refused_unread(translator: LoadedModel) -> None:
    with pytest.raises(TooLong, match=r"texts.0 has 10000 characters, at most 30 tokens"):
        plan(translator, ["x" * 10_000])
    assert "x" * 10_000 not in translator.tokenizer.words


def test_sentences_and_terms_are_counted_before_they_are_tokenised(
    translator: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(text: str, **options: object) -> list[int]:
        raise AssertionError("read")

    monkeypatch.setattr(translator.tokenizer, "encode", encode)
    with pytest.raises(TooLong, match="more than 30 tokens"):
        plan(translator, ["a. " * 31])
    with pytest.raises(TooLong, match="more than 30 tokens"):
        plan(translator, ["{} " * 31], do_not_translate_kinds=["placeholders"])


def test_long_sentence_is_divided_no_further_than_texts_may_be_long(
    translator: LoadedModel,
) -> None:
    tokenizer, read = translator.tokenizer, []
    encode = tokenizer.encode
    tokenizer.encode = lambda text, **options: read.append(len(text)) or encode(text, **options)
    with pytest.raises(TooLong, match="more than 30 tokens"):
        plan(translator, ["dos " * 740], divide_long_sentences=True)
    assert sum(read) < 20_000
    with pytest.raises(TooLong, match="4000 characters"):
        plan(translator, ["dos " * 1000], divide_long_sentences=True)


@pytest.fixture
def multilingual() -> LoadedModel:
    return cases.multilingual()


def sources(model: LoadedModel, made: TranslatePlan) -> list[str]:
    return [model.tokenizer.decode(call.inputs["source_ids"]) for call in made.calls]


def test_missing_and_unknown_target_are_refused(multilingual: LoadedModel) -> None:
    with pytest.raises(InvalidRequest, match="give target"):
        plan(multilingual, ["uno"])
    with pytest.raises(InvalidRequest, match="supported are: en, fr"):
        plan(multilingual, ["uno"], target="xx")


@pytest.fixture
def polyglot() -> LoadedModel:
    return cases.polyglot()


def test_languages_of_many_are_listed_as_codes(
    polyglot: LoadedModel, translator: LoadedModel
) -> None:
    assert TASK.details(polyglot) == {"languages": [], "language_codes": ["eng_Latn", "fra_Latn"]}
    assert TASK.details(translator) == {"languages": [["es", "en"]], "language_codes": []}


def test_model_of_many_languages_accepts_what_it_can_name(
    polyglot: LoadedModel, translator: LoadedModel
) -> None:
    def asks(**languages: str) -> TranslateRequest:
        return TranslateRequest(texts=["x"], **languages)

    assert TASK.accepts(asks(), polyglot)
    assert TASK.accepts(asks(source="fr", target="en"), polyglot)
    unknown = asks(source="es", target="en")
    assert not TASK.accepts(unknown, polyglot)
    refusal = str(TASK.refusal(unknown, [polyglot]))
    assert "does not have that language; supported are: eng_Latn" in refusal
    long = str(TASK.refusal(asks(source="x" * 1000, target="en"), [polyglot]))
    assert len(long) == len(refusal)
    both = str(TASK.refusal(asks(target="de"), [polyglot, translator]))
    assert "es-en, any two of 2 languages by tiny-translate" in both


def test_words_stand_before_each_sentence() -> None:
    section = {
        "languages": [["en", "de"], ["en", "fr"]],
        "prefixes": {"en-de": "to German: ", "en-fr": "to French: "},
    }
    model = served(manifest("translate", section), WordTokenizer())
    made = plan(model, ["uno. dos"], target="de")
    assert sources(model, made) == ["to German: uno.", "to German: dos"]
    with pytest.raises(InvalidRequest, match="give source and target"):
        plan(model, ["uno"])


def test_two_models_are_left_to_the_gateway(translator: LoadedModel) -> None:
    with pytest.raises(InvalidRequest, match="only a gateway has two models"):
        plan(translator, ["hola"], source="es", via="en", target="de")


def test_all_calls_failed_raises_the_first_error(translator: LoadedModel) -> None:
    made = plan(translator, ["uno", "dos"])
    with pytest.raises(Unavailable):
        made.finish([Unavailable("down"), Overloaded("full")])


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
