from dataclasses import replace

import numpy as np
import pytest

from inference.errors import InvalidRequest, Overloaded, TooLong, Unavailable
from inference.sequences import Finished, TokenChunk
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.translate import TASK, TranslatePlan
from inference.tasks.translation.languages import TranslateSection
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


def test_all_calls_failed_raises_the_first_error(translator: LoadedModel) -> None:
    made = plan(translator, ["uno", "dos"])
    with pytest.raises(Unavailable):
        made.finish([Unavailable("down"), Overloaded("full")])
