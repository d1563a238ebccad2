"""Drafts are what followed before, and are computed where they pay."""

from __future__ import annotations

import pytest

from inference.engine.drafts import MOST_ROWS, Draft, Drafter, paying


def test_a_draft_is_what_followed_the_last_tokens_before() -> None:
    drafter = Drafter([7, 8, 9, 1, 2, 3, 4, 5, 6, 1, 2, 3])
    assert drafter.find(4).token_ids == [4, 5, 6, 1]
    drafter.accept(4)
    assert drafter.find(2).token_ids == [5, 6]


def test_of_two_occurrences_the_longer_decides_then_the_last() -> None:
    assert Drafter([5, 1, 2, 3, 9, 1, 2, 4, 5, 1, 2]).find(1).token_ids == [3]
    assert Drafter([8, 1, 2, 3, 9, 1, 2, 4, 5, 1, 2]).find(1).token_ids == [4]


def test_a_text_that_repeats_itself_goes_on_repeating() -> None:
    assert Drafter([1, 2, 3, 1, 2]).find(7).token_ids == [3, 1, 2, 3, 1, 2, 3]
    assert Drafter([5, 5, 5]).find(3).token_ids == [5, 5, 5]


@pytest.mark.parametrize("text", [[], [1], [1, 1], [1, 2, 3, 4]])
def test_what_is_new_has_no_draft(text: list[int]) -> None:
    assert not Drafter(text).find(8).token_ids


def test_no_draft_is_longer_than_there_is_room() -> None:
    drafter = Drafter([1, 2, 1, 2])
    assert [len(drafter.find(most).token_ids) for most in (-1, 0, 1, 5)] == [0, 0, 1, 5]


def test_rates_follow_the_tokens_whether_drafts_were_computed_or_not() -> None:
    right, wrong = Drafter([1, 2, 3] * 2), Drafter([1, 2, 3] * 2)
    for turn in range(60):
        right.find(4)
        right.accept(1 + turn % 3)
        wrong.find(4)
        wrong.accept(100 + turn)
        for token in (1, 2, 3):
            wrong.accept(token)
    assert right.find(4).rate > 0.99
    assert wrong.find(4).rate < 0.01


def drafts(count: int, rate: float, tokens: int = 8) -> list[Draft]:
    return [Draft(range(tokens), rate)] * count


def test_drafts_that_are_rarely_right_are_not_computed() -> None:
    assert paying(drafts(1, 0.05), is_padded=False) == [range(0)]


def test_drafts_that_are_right_are_computed_whole() -> None:
    assert paying(drafts(1, 0.98), is_padded=False) == [range(8)]


def test_a_larger_batch_requires_a_higher_rate() -> None:
    lengths = [len(paying(drafts(count, 0.6), is_padded=False)[0]) for count in (1, 4, 8, 16)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] >= 3
    assert lengths[-1] == 0


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("count", [1, 5, 12, MOST_ROWS - 1, MOST_ROWS, 64])
def test_calls_have_no_more_rows_than_the_bound(count: int, is_padded: bool) -> None:
    found = paying(drafts(count, 1.0), is_padded=is_padded)
    assert count + sum(map(len, found)) <= max(count, MOST_ROWS)


def test_a_row_without_a_draft_counts_where_all_have_equal_numbers() -> None:
    one = [*drafts(1, 0.9), *[Draft((), 0.0)] * 7]
    assert len(paying(one, is_padded=False)[0]) >= 4
    assert not any(paying(one, is_padded=True))
