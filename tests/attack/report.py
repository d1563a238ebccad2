"""Run a case against a target, judge what it did to others, and write the table of results."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from tests.attack.attack import CASES, Attack, Case
from tests.attack.bystander import CONTROL, HEALTH, IMAGE, TRANSLATION, Bystander, Call
from tests.attack.stacks import Target

MOST_HEALTH_S = 0.25
MOST_TRANSLATION_S = 2.0
MOST_IMAGE_S = 5.0
MOST_GROWTH = 268_435_456 + 1_500_000_000
"""Bytes that each worker's processes may take beside what they had: `--max-concurrent-bytes`, and
`--work-memory` of one process that reads an image or a document (two may at once)."""
MOST_LOG = 4_000
"""Bytes of the log for each request."""
QUIET_S = 6.0
"""After an attack the gateway may work so long on what is left of it."""
_QUIET_SHARE = 0.35
"""Of a core: the other client goes on."""
_BUSY_S = 0.1
"""A machine on which a server that does nothing takes longer is too busy to judge."""
_TRIES = 3
_SHORTEST_S = 1.0
"""The other client must have called meanwhile."""
_SAMPLE_S = 0.1
_SIGNS = ("Traceback (most recent call last)", " bug request_id=", "Task exception was never")


@dataclass(frozen=True)
class Result:
    """What one case did.

    Attributes:
        case: Which.
        health_s: The other client's slowest `/health`.
        translation_s: Its slowest translation.
        image_s: Its slowest classification of a small image; 0 without such a model.
        control_s: Its slowest call of a server that does nothing.
        growth: Bytes that the gateway's processes had at most, beside what they had before.
        answers: Of the attacker.
        seconds: How long it took.
        failures: What is wrong; empty if nothing.
    """

    case: Case
    health_s: float
    translation_s: float
    image_s: float
    control_s: float
    growth: int
    answers: Counter[str]
    seconds: float
    failures: tuple[str, ...]


def run_case(case: Case, target: Target, bystander: Bystander, seed: int) -> Result:
    """Run a case, again where the machine was too busy to judge."""
    for _ in range(_TRIES):
        result = _run_once(case, target, bystander, seed)
        if not result.failures or result.control_s <= _BUSY_S:
            break
    return result


def _run_once(case: Case, target: Target, bystander: Bystander, seed: int) -> Result:
    rng = random.Random(f"{seed}/{case.name}")
    run = case.prepare(rng)
    log_from = target.log.stat().st_size
    attack = Attack(target, rng, case.seconds)
    with _Memory(target) as memory:
        began_s = time.monotonic()
        try:
            run(attack)
        except Exception as error:  # a bug of a case: it must not pass
            attack.fail(f"the case failed: {type(error).__name__}: {error}")
        finally:
            attack.close()
        time.sleep(max(0.0, began_s + _SHORTEST_S - time.monotonic()))
        ended_s = time.monotonic()
        is_quiet = _is_quiet(target)
    calls = bystander.calls(began_s, ended_s)
    with target.log.open("rb") as log:
        log.seek(log_from)
        printed = log.read().decode(errors="replace")
    failures = [
        *attack.failures,
        *judge_calls(case, calls),
        *judge_log(printed, attack.requests + len(calls)),
    ]
    wrong = {answer for answer in attack.answers if not is_allowed(answer, case)}
    failures += [f"answered {answer}" for answer in sorted(wrong)]
    if memory.growth > MOST_GROWTH * target.workers:
        failures.append(f"the gateway took {memory.growth / 2**20:.0f} MiB more")
    if not is_quiet:
        failures.append(f"the gateway still worked {QUIET_S:.0f} s after the end")
    slowest = {kind: _slowest(calls, kind) for kind in (HEALTH, TRANSLATION, IMAGE, CONTROL)}
    return Result(
        case,
        *slowest.values(),
        growth=max(memory.growth, 0),
        answers=attack.answers,
        seconds=ended_s - began_s,
        failures=tuple(failures),
    )


def is_allowed(answer: str, case: Case) -> bool:
    """Whether the attacker may get it: a status of HTTP, the name of one of gRPC, or none."""
    is_grpc = answer.isupper() and answer not in ("UNKNOWN", "INTERNAL")
    return answer in case.answers or is_grpc


def _slowest(calls: list[Call], kind: str) -> float:
    return max(
        (call.seconds for call in calls if call.kind == kind),
        default=0.0 if kind == IMAGE else float("inf"),
    )


def judge_calls(case: Case, calls: list[Call]) -> list[str]:
    """What is wrong with the other client's calls; of none, that they had no answer."""
    failures = []
    bounds = {HEALTH: MOST_HEALTH_S}
    if not case.stops_models:
        bounds[TRANSLATION] = MOST_TRANSLATION_S
        if any(call.kind == IMAGE for call in calls):
            bounds[IMAGE] = MOST_IMAGE_S
    for kind, most_s in bounds.items():
        slowest_s = _slowest(calls, kind)
        if slowest_s > most_s:
            failures.append(f"the other client's {kind} took {slowest_s:.2f} s")
        wrong = Counter(call.answer for call in calls if call.kind == kind and not call.is_right)
        failures += [f"the other client's {kind} got {answer} x {n}" for answer, n in wrong.items()]
    return failures


def judge_log(printed: str, requests: int) -> list[str]:
    """What is wrong with what was logged for so many requests."""
    failures = []
    for sign in _SIGNS:
        if sign in printed:
            lines = re.findall(r"^[\w.]+(?:Error|Exception|Disconnect)\b.*", printed, re.M)
            failures.append(f"the log has {printed.count(sign)} x {sign!r} {lines[:1]}")
    if len(printed) > MOST_LOG * (requests + 20):
        failures.append(f"the log grew by {len(printed)} bytes for {requests} requests")
    return failures


def _is_quiet(target: Target) -> bool:
    """Whether the gateway's processes soon have nothing to do but the other client's calls."""
    end_s = time.monotonic() + QUIET_S
    while time.monotonic() < end_s:
        used_s, began_s = _processor_s(target), time.monotonic()
        time.sleep(1)
        if (_processor_s(target) - used_s) / (time.monotonic() - began_s) < _QUIET_SHARE:
            return True
    return False


def _processor_s(target: Target) -> float:
    total = 0.0
    for process in target.gateway():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


class _Memory:
    """The most that the gateway's processes have, while entered."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._before = self._most = 0

    @property
    def growth(self) -> int:
        """Bytes above what they had at first."""
        return self._most - self._before

    def __enter__(self) -> Self:
        self._before = self._most = self._taken()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            self._most = max(self._most, self._taken())

    def _taken(self) -> int:
        total = 0
        for process in self._target.gateway():
            with contextlib.suppress(psutil.NoSuchProcess):
                memory = process.memory_info()
                total += memory.rss - memory.shared
        return total


PAGE = Path(__file__).parent / "README.md"
_HEAD = """| attack | what is sent | slowest health check, translation, image | memory | answers |
|---|---|---|---|---|"""


def line(result: Result) -> str:
    """One result, for the terminal."""
    problems = "".join(f"\n    {failure}" for failure in result.failures)
    return (
        f"{'FAILED' if result.failures else 'ok':6} {result.case.name:24} {_times(result)}, "
        f"control {1000 * result.control_s:.0f} ms, {result.growth / 2**20:+.0f} MiB, "
        f"{result.seconds:.1f} s, {_answers(result)}{problems}"
    )


def table(results: Sequence[Result]) -> str:
    """The results in Markdown."""
    return "\n".join([_HEAD, *map(_row, results)])


def write(results: Sequence[Result], workers: int) -> None:
    """Replace the rows of these cases in the table of so many workers."""
    begin, end = markers(workers)
    before, found, rest = PAGE.read_text().partition(begin)
    old, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"{PAGE.name} has no place for the table: {begin} … {end}")
    rows = {
        row.split("`")[1]: row for row in [*old.splitlines(), *map(_row, results)] if "`" in row
    }
    known = [rows[name] for name in CASES if name in rows]
    PAGE.write_text(f"{before}{begin}\n" + "\n".join([_HEAD, *known]) + f"\n{end}{after}")


def markers(workers: int) -> tuple[str, str]:
    """The lines around the table."""
    begin = f"<!-- attacks, --workers {workers}: made by `make attack` -->"
    return begin, "<!-- end of attacks -->"


def _row(result: Result) -> str:
    case = result.case
    name = f"`{case.name}` ({case.finding})" if case.finding else f"`{case.name}`"
    failures = "".join(f"; **{failure}**" for failure in result.failures)
    memory = f"{result.growth / 2**20:+.0f} MiB"
    cells = (name, case.sent, _times(result), memory, _answers(result) + failures)
    return f"| {' | '.join(cells)} |"


def _times(result: Result) -> str:
    image = f"{1000 * result.image_s:.0f} ms" if result.image_s else "–"
    translation = f"{1000 * result.translation_s:.0f} ms"
    if result.case.stops_models:
        translation = "Triton restarts"
    return f"{1000 * result.health_s:.0f} ms, {translation}, {image}"


def _answers(result: Result) -> str:
    counted = result.answers.most_common()
    return ", ".join(f"{answer} × {n}" if n > 1 else answer for answer, n in counted) or "none"
