"""Pairs, segments, offsets and windows: those of `transformers`' fast tokenizers."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from transformers.pipelines.token_classification import (
    AggregationStrategy,
    TokenClassificationPipeline,
)

from inference.errors import InvalidRequest
from inference.processing.text import FastTokenizer
from inference.processing.tokenizer import EncodedText
from inference.tasks.classification.windows import windows
from tests.inference.processing.tokenizer_files import CORPUS, KINDS, NASTY, trained

Both = tuple[FastTokenizer, PreTrainedTokenizerFast]
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
LONG = " ".join(CORPUS)


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return trained(request.param, tmp_path_factory.mktemp("tokenizer"))


def assert_equal(both: Both, text: str) -> None:
    ours, theirs = both
    found = ours.encode_text(text, with_offsets=True)
    expected = theirs(text, return_offsets_mapping=True, return_token_type_ids=True)
    assert list(found.ids) == expected["input_ids"]
    assert list(found.segments) == expected["token_type_ids"]
    special = expected.encodings[0].special_tokens_mask
    assert [sequence is None for sequence in found.sequences] == [bool(one) for one in special]
    inside = [place for place, one in zip(found.offsets, special, strict=True) if not one]
    assert inside == [
        place for place, one in zip(expected["offset_mapping"], special, strict=True) if not one
    ]


@pytest.mark.parametrize("text", [*NASTY, LONG])
def test_texts_equal_those_of_transformers(both: Both, text: str) -> None:
    assert_equal(both, text)


@given(text=TEXT)
def test_any_text_equals_that_of_transformers(both: Both, text: str) -> None:
    assert_equal(both, text)


def test_offsets_are_indices_of_a_python_string(both: Both) -> None:
    text = "🙂 Ada 👩‍🚀 London"
    found = both[0].encode_text(text, with_offsets=True)
    spans = [
        place
        for place, sequence in zip(found.offsets, found.sequences, strict=True)
        if sequence == 0
    ]
    start = text.index("London")
    inside = [span for span in spans if span[1] > start]
    assert "".join(text[a:b] for a, b in inside).strip() == "London"


@pytest.mark.parametrize("first", [NASTY[0], NASTY[2], "a"])
@pytest.mark.parametrize("second", [NASTY[1], LONG])
@pytest.mark.parametrize("limit", [None, 64, 23, 22, 9, 8, 7])
def test_pairs_equal_those_of_transformers(
    both: Both, first: str, second: str, limit: int | None
) -> None:
    ours, theirs = both
    for a, b in ((first, second), (second, first)):
        found = ours.encode_text(a, b)
        if limit is not None:
            found = found.truncated(limit)
        expected = theirs(
            a, b, truncation="longest_first" if limit else False, max_length=limit,
            return_token_type_ids=True,
        )  # fmt: skip
        assert list(found.ids) == expected["input_ids"]
        assert list(found.segments) == expected["token_type_ids"]


@pytest.mark.parametrize("end", ["right", "left"])
@pytest.mark.parametrize("second", [None, NASTY[1], LONG])
@pytest.mark.parametrize("limit", [64, 23, 22, 9, 8, 7])
def test_either_end_is_cut_as_by_transformers(
    both: Both, second: str | None, limit: int, end: Literal["left", "right"]
) -> None:
    ours, theirs = both
    before = theirs.truncation_side
    theirs.truncation_side = end
    try:
        for texts in ((NASTY[0], second), (LONG, second), (second or "a", LONG)):
            found = ours.encode_text(*texts).truncated(limit, end)
            expected = theirs(
                *texts, truncation="longest_first", max_length=limit, return_token_type_ids=True
            )
            assert list(found.ids) == expected["input_ids"]
            assert list(found.segments) == expected["token_type_ids"]
    finally:
        theirs.truncation_side = before


@pytest.mark.parametrize("limit", [8, 12, 30, 61])
@pytest.mark.parametrize("stride", [0, 1, 5])
@pytest.mark.parametrize("text", [LONG, NASTY[0], NASTY[2], "a", " "])
def test_windows_equal_those_of_transformers(
    both: Both, text: str, limit: int, stride: int
) -> None:
    ours, theirs = both
    whole = ours.encode_text(text, with_offsets=True)
    found = [whole.at(positions) for positions in windows(whole, limit, stride, "stride")]
    expected = theirs(
        text, truncation=True, max_length=limit, stride=stride, return_overflowing_tokens=True,
        return_offsets_mapping=True, return_token_type_ids=True,
    )  # fmt: skip
    assert [list(one.ids) for one in found] == expected["input_ids"]
    assert [list(one.segments) for one in found] == expected["token_type_ids"]
    for one, places in zip(found, expected["offset_mapping"], strict=True):
        inside = [i for i, sequence in enumerate(one.sequences) if sequence is not None]
        assert [one.offsets[i] for i in inside] == [places[i] for i in inside]


@pytest.mark.parametrize("length", range(1, 40))
@pytest.mark.parametrize(("limit", "stride"), [(9, 0), (9, 3), (9, 6)])
def test_windows_cover_a_text_of_any_length(
    both: Both, length: int, limit: int, stride: int
) -> None:
    whole = both[0].encode_text(LONG)
    inside = [i for i, sequence in enumerate(whole.sequences) if sequence is not None]
    special = [i for i, sequence in enumerate(whole.sequences) if sequence is None]
    text = whole.at(sorted({*inside[:length], *special}))
    cut = windows(text, limit, stride, "stride")
    own = [[i for i in one if text.sequences[i] is not None] for one in cut]
    assert {i for one in own for i in one} == set(range(len(text))) - {
        i for i, sequence in enumerate(text.sequences) if sequence is None
    }
    assert all(len(one) <= limit for one in cut)
    for before, after in itertools.pairwise(own):
        assert len(set(before) & set(after)) == stride


def test_stride_that_does_not_advance_is_refused(both: Both) -> None:
    whole = both[0].encode_text(LONG)
    with pytest.raises(InvalidRequest, match=r"stride is 6, a window has 6 .* at most 5") as caught:
        windows(whole, 8, 6, "stride")
    assert caught.value.field == "stride"
    short = both[0].encode_text("a")
    assert len(windows(short, 8, 6, "stride")) == 1


def test_windows_of_a_text_are_limited() -> None:
    text = EncodedText([1] * 4096, [0] * 4096, [None, *[0] * 4094, None])
    with pytest.raises(InvalidRequest, match="3585 windows of 512 tokens, at most 128") as caught:
        windows(text, 512, 509, "stride")
    assert caught.value.field == "stride"
    assert len(windows(text, 512, 478, "stride")) == 113


@pytest.fixture(scope="module")
def is_subword(both: Both) -> Callable[[str], list[bool]]:
    """What the pipeline of `transformers` decides, without a model."""
    _, theirs = both
    pipeline = object.__new__(TokenClassificationPipeline)
    pipeline.tokenizer = theirs

    def decide(text: str) -> list[bool]:
        made = theirs(text, return_offsets_mapping=True)
        mask = np.zeros(len(made["input_ids"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = pipeline.gather_pre_entities(
                text,
                np.array(made["input_ids"]),
                np.zeros((len(mask), 2)),
                made["offset_mapping"],
                mask,
                AggregationStrategy.FIRST,
            )
        return [one["is_subword"] for one in found]

    return decide


@pytest.mark.parametrize("text", [*NASTY, LONG])
def test_words_are_those_of_the_pipeline(
    both: Both, is_subword: Callable[[str], list[bool]], text: str
) -> None:
    ours, _ = both
    encoded = ours.encode_text(text, with_offsets=True)
    inside = [i for i, sequence in enumerate(encoded.sequences) if sequence is not None]
    found, expected = ours.continues(text, encoded), is_subword(text)
    assert [found[i] for i in inside] == [expected[i] for i in inside]


def test_some_words_have_several_tokens(both: Both) -> None:
    assert any(both[0].continues(LONG, both[0].encode_text(LONG, with_offsets=True)))


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("skip", [True, False])
def test_rendered_text_is_that_of_transformers(both: Both, text: str, skip: bool) -> None:
    ours, theirs = both
    ids = theirs(text)["input_ids"]
    assert ours.render(ids, skip_special_tokens=skip) == theirs.decode(
        ids, skip_special_tokens=skip
    )


def test_token_of_a_text_is_by_name_or_alone(both: Both) -> None:
    ours, theirs = both
    for name, number in list(theirs.get_vocab().items())[:60]:
        assert ours.token_id(name) == number
    assert ours.token_id("a b c d") is None
    assert ours.token_id("") is None
