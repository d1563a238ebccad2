"""Work in a thread that ends soon after its request has: it looks, now and then, whether it may."""

from __future__ import annotations

import threading
from contextvars import ContextVar

ABANDONED: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)
"""Set when nothing waits for the work of this context any more."""


class Abandoned(Exception):
    """Nothing waits for this work any more."""


def check_abandoned() -> None:
    """Raises Abandoned where nothing waits for the work of this context."""
    event = ABANDONED.get()
    if event is not None and event.is_set():
        raise Abandoned
