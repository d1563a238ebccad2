"""Cut texts have the tokens that `transformers` leaves of the whole, and say what was cut off."""

from __future__ import annotations

from typing import Literal

import pytest
from transformers import PreTrainedTokenizerFast

from inference.processing.text import FastTokenizer
from inference.processing.tokenizer import cut_texts
from tests.inference.processing.tokenizer_files import CORPUS, KINDS, NASTY, trained

Both = tuple[FastTokenizer, PreTrainedTokenizerFast]
End = Literal["left", "right"]
ENDS: tuple[End, ...] = ("right", "left")
LONG = " ".join(CORPUS)
LIMIT = 16
MOST = 100 * LIMIT


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return trained(request.param, tmp_path_factory.mktemp("tokenizer"))


def ids_of(theirs: PreTrainedTokenizerFast, texts: tuple[str, ...], end: End) -> list[int]:
    before = theirs.truncation_side
    theirs.truncation_side = end
    try:
        found = theirs(*texts, truncation="longest_first", max_length=LIMIT)
    finally:
        theirs.truncation_side = before
    return list(found["input_ids"])


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("texts", [(LONG,), (LONG * 60,), ("a b", LONG * 60), (LONG * 60, LONG)])
def test_tokens_are_those_of_the_whole_texts(both: Both, texts: tuple[str, ...], end: End) -> None:
    ours, theirs = both
    found = cut_texts(ours, texts, LIMIT, end, MOST)
    assert found is not None
    assert list(found.ids) == ids_of(theirs, texts, end)
    assert found.cut_characters > 0


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("text", ["a b", "Ada Lovelace", "e\u0301"])
def test_a_text_that_fits_is_not_cut(both: Both, text: str, end: End) -> None:
    ours, _ = both
    found = cut_texts(ours, (text,), LIMIT, end, MOST)
    whole = ours.encode_text(text, with_offsets=True)
    assert found is not None
    assert (list(found.ids), list(found.offsets)) == (list(whole.ids), list(whole.offsets))
    assert found.cut_characters == 0


@pytest.mark.parametrize("text", [LONG, LONG * 60, *NASTY])
def test_what_was_cut_and_what_was_read_are_the_whole_text(both: Both, text: str) -> None:
    ours, _ = both
    right = cut_texts(ours, (text,), LIMIT, "right", MOST)
    left = cut_texts(ours, (text,), LIMIT, "left", MOST)
    assert right is not None
    assert left is not None
    rest = len(text) - right.cut_characters
    assert max(end for _, end in right.places(0)) <= rest + 1  # a character of several tokens
    starts = [start for start, end in left.places(0) if end > start]
    assert min(starts) >= left.cut_characters - 1
    if right.cut_characters:
        # The part that was cut off begins with the first token that was not read.
        first = ours.encode_text(text, with_offsets=True).places(0)[len(right.places(0))]
        assert first[0] == rest


def test_offsets_of_what_is_left_are_those_of_the_whole_text(both: Both) -> None:
    ours, _ = both
    text = LONG * 60
    found = cut_texts(ours, (text,), LIMIT, "left", MOST)
    whole = ours.encode_text(text, with_offsets=True).places(0)
    assert found is not None
    assert found.places(0) == whole[-len(found.places(0)) :]


@pytest.mark.parametrize("end", ENDS)
def test_a_text_whose_tokens_lie_behind_what_is_read_is_not_cut(both: Both, end: End) -> None:
    spaces = " " * (MOST + 1)
    text = f"{spaces}a" if end == "right" else f"a{spaces}"
    found = cut_texts(both[0], (text,), LIMIT, end, MOST)
    if found is not None:  # each space is a token
        assert found.cut_characters > MOST - LIMIT
    else:
        assert len(both[0].encode_text(spaces)) <= LIMIT
