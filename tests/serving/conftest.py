"""What every test of serving leaves as it was."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from serving.processes.supervision import STOP_SIGNALS


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """A program ignores the signals that end it once it ends; the tests' process goes on."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
