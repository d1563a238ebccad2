"""`answer` beside the rules of `transformers` 4's pipeline, written out in `answer_reference`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.bundle.manifest import Limits, Role
from inference.errors import InvalidRequest, TooLong, Unavailable
from inference.processing.tokenizer import EncodedText
from inference.tasks.answer import TASK, AnswerPlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import InferCall, Outputs
from tests.answer_reference import Found, ReadWindow, reference_answers
from tests.inference.tiny_models import WordTokenizer, passage_reader, run, served
from triptych.tasks.answer import AnswerRequest, Answers

SEPARATOR, END = 2, 1


def reader(most: int = 40, *, padding_side: str = "right", **section: Any) -> LoadedModel:
    described = passage_reader(**section)
    spec = described.tokenizer.model_copy(update={"padding_side": padding_side})
    limits = Limits(max_input_tokens=most)
    return served(described.model_copy(update={"tokenizer": spec, "limits": limits}))


def plan(model: LoadedModel, **fields: object) -> AnswerPlan:
    return TASK.prepare(AnswerRequest(**fields), (), model)


def answer(model: LoadedModel, **fields: object) -> list[Answers]:
    made = plan(model, **fields)
    return made.finish([run(call) for call in made.calls]).data


def found(item: Answers) -> list[tuple[int | None, int, int]]:
    return [(one.passage, one.start, one.end) for one in item.answers]


def logits_of(ids: list[int], seed: int) -> NDArray[np.float32]:
    """Random, (T, 2), for one row."""
    return np.random.default_rng([seed, *ids]).normal(0, 3, (len(ids), 2)).astype(np.float32)


def run_random(call: InferCall, seed: int) -> Outputs:
    tokens, lengths = call.inputs["token_ids"], call.inputs["lengths"]
    logits = np.full((*tokens.shape, 2), 50, np.float32)  # padding would win
    for row, length in enumerate(lengths):
        logits[row, :length] = logits_of(tokens[row, :length].tolist(), seed)
    return {Role.LOGITS: logits}


def read_windows(
    model: LoadedModel, question: str, passages: list[str], size: int, stride: int, seed: int
) -> list[ReadWindow]:
    """Windows cut by hand: question, separator, a part of the passage, end."""
    asked = model.tokenizer.encode(question, add_special_tokens=False)
    room = size - len(asked) - 2
    made = []
    for number, passage in enumerate(passages):
        tokens = model.tokenizer.encode(passage, add_special_tokens=False)
        places = [match.span() for match in re.finditer(r"\S+", passage)]
        start = 0
        while True:
            part = slice(start, start + room)
            ids = [*asked, SEPARATOR, *tokens[part], END]
            before = [(0, 0)] * (len(asked) + 1)
            inside = [*[False] * len(before), *[True] * len(tokens[part]), False]
            own = [*before, *places[part], (0, 0)]
            rows = logits_of(ids, seed)
            made.append(ReadWindow(number, passage, rows, inside, len(asked), own))
            if start + room >= len(tokens):
                break
            start += room - stride
    return made


WORDS = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=30).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(
    question=st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(" ".join),
    passages=st.lists(WORDS, min_size=1, max_size=3),
    size=st.integers(12, 40),
    stride=st.integers(0, 5),
    n=st.integers(1, 20),
    longest=st.integers(1, 12),
    threshold=st.none() | st.floats(-5, 5),
    seed=st.integers(0, 1000),
)
def test_answers_are_those_of_the_rules(
    question: str,
    passages: list[str],
    size: int,
    stride: int,
    n: int,
    longest: int,
    threshold: float | None,
    seed: int,
) -> None:
    model = reader()
    made = plan(
        model,
        question=question,
        passages=passages,
        max_window_tokens=size,
        stride=stride,
        n=n,
        max_answer_tokens=longest,
        null_threshold=threshold,
    )
    (item,) = made.finish([run_random(call, seed) for call in made.calls]).data
    windows = read_windows(model, question, passages, size, stride, seed)
    wanted, null_score = reference_answers(windows, n, longest, threshold)
    assert found(item) == [one[:3] for one in wanted]
    np.testing.assert_allclose([one.score for one in item.answers], [one[3] for one in wanted])
    np.testing.assert_allclose(item.null_score, null_score)
    for one in item.answers:
        whole = "" if one.passage is None else passages[one.passage]
        assert one.text == whole[one.start : one.end]


def _overlap(first: Found, second: Found) -> bool:
    return first[0] == second[0] and first[1] < second[2] and second[1] < first[2]


@settings(deadline=None, max_examples=30)
@given(passage=WORDS, stride=st.integers(0, 6), seed=st.integers(0, 1000))
def test_scores_are_probabilities_in_order_of_spans_without_overlap(
    passage: str, stride: int, seed: int
) -> None:
    fields = {"question": "q", "passages": passage, "max_window_tokens": 12, "stride": stride}
    made = plan(reader(), n=20, **fields)
    (item,) = made.finish([run_random(call, seed) for call in made.calls]).data
    spans = [(one.passage, one.start, one.end, one.score) for one in item.answers]
    assert not any(_overlap(a, b) for i, a in enumerate(spans) for b in spans[i + 1 :])
    scores = [span[3] for span in spans]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


class SpaceTokenizer(WordTokenizer):
    """Spaces are tokens too, each alone, as those of byte-level tokenizers are."""

    def encode_text(
        self, text: str, second: str | None = None, *, with_offsets: bool = False
    ) -> EncodedText:
        encoded = super().encode_text(text, second, with_offsets=with_offsets)
        if second is None:
            return encoded
        before = encoded.sequences.index(None) + 1
        places = [match.span() for match in re.finditer(r"\s|\S+", second)]
        return EncodedText(
            [*encoded.ids[:before], *(3 + number for number in range(len(places))), END],
            [*[0] * before, *[1] * len(places), 1],
            [*encoded.sequences[:before], *[1] * len(places), None],
            [*encoded.offsets[:before], *places, (0, 0)] if with_offsets else (),
        )


@pytest.mark.parametrize("seed", range(20))
def test_answers_begin_and_end_with_text_where_spaces_are_tokens(seed: int) -> None:
    model = served(passage_reader(), SpaceTokenizer())
    passage = " \r\n a  \n b \u3000c\n\n\n"
    made = plan(model, question="q", passages=passage, n=20)
    (item,) = made.finish([run_random(call, seed) for call in made.calls]).data
    assert item.answers
    for one in item.answers:
        assert one.text == one.text.strip() == passage[one.start : one.end]


def test_null_answer_moves_with_its_threshold() -> None:
    fields = {"question": "q", "passages": "a b c d", "n": 3}
    (item,) = answer(reader(), **fields)
    assert None not in [one.passage for one in item.answers]
    best = item.answers[0].score
    apart = float(np.log(item.null_score / best))
    (first,) = answer(reader(), **fields, null_threshold=apart - 1e-6)
    assert (first.answers[0].text, first.answers[0].passage) == ("", None)
    assert first.answers[0].score == item.null_score
    assert first.answers[1] == item.answers[0]
    (second,) = answer(reader(), **fields, null_threshold=apart + 1e-6)
    assert second.answers[0] == item.answers[0]


def test_model_without_a_null_token_has_no_null_score() -> None:
    (item,) = answer(reader(null_token_id=None), question="q", passages="a b c")
    assert item.null_score is None
    assert len(item.answers) == 1


def test_passage_comes_first_where_texts_are_padded_on_the_left() -> None:
    made = plan(reader(padding_side="left"), question="q", passages="a b")
    (call,) = made.calls
    # The question is encoded alone first, to refuse what is too long by its own field.
    assert call.inputs["token_ids"][0, :5].tolist() == [4, 5, SEPARATOR, 3, END]
    (item,) = made.finish([run(call)]).data
    assert found(item) == [(0, 0, 3)]


def test_equal_windows_share_a_row() -> None:
    made = plan(reader(), question=["q", "q"], passages=["a b", "a b"])
    assert sum(call.rows for call in made.calls) == 1
    first, second = made.finish([run(call) for call in made.calls]).data
    assert (first.answers, first.index, second.index) == (second.answers, 0, 1)


def test_long_passage_is_several_rows_and_a_failed_call_fails_its_questions() -> None:
    passage = " ".join(f"w{number}" for number in range(90))
    made = plan(reader(), question=["q", "r"], passages=passage, stride=0, max_window_tokens=13)
    assert sum(call.rows for call in made.calls) == 2 * 9
    outcomes = [run(call) for call in made.calls]
    failed = Unavailable("gone", retry_after_s=1.0)
    with pytest.raises(Unavailable):
        made.finish([failed for _ in outcomes])
    first, second = made.finish([failed, *outcomes[1:]]).data
    assert first.error.type == "unavailable"
    assert second.answers


def test_question_that_leaves_no_room_is_named() -> None:
    long = " ".join("abcdefghij" * 2)
    first, second = answer(reader(), question=[long, "q"], passages="x " * 30)
    assert first.error.field == "question.0"
    assert "leaves 18 of a window's 40" in first.error.message
    assert second.error is None
    with pytest.raises(TooLong, match=r"question.0 has 61 tokens"):
        answer(reader(), question="x " * 60, passages="a")


def test_a_passage_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"passages.1 is empty"):
        answer(reader(), question="q", passages=["a", " "])
    limits = replace(reader(), task_limits=TaskLimits(max_input_tokens=30))
    with pytest.raises(TooLong, match=r"passages.1") as error:
        answer(limits, question="q", passages=["a", "b " * 40])
    assert error.value.field == "passages.1"


def test_windows_are_bounded() -> None:
    model = replace(reader(512), task_limits=TaskLimits(max_input_tokens=20_000))
    passage = " ".join(f"w{number % 500}" for number in range(4000))
    with pytest.raises(InvalidRequest, match="stride is 380, which makes 3620 windows"):
        plan(model, question="q", passages=passage, stride=380)
    with pytest.raises(InvalidRequest, match="have more than 65536 tokens") as error:
        plan(model, question="q", passages=[passage] * 20)
    assert error.value.field == "passages"


def test_longest_answers_of_a_large_request_are_found_in_bounded_time() -> None:
    """Only windows that an answer overlaps are searched again."""
    model = replace(reader(512), task_limits=TaskLimits(max_input_tokens=20_000))
    passage = " ".join("abcdefg"[i % 7] for i in range(15_000))
    made = plan(model, question="q", passages=passage, n=20, max_answer_tokens=128)
    (item,) = made.finish([run_random(call, 1) for call in made.calls]).data
    assert len(item.answers) == 20


def test_documents_are_left_to_the_gateway() -> None:
    document = "data:text/html;base64,PHA+YTwvcD4="
    with pytest.raises(
        InvalidRequest, match=r"passages\.1 is a document: only a gateway reads them"
    ):
        answer(reader(), question="a", passages=["a b", document])
