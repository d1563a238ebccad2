"""The text of a sequence while it grows, against the whole text cut afterwards."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.processing.detokenizer import LeadingSpace, Stripping
from inference.processing.text import FastTokenizer
from inference.sequences import TokenChunk
from inference.tasks.shared.incremental_text import IncrementalText
from tests.inference.processing.test_stops import cut
from tests.inference.processing.test_text import byte_level

ids_of_tokens = st.lists(st.integers(0, 319), max_size=20)
texts = st.lists(st.text(alphabet=" theo�", min_size=1, max_size=3), max_size=3)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    folder: Path = tmp_path_factory.mktemp("fast")
    return FastTokenizer(byte_level(folder), folder)


def read(live: IncrementalText, tokens: TokenChunk, cuts: random.Random) -> str:
    text, place = "", 0
    while place < len(tokens.token_ids):
        size = cuts.randint(1, 4)
        text += live.add(tokens[place : place + size])
        place += size
    return text + live.finish()


@given(ids_of_tokens, texts, st.integers(0, 99))
def test_text_is_that_of_the_whole_sequence_cut_at_the_first_stop(
    tokenizer: FastTokenizer, ids: list[int], stops: list[str], seed: int
) -> None:
    tokens = TokenChunk(tuple(ids), tuple(-float(n) for n in ids))
    live = IncrementalText(tokenizer, stops=stops)
    text, is_cut = cut(tokenizer.decode(ids), stops)
    assert read(live, tokens, random.Random(seed)) == text
    assert live.is_stopped == is_cut
    assert live.tokens == tokens[: live.length]
    if not is_cut:
        assert live.length == len(ids)
        return
    # Stopped at the first token that completes the stop string.
    assert cut(tokenizer.decode(ids[: live.length]), stops) == (text, True)
    settled = tokenizer.decode(ids[: live.length - 1]).rstrip("\N{REPLACEMENT CHARACTER}")
    assert not cut(settled, stops)[1]


@given(ids_of_tokens, texts)
def test_leading_space_is_removed_before_stops_are_searched(
    tokenizer: FastTokenizer, ids: list[int], stops: list[str]
) -> None:
    live = IncrementalText(tokenizer, stops=stops, trim=LeadingSpace())
    text = live.add(TokenChunk(tuple(ids))) + live.finish()
    assert text == cut(tokenizer.decode(ids).removeprefix(" "), stops)[0]


@given(ids_of_tokens, ids_of_tokens)
def test_a_text_may_begin_with_tokens_that_were_not_generated(
    tokenizer: FastTokenizer, begun: list[int], ids: list[int]
) -> None:
    live = IncrementalText(tokenizer, begins_with=begun, trim=Stripping())
    text = "".join(live.add(TokenChunk((number,))) for number in ids) + live.finish()
    assert text == tokenizer.decode([*begun, *ids]).strip()
    assert live.length == len(ids)
