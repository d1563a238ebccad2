"""What is tried again, and when."""

import pytest

from triptych.client.retries import Retries
from triptych.errors import (
    ConnectionFailed,
    InvalidRequest,
    Overloaded,
    ServerError,
    Timeout,
    TriptychError,
    Unavailable,
)

RULES = Retries(attempts=4, first_wait_s=1.0, longest_wait_s=3.0)


def overloaded(retry_after_s: float | None = None) -> Overloaded:
    return Overloaded("busy", status=429, type="overloaded", retry_after_s=retry_after_s)


def test_the_wait_doubles_up_to_its_bound() -> None:
    for failed, longest in ((1, 1.0), (2, 2.0), (3, 3.0)):
        waits = [RULES.wait_s(failed, overloaded()) for _ in range(100)]
        assert all(wait is not None and longest / 2 <= wait <= longest for wait in waits)
        assert len(set(waits)) > 1, "clients refused together retry together"


def test_it_gives_up_after_the_last_attempt() -> None:
    assert RULES.wait_s(4, overloaded()) is None
    assert Retries(attempts=1).wait_s(1, ConnectionFailed("no")) is None


def test_the_servers_word_is_kept() -> None:
    assert RULES.wait_s(1, overloaded(2.5)) == 2.5
    assert RULES.wait_s(3, overloaded(0.0)) == 0.0


def test_too_long_retry_after_ends_the_retries() -> None:
    assert RULES.wait_s(1, overloaded(3.5)) is None


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ConnectionFailed("no"), True),
        (Unavailable("draining", status=503, type="unavailable"), True),
        (Timeout("late"), False),
        (InvalidRequest("bad", status=422, type="invalid_request"), False),
        (ServerError("bug", status=500, type="internal"), False),
        (TriptychError("other"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: TriptychError, again: bool) -> None:
    assert (RULES.wait_s(1, error) is not None) == again


def test_a_call_is_sent_once_at_least() -> None:
    with pytest.raises(ValueError, match="attempts"):
        Retries(attempts=0)
