"""Stop strings: the text is cut before the first that is complete."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference.tasks.shared.incremental_text import StopStrings

LETTERS = "ab\n"
texts = st.text(alphabet=LETTERS, max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text, read letter by letter, until it holds a stop string."""
    for place in range(1, len(text) + 1):
        ends = [stop for stop in stops if text[:place].endswith(stop)]
        if ends:
            return text[: place - max(map(len, ends))], True
    return text, False


@given(st.lists(texts, max_size=12), st.lists(texts.filter(bool), max_size=4))
@example(["aab", "aab", "aaba"], ["aabaaba"])
@example(["ab", "a"], ["b", "ab"])
def test_text_ends_where_a_naive_search_ends_it(parts: list[str], stops: list[str]) -> None:
    strings = StopStrings(stops)
    passed = [strings.add(part) for part in parts]
    is_stopped = strings.is_stopped
    expected = cut("".join(parts), stops)
    assert ("".join(passed) + strings.finish(), is_stopped) == expected


@given(st.text(alphabet=LETTERS, max_size=30), st.lists(texts.filter(bool), max_size=3))
def test_no_more_is_held_back_than_may_begin_a_stop(text: str, stops: list[str]) -> None:
    strings, passed = StopStrings(stops), ""
    for place, letter in enumerate(text, start=1):
        passed += strings.add(letter)
        if strings.is_stopped:
            break
        begun = [
            size
            for stop in stops
            for size in range(1, len(stop))
            if text[:place].endswith(stop[:size])
        ]
        assert len(passed) == place - max(begun, default=0)


def test_nothing_follows_the_stop() -> None:
    strings = StopStrings(["\n"])
    assert strings.add("one\ntwo") == "one"
    assert strings.add("three") == strings.finish() == ""


@pytest.mark.parametrize("text", ["a", "aac", "ab", "a" * 254 + "c", "a" * 300])
def test_each_character_is_compared_once_and_each_held_text_once_more(text: str) -> None:
    compared = 0

    class Counted(str):
        def startswith(self, *arguments):
            nonlocal compared
            compared += 1
            return super().startswith(*arguments)

    strings = StopStrings([Counted("a" * 255 + "b")])
    pieces = 10_000 // len(text)
    for _ in range(pieces):
        strings.add(text)
    assert compared <= pieces * (len(text) + 1)
