"""Requests that end their model's process repeatedly: refused for a while, by content (D102).

Without it one request, sent again and again, would take every process of a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b

import numpy as np

from inference.errors import Quarantined
from inference.tasks.shared.model_calls import Call, GenerateCall

KEEP_S = 300.0
MAX_CALLS = 256
"""Remembered at once; beyond, the oldest is forgotten."""
_INCIDENTAL = {"seed", "priority", "deadline_ms", "stream", "generated_ids"}
"""Options that do not make it another request."""


class Quarantine:
    """Calls that are refused. Used on one event loop.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s: dict[bytes, float] = {}
        """Hash of a call → when it is accepted again; the oldest first."""

    def check(self, call: Call) -> None:
        """Refuses a call that was added.

        Raises:
            Quarantined: it is not accepted yet.
        """
        now_s = self._clock()
        while self._until_s and next(iter(self._until_s.values())) <= now_s:
            del self._until_s[next(iter(self._until_s))]
        if self._until_s and _digest(call) in self._until_s:
            raise _refusal(call)

    def add(self, call: Call) -> Quarantined:
        """Refuses this call from now on; returns the error of its request."""
        digest = _digest(call)
        self._until_s.pop(digest, None)
        while len(self._until_s) >= MAX_CALLS:
            del self._until_s[next(iter(self._until_s))]
        self._until_s[digest] = self._clock() + KEEP_S
        return _refusal(call)


def _refusal(call: Call) -> Quarantined:
    return Quarantined(
        f"the process of {call.model} ended each time that it ran this request: it is refused for "
        f"{KEEP_S / 60:.0f} minutes; change it, and report it with the server's log"
    )


def _digest(call: Call) -> bytes:
    """A hash of what a call sends to its model."""
    found = blake2b(call.model.encode(), digest_size=16)
    for name, array in sorted(call.inputs.items()):
        found.update(f"\0{name}{array.dtype}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    if isinstance(call, GenerateCall):
        found.update(call.options.model_dump_json(exclude=_INCIDENTAL).encode())
    return found.digest()
