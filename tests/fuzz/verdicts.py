"""What every answer must be, and what memory may do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from statistics import linear_regression
from typing import Any

_LEAKS = re.compile(rb"Traceback|File \"/|site-packages|0x[0-9a-f]{8,}")
_ALWAYS = frozenset({400, 404, 405, 413, 422, 431})
"""Refusals of a path, method, header or body that is none of the document's."""
LONGEST_S = 30.0


def declared(document: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    """Statuses of each path that takes a body in an OpenAPI document; parameters as patterns."""
    return {
        path: frozenset(int(status) for one in methods.values() for status in one["responses"])
        for path, methods in document["paths"].items()
        if methods.keys() & {"post", "put"}
    }


def statuses_of(route: str, known: Mapping[str, frozenset[int]]) -> frozenset[int]:
    """The declared statuses of a route, whose path may have parameters in the document."""
    for path, statuses in known.items():
        if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", path), route):
            return statuses
    raise KeyError(route)


def problem(
    status: int, content_type: str, content: bytes, seconds: float, allowed: frozenset[int]
) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    if seconds > LONGEST_S:
        return f"took {seconds:.0f} s"
    if status >= 500 and status not in (503, 504):
        return f"status {status}"
    if status not in allowed | _ALWAYS:
        return f"undeclared status {status}"
    if shows_inside(content):
        return "the answer shows the program's inside"
    if status >= 400 and content and not _is_error(content):
        return f"status {status} without an error's body"
    if status < 300 and content_type.startswith("application/json"):
        try:
            json.loads(content, parse_constant=_refused)
        except ValueError as error:
            return f"not JSON: {error}"
    return None


def shows_inside(content: bytes) -> bool:
    """Whether a text has a path, an address or a stack trace of the program."""
    return _LEAKS.search(content) is not None


def growth(samples: Sequence[tuple[int, int]]) -> float:
    """Least-squares slope of the second half: bytes per thousand requests.

    Args:
        samples: (requests so far, bytes of resident memory).
    """
    kept = samples[len(samples) // 2 :]
    done = [requests for requests, _ in kept]
    if len(set(done)) < 3:
        return 0.0
    return 1000 * linear_regression(done, [size for _, size in kept]).slope


def _is_error(content: bytes) -> bool:
    try:
        body = json.loads(content)
    except ValueError:
        return False
    return isinstance(body, dict) and bool(body.get("error"))


def _refused(constant: str) -> None:
    raise ValueError(f"the constant {constant}")
