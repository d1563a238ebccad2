"""Glossaries and texts that are not translated, from request to calls to response."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from inference.bundle.inputs import AlignmentSpec
from inference.engine.codec import SOURCE_IDS
from inference.errors import InvalidRequest, Overloaded
from inference.generation import Finished, TokenChunk
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import GenerateCall, Outcome
from inference.tasks.translate import TASK, TranslatePlan
from inference.tasks.translation.sentence_terms import _NAMES
from tests.inference.tiny_models import WordTokenizer, finished, manifest, served
from triptych.messages import Chunk
from triptych.tasks.translate import MAX_TERMS, TranslateRequest

LIMITS = TaskLimits(max_input_tokens=60, max_client_batch_size=4)


class Vocabulary(WordTokenizer):
    """Cannot write some words, and reads words with braces as unknown (2)."""

    unwritable = frozenset({"Ω", "{x}", "{y}"})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = super().encode(text, add_special_tokens=add_special_tokens)
        return [2 if "{" in self.words[one] else one for one in ids]

    def encode_output(self, text: str) -> list[int] | None:
        return None if self.unwritable & set(text.split()) else super().encode_output(text)


@pytest.fixture
def aligned() -> LoadedModel:
    return model(AlignmentSpec(over="tokens"))


@pytest.fixture
def unaligned() -> LoadedModel:
    return model(None)


def model(alignment: AlignmentSpec | None) -> LoadedModel:
    spec = manifest("translate").tokenizer
    spec = spec.model_copy(update={"unk_token_id": 2})
    return served(manifest("translate", alignment=alignment, tokenizer=spec), Vocabulary())


def plan(loaded: LoadedModel, *texts: str, **fields: object) -> TranslatePlan:
    return TASK.prepare(
        TranslateRequest(texts=list(texts), **fields), (), replace(loaded, task_limits=LIMITS)
    )


def phrases(loaded: LoadedModel, call: GenerateCall) -> list[set[str]]:
    """The spellings of each phrase that a call forces."""
    forced = call.options.force_words_ids or ()
    return [{loaded.tokenizer.decode(ids) for ids in spellings} for spellings in forced]


def answer(loaded: LoadedModel, call: GenerateCall, text: str, score: float = -0.1) -> Finished:
    """A result whose k-th token attends to the k-th of the source."""
    ids = tuple(loaded.tokenizer.encode(text))
    weights = np.eye(len(ids), len(call.inputs[SOURCE_IDS]), dtype=np.float32)
    aligned = (weights,) if call.options.return_alignment else ()
    return finished((ids,), (score,), alignments=aligned)


def translated(
    loaded: LoadedModel, made: TranslatePlan, plain: str, forced: str, loss: float = 0.2
) -> str:
    outcomes: list[Outcome] = [
        answer(loaded, call, forced, -0.1 - loss)
        if call.options.force_words_ids
        else answer(loaded, call, plain)
        for call in made.calls
    ]
    text = made.finish(outcomes).data[0].text
    assert text is not None
    return text


def test_a_sentence_with_a_term_has_a_plain_and_a_forced_call(aligned: LoadedModel) -> None:
    made = plan(aligned, "el gato. la casa", glossary={"gato": "feline"})
    plain, forced, other = made.calls
    assert plain.options.return_alignment
    assert plain.options.force_words_ids is None
    assert phrases(aligned, forced) == [{"feline", "Feline"}]
    assert forced.options.num_beams == 4
    assert other.options.force_words_ids is other.options.return_alignment is None
    assert plain.inputs[SOURCE_IDS].tolist() == forced.inputs[SOURCE_IDS].tolist()


def test_without_terms_calls_are_as_before(aligned: LoadedModel) -> None:
    wanted = [call.options for call in plan(aligned, "el gato. la casa").calls]
    found = plan(aligned, "el gato. la casa", glossary={"perro": "dog"}).calls
    assert [call.options for call in found] == wanted


def test_wide_beams_stay_and_narrow_ones_are_widened(aligned: LoadedModel) -> None:
    for asked, used in ((1, 4), (4, 4), (9, 9)):
        plain, forced = plan(aligned, "gato", glossary={"gato": "x"}, num_beams=asked).calls
        assert (plain.options.num_beams, forced.options.num_beams) == (asked, used)


def test_an_output_that_has_the_terms_already_stands(aligned: LoadedModel) -> None:
    made = plan(aligned, "el gato", glossary={"gato": "cat"})
    assert translated(aligned, made, "the cat", "some cat", loss=0.0) == "the cat"


def test_a_plausible_forced_output_is_taken(aligned: LoadedModel) -> None:
    made = plan(aligned, "el gato negro", glossary={"gato": "feline"})
    assert translated(aligned, made, "the cat black", "the black feline") == "the black feline"


def test_an_implausible_one_is_not(aligned: LoadedModel) -> None:
    made = plan(aligned, "el gato negro", glossary={"gato": "feline"})
    found = translated(aligned, made, "the cat black", "cat cat feline cat", loss=30)
    assert found == "the feline black"


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_the_loss_is_counted_a_token_whatever_the_length_penalty(
    aligned: LoadedModel, penalty: float
) -> None:
    made = plan(aligned, "el gato", glossary={"gato": "feline"}, length_penalty=penalty)
    plain, forced = made.calls
    for mean, wanted in ((-0.55, "a feline"), (-0.65, "the feline")):
        outcomes = [
            answer(aligned, plain, "the cat", -0.1 * 3 / 3**penalty),
            answer(aligned, forced, "a feline", mean * 3 / 3**penalty),
        ]
        assert made.finish(outcomes).data[0].text == wanted


def test_a_failed_search_leaves_the_plain_output(aligned: LoadedModel) -> None:
    made = plan(aligned, "el gato", glossary={"gato": "feline"})
    plain, _ = made.calls
    outcomes = [answer(aligned, plain, "the cat"), InvalidRequest("no output")]
    assert made.finish(outcomes).data[0].text == "the feline"


def test_a_failed_plain_call_fails_its_text(aligned: LoadedModel) -> None:
    made = plan(aligned, "el gato", glossary={"gato": "feline"})
    _, forced = made.calls
    with pytest.raises(Overloaded):
        made.finish([Overloaded("full"), answer(aligned, forced, "a feline")])


def test_a_rendering_that_cannot_be_written_is_placed(aligned: LoadedModel) -> None:
    made = plan(aligned, "el gato", glossary={"gato": "Ω"})
    (call,) = made.calls
    assert made.finish([answer(aligned, call, "the cat")]).data[0].text == "the Ω"


def test_a_name_stands_in_for_what_cannot_be_read(aligned: LoadedModel) -> None:
    made = plan(aligned, "hola {x} y {y} y {x}", do_not_translate=["{x}", "{y}"])
    plain, forced = made.calls
    first, second = _NAMES[:2]
    read = aligned.tokenizer.decode(plain.inputs[SOURCE_IDS])
    assert read == f"hola {first} y {second} y {first}"
    assert phrases(aligned, forced) == [{first}, {second}, {first}]
    found = translated(aligned, made, f"hi {first} and {second} and {first}", "")
    assert found == "hi {x} and {y} and {x}"
    assert (
        translated(aligned, made, "hi you and me and him", "", loss=99) == "hi {x} and {y} and {x}"
    )


def test_a_name_of_the_sentence_stands_in_for_nothing(aligned: LoadedModel) -> None:
    made = plan(aligned, f"{_NAMES[0]} {{x}}", do_not_translate=["{x}"])
    read = aligned.tokenizer.decode(made.calls[0].inputs[SOURCE_IDS])
    assert read == f"{_NAMES[0]} {_NAMES[1]}"


def test_kinds_are_copied(aligned: LoadedModel) -> None:
    made = plan(aligned, "hola {x}", do_not_translate_kinds=["placeholders"])
    assert translated(aligned, made, f"hi {_NAMES[0]}", "") == "hi {x}"


def test_a_term_over_the_end_of_a_sentence_joins_sentences(aligned: LoadedModel) -> None:
    made = plan(aligned, "uno. Yahoo! Inc. dos", do_not_translate=["Yahoo! Inc."])
    texts = {aligned.tokenizer.decode(call.inputs[SOURCE_IDS]) for call in made.calls}
    assert texts == {"uno.", "Yahoo! Inc.", "dos"} or texts == {"uno.", "Yahoo! Inc. dos"}


def test_many_terms_are_placed_and_not_searched_for(
    aligned: LoadedModel, unaligned: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "a b c d e f g h i"
    glossary = {word: word * 2 for word in words.split()}
    (plain,) = plan(aligned, words, glossary=glossary).calls
    assert plain.options.force_words_ids is None
    (forced,) = plan(unaligned, words, glossary=glossary).calls
    assert len(forced.options.force_words_ids or ()) == 9
    monkeypatch.setattr("inference.tasks.translation.sentence_terms.MAX_PHRASES", 8)
    with pytest.raises(InvalidRequest, match="a sentence has 9 terms, at most 8"):
        plan(unaligned, words, glossary=glossary)


def test_alternatives_have_the_terms_too(aligned: LoadedModel) -> None:
    made = plan(aligned, "el gato", glossary={"gato": "feline"}, alternatives=2)
    _, forced = made.calls
    ids = [tuple(aligned.tokenizer.encode(text)) for text in ("the cat", "that cat")]
    weights = np.eye(3, 3, dtype=np.float32)
    outcome = finished(tuple(ids), (-1.0, -2.0), alignments=(weights, weights))
    bad = answer(aligned, forced, "feline", -99.0)
    (item,) = made.finish([outcome, bad]).data
    assert [one.text for one in item.alternatives] == ["the feline", "that feline"]


def test_alignments_have_a_row_for_a_placed_term(aligned: LoadedModel) -> None:
    made = plan(aligned, "el gato", glossary={"gato": "big cat"}, return_alignment=True)
    plain, forced = made.calls
    outcomes = [answer(aligned, plain, "the cat"), answer(aligned, forced, "big cat", -99.0)]
    (item,) = made.finish(outcomes).data
    assert item.alignment.target_tokens == ["the", "big cat", "</s>"]
    assert item.alignment.weights == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_without_alignment_the_search_alone_decides(unaligned: LoadedModel) -> None:
    made = plan(unaligned, "el gato", glossary={"gato": "feline"})
    (forced,) = made.calls
    assert phrases(unaligned, forced) == [{"feline", "Feline"}]
    outcome = answer(unaligned, forced, "feline the", -99.0)
    assert made.finish([outcome]).data[0].text == "feline the"
    with pytest.raises(InvalidRequest, match="no output"):
        made.finish([InvalidRequest("no output")])


def test_without_alignment_a_name_stands_in_for_what_cannot_be_written(
    unaligned: LoadedModel,
) -> None:
    made = plan(unaligned, "el gato", glossary={"gato": "Ω"})
    assert unaligned.tokenizer.decode(made.calls[0].inputs[SOURCE_IDS]) == f"el {_NAMES[0]}"
    assert translated(unaligned, made, "", f"the {_NAMES[0]}") == "the Ω"


def test_too_many_that_cannot_be_written_are_an_error_of_their_text(
    unaligned: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.tasks.translation.sentence_terms._NAMES", ("Ana",))
    made = plan(unaligned, "a b", "casa", glossary={"a": "Ω", "b": "{x}"})
    bad, good = made.finish([answer(unaligned, call, "home") for call in made.calls]).data
    assert bad.error.field == "texts.0"
    assert "cannot write '{x}'" in bad.error.message
    assert good.text == "home"


def streamed(made: TranslatePlan, loaded: LoadedModel, outcomes: dict[int, Outcome]) -> list[Chunk]:
    """The chunks of a stream whose calls end in this order; those of plain sentences by token."""
    streaming, chunks = made.streaming(), []
    for call, outcome in outcomes.items():
        if streaming.is_whole(call):
            chunks += streaming.settle(call, outcome)
            continue
        assert isinstance(outcome, Finished)
        for token in outcome.best.token_ids:
            chunks += streaming.add(call, TokenChunk((token,)))
        chunks += streaming.end(call, outcome)
    if streaming.failure:
        raise streaming.failure
    return chunks


def test_streamed_sentence_with_terms_is_sent_when_it_is_complete(aligned: LoadedModel) -> None:
    made = plan(aligned, "uno. el gato. tres", stream=True, num_beams=1, glossary={"gato": "lynx"})
    first, plain, forced, last = range(4)
    outcomes: dict[int, Outcome] = {
        first: answer(aligned, made.calls[first], "one here"),
        forced: answer(aligned, made.calls[forced], "lynx the", -9.0),
        last: answer(aligned, made.calls[last], "three"),
        plain: answer(aligned, made.calls[plain], "the cat"),
    }
    chunks = streamed(made, aligned, outcomes)
    assert [chunk.text for chunk in chunks if chunk.text] == ["one", " here", " ", "the lynx three"]
    assert chunks[-1].finish_reason == "stop"
    whole = made.finish([outcomes[call] for call in range(4)]).data[0].text
    assert "".join(chunk.text for chunk in chunks) == whole


def test_stream_does_without_a_forced_search_that_fails(aligned: LoadedModel) -> None:
    made = plan(aligned, "el gato", stream=True, num_beams=1, glossary={"gato": "lynx"})
    answers: dict[int, Outcome] = {0: answer(aligned, made.calls[0], "the cat")}
    (chunk,) = streamed(made, aligned, {**answers, 1: InvalidRequest("no output")})
    assert (chunk.text, chunk.finish_reason) == ("the lynx", "stop")
    with pytest.raises(Overloaded):
        streamed(made, aligned, {1: answer(aligned, made.calls[1], "lynx"), 0: Overloaded("full")})


@pytest.mark.parametrize(
    "fields", [{"glossary": {" ": "x"}}, {"glossary": {"x": "\t"}}, {"do_not_translate": [" "]}]
)
def test_blank_terms_are_refused(aligned: LoadedModel, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="holds an empty text"):
        plan(aligned, "x", **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"glossary": {"": "x"}},
        {"glossary": {"x": "y" * 201}},
        {"glossary": {str(number): "x" for number in range(MAX_TERMS + 1)}},
        {"do_not_translate": ["x"] * (MAX_TERMS + 1)},
        {"do_not_translate_kinds": ["words"]},
    ],
)
def test_requests_have_bounds(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TranslateRequest(texts=["a"], **fields)


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_cannot_be_planned_leaves_no_calls(
    unaligned: LoadedModel, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr("inference.tasks.translation.sentence_terms.MAX_PHRASES", 1)
    terms = {"gato": "lynx", "casa": "home"}
    texts = ("uno. dos. el gato casa", "tres")
    made = plan(unaligned, *texts, stream=stream, num_beams=1, glossary=terms)
    (call,) = made.calls
    assert unaligned.tokenizer.decode(call.inputs[SOURCE_IDS]) == "tres"
    outcome = answer(unaligned, call, "three")
    if stream:
        bad, *good = streamed(made, unaligned, {0: outcome})
        assert (bad.index, "".join(chunk.text for chunk in good)) == (0, "three")
    else:
        bad, good = made.finish([outcome]).data
        assert (bad.index, good.text) == (0, "three")
    assert "2 terms" in bad.error.message
