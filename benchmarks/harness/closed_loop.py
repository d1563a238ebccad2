"""Loops of requests: closed ones, over HTTP or not, and arrival times of open ones.

Only the work counts that was done while so many were in flight, not how a loop fills and empties:
what a request generated is spread evenly over its time.

A thread and an `http.client` for each request take several times its CPU time, and send a request
in two packets, which the server reads apart.
"""

from __future__ import annotations

import random
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.harness.machine import Processes

REST_S = 0.25
"""Between two runs, so that no system's spinning threads are still warm in the next one's run."""
T = TypeVar("T")


def interleave(
    systems: Iterable[T], rounds: int, rest_s: float = REST_S
) -> Iterator[tuple[int, T]]:
    """Each round's number with every system, in another order each round, with a rest before."""
    order, shuffle = list(systems), random.Random(0)
    for number in range(rounds):
        shuffle.shuffle(order)
        for system in order:
            time.sleep(rest_s)
            yield number, system


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Seconds after the start at which requests arrive, without end; gaps are exponential.

    They do not depend on the server, so a stall delays every request that arrives meanwhile
    (no "coordinated omission", Tene 2013).

    Args:
        rate: Mean arrivals per second.
        seed: Seed of the gaps.
    """
    gaps = random.Random(seed)
    now = 0.0
    while True:
        now += gaps.expovariate(rate)
        yield now


FILL_S = 1.0
COUNTED_S = 3.0


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
    """Times and tokens of one request."""

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
    return count_answers(answers, start_s, stop_s, cpu_s)


def count_answers(
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


@dataclass(frozen=True)
class Reply:
    """An answer, and seconds from the time at which its request was due.

    Attributes:
        first_s: To the first text of a stream; to the whole where there is none.
        whole_s: To the end.
        body: As it was sent: a stream with the sizes of its chunks.
    """

    first_s: float
    whole_s: float
    body: bytes


_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
_CHUNKED, _LAST_CHUNK = b"\r\ntransfer-encoding: chunked\r\n", b"\r\n0\r\n\r\n"
_TEXT = re.compile(rb'"content": ?"[^"]')
"""Of an event of OpenAI's streams, the first of which may be empty."""
_READ_BYTES = 1 << 16


class _Connection:
    """One request at a time.

    Args:
        address: HOST:PORT.
        path: Of all requests.
    """

    def __init__(self, address: str, path: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        self._head = f"{head}content-length: ".encode()
        self._received = b""
        self.asked_s = 0.0
        self.first_s: float | None = None
        """When the first text of a stream arrived."""

    def send(self, body: bytes) -> None:
        """Send a JSON body."""
        self.asked_s, self.first_s = time.perf_counter(), None
        self.socket.sendall(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))

    def read(self) -> bytes | None:
        """What has arrived: the body of the response, or None if it is not complete.

        Raises:
            RuntimeError: the response has another status than 200, or the connection was closed.
        """
        received = self.socket.recv(_READ_BYTES)
        self._received += received
        head, _, body = self._received.partition(b"\r\n\r\n")
        if self.first_s is None and _TEXT.search(body):
            self.first_s = time.perf_counter()
        length = _LENGTH.search(head + b"\r\n")
        if _CHUNKED in head + b"\r\n":
            is_complete = body.endswith(_LAST_CHUNK)
        else:
            is_complete = length is not None and len(body) >= int(length[1])
        if received and not is_complete:
            return None
        if not received or not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(self._received.decode() or "the server closed the connection")
        self._received = b""
        return body


def http_loop(
    address: str,
    path: str,
    bodies: Iterator[bytes],
    tokens: Callable[[bytes], int],
    in_flight: int,
    counted_s: float = COUNTED_S,
    fill_s: float = FILL_S,
) -> Loop:
    """As `closed_loop`, with connections in place of threads.

    Args:
        address: HOST:PORT of the server.
        path: What bodies are sent to.
        bodies: JSON, endless.
        tokens: Body of a response → tokens, or whatever else is to be counted.
        in_flight: Requests, one a connection.
    """
    answers: list[Answered] = []
    processes = Processes()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(in_flight):
            connection = _Connection(address, path)
            stack.enter_context(connection.socket)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send(next(bodies))

        def run(until_s: float, *, is_over: bool = False) -> None:
            left = in_flight
            while left and (is_over or time.perf_counter() < until_s):
                for key, _ in selector.select(timeout=0.01):
                    connection: _Connection = key.data
                    if (body := connection.read()) is None:
                        continue
                    now_s = time.perf_counter()
                    answers.append(Answered(connection.asked_s, now_s, tokens(body)))
                    if is_over:
                        left -= 1
                    else:
                        connection.send(next(bodies))

        run(time.perf_counter() + fill_s)
        start_s, before = time.perf_counter(), processes.cpu_seconds()
        run(start_s + counted_s)
        stop_s, after = time.perf_counter(), processes.cpu_seconds()
        run(stop_s, is_over=True)
    cpu_s = {part: seconds - before[part] for part, seconds in after.items()}
    return count_answers(answers, start_s, stop_s, cpu_s)


def open_loop(address: str, path: str, arrivals: Sequence[tuple[float, bytes]]) -> list[Reply]:
    """Sends bodies when they are due, whatever is still unanswered.

    Args:
        address: HOST:PORT of the server.
        path: What bodies are sent to.
        arrivals: Seconds after the start, ascending, and JSON.

    Returns:
        In the order of the answers.
    """
    replies: list[Reply] = []
    idle: list[_Connection] = []
    due_s: dict[_Connection, float] = {}
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        start_s = time.perf_counter()
        waiting = list(reversed(arrivals))
        while waiting or due_s:
            now_s = time.perf_counter() - start_s
            while waiting and waiting[-1][0] <= now_s:
                at_s, body = waiting.pop()
                if idle:
                    connection = idle.pop()
                else:
                    connection = _Connection(address, path)
                    stack.enter_context(connection.socket)
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
                connection.send(body)
                due_s[connection] = start_s + at_s
            pause_s = max(0.0, waiting[-1][0] - now_s) if waiting else None
            for key, _ in selector.select(pause_s):
                connection = key.data
                if connection in idle:  # which the server closes after a while
                    idle.remove(connection)
                    selector.unregister(connection.socket)
                    continue
                if (body := connection.read()) is None:
                    continue
                now_s, at_s = time.perf_counter(), due_s.pop(connection)
                replies.append(Reply((connection.first_s or now_s) - at_s, now_s - at_s, body))
                idle.append(connection)
    return replies
