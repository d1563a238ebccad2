"""A case: what is sent, and what may be answered."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.attack.attack import CLOSED, LEFT, NO_ANSWER, OPEN, Attack, Request

Run = Callable[[Attack], None]
Prepare = Callable[[random.Random], Run]

REFUSALS = frozenset("400 401 403 404 405 408 413 414 415 421 422 429 431".split())
DECLARED = REFUSALS | {"200", "501", "503", "504", CLOSED, NO_ANSWER, OPEN, LEFT}
"""Answers that an attacker may get; the other client gets 200 alone."""


@dataclass(frozen=True)
class Case:
    """One attack.

    Attributes:
        name: Unique.
        finding: Of the first attack on the gateway; 0 for another.
        sent: What, in words.
        prepare: Makes what is sent, before anything is measured.
        answers: The only ones allowed.
        seconds: How long it lasts at most.
        stops_models: Whether translations may fail meanwhile, because Triton restarts.
        is_keyless: Whether it is for a stack without keys.
        is_short: Whether `make test` runs it.
    """

    name: str
    finding: int
    sent: str
    prepare: Prepare
    answers: frozenset[str] = DECLARED
    seconds: float = 8.0
    stops_models: bool = False
    is_keyless: bool = False
    is_short: bool = False


CASES: dict[str, Case] = {}


def case(name: str, sent: str, finding: int = 0, **others: object) -> Callable[[Prepare], Prepare]:
    """Register a function that prepares an attack."""

    def register(prepare: Prepare) -> Prepare:
        assert name not in CASES, name
        CASES[name] = Case(name, finding, sent, prepare, **others)
        return prepare

    return register


def unprepared(name: str, sent: str, finding: int = 0, **others: object) -> Callable[[Run], Run]:
    """Register an attack that needs no preparation."""

    def register(run: Run) -> Run:
        case(name, sent, finding, **others)(lambda _: run)
        return run

    return register


def requests(
    name: str, sent: str, finding: int = 0, at_once: int = 4, times: int = 1, **others: object
) -> Callable[[Callable[[random.Random], Sequence[Request]]], None]:
    """Register a function that returns the requests of an attack."""

    def register(make: Callable[[random.Random], Sequence[Request]]) -> None:
        def prepare(rng: random.Random) -> Run:
            made = list(make(rng)) * times
            return lambda attack: attack.send_all(made, at_once)

        case(name, sent, finding, **others)(prepare)

    return register
