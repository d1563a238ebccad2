"""How long the client of a request will wait: a header over HTTP, the deadline of a gRPC call."""

from __future__ import annotations

import math
from contextvars import ContextVar

from inference.errors import InvalidRequest

HEADER = "x-request-timeout"
TIMEOUT_S: ContextVar[float] = ContextVar("timeout_s", default=math.inf)
"""Seconds that the client of the current request gives it; the gateway's own limit holds too."""


def set_timeout(header: str | None) -> None:
    """Take the client's limit from `x-request-timeout: SECONDS`; without the header there is none.

    Raises:
        InvalidRequest: it is not a positive number.
    """
    TIMEOUT_S.set(math.inf)
    if header is None:
        return
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidRequest(
            f"the header {HEADER} is a positive number of seconds, such as 2.5", field=HEADER
        )
    TIMEOUT_S.set(seconds)
