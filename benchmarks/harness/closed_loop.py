"""A closed loop: a fixed number of requests in flight against whatever answers them.

Only the work counts that was done while so many were in flight, not how a loop fills and empties:
what a request generated is spread evenly over its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.harness.processes import Processes

FILL_S = 1.0
COUNTED_S = 3.0
T = TypeVar("T")


@dataclass(frozen=True)
class Loop:
    """What a closed loop saw while it was full.

    Attributes:
        latencies_ms: Of requests that were answered meanwhile.
        cpu_ms: CPU time for each request, by process.
    """

    tokens_per_second: float
    requests_per_second: float
    latencies_ms: tuple[float, ...]
    cpu_ms: dict[str, float]


@dataclass(frozen=True)
class Answered:
    """One request."""

    asked_s: float
    answered_s: float
    tokens: int


def closed_loop(
    send: Callable[[T], int],
    inputs: Iterator[T],
    in_flight: int,
    counted_s: float = COUNTED_S,
    fill_s: float = FILL_S,
) -> Loop:
    """Keeps so many requests in flight; counts after a while, until the last one is sent.

    Args:
        send: Input → tokens, or whatever else is to be counted; called from several threads.
        inputs: What is sent, endless.
        in_flight: Requests, one a thread.
        counted_s: How long is counted.
        fill_s: Before that.
    """
    answers: list[Answered] = []
    next_input = threading.Lock()
    is_over = threading.Event()
    processes = Processes()

    def work() -> None:
        while not is_over.is_set():
            with next_input:
                taken = next(inputs)
            asked_s = time.perf_counter()
            tokens = send(taken)
            answers.append(Answered(asked_s, time.perf_counter(), tokens))

    threads = [threading.Thread(target=work) for _ in range(in_flight)]
    for thread in threads:
        thread.start()
    time.sleep(fill_s)
    start_s, before = time.perf_counter(), processes.cpu_seconds()
    time.sleep(counted_s)
    stop_s, after = time.perf_counter(), processes.cpu_seconds()
    is_over.set()
    for thread in threads:
        thread.join()
    cpu_s = {part: seconds - before[part] for part, seconds in after.items()}
    return counted(answers, start_s, stop_s, cpu_s)


def counted(
    answers: Sequence[Answered], start_s: float, stop_s: float, cpu_s: dict[str, float]
) -> Loop:
    """What was done from start to stop; of a request that reaches beyond, the part within."""
    shares = [
        max(0.0, min(a.answered_s, stop_s) - max(a.asked_s, start_s)) / (a.answered_s - a.asked_s)
        for a in answers
    ]
    requests = sum(shares)
    tokens = sum(share * a.tokens for share, a in zip(shares, answers, strict=True))
    return Loop(
        tokens_per_second=tokens / (stop_s - start_s),
        requests_per_second=requests / (stop_s - start_s),
        latencies_ms=tuple(
            1000 * (a.answered_s - a.asked_s) for a in answers if start_s <= a.answered_s <= stop_s
        ),
        cpu_ms={part: 1000 * seconds / max(requests, 1e-9) for part, seconds in cpu_s.items()},
    )
