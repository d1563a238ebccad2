"""What an attack may do: connections, requests, and what was answered."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from tests.attack.stacks import Target

JSON = "application/json"
CLOSED, NO_ANSWER = "closed", "no answer"
OPEN, LEFT = "open", "left"
"""Answers that the attacker does not wait for."""
_MOST_READ = 20_000_000


@dataclass(frozen=True)
class Request:
    """One HTTP request of an attack.

    Attributes:
        path: With the query.
        body: Its bytes.
        kind: Content type.
        headers: Further ones.
        method: The verb.
        timeout_s: Seconds that the client gives the gateway; None for the gateway's own limit.
        is_keyed: Whether it has the attacker's key.
    """

    path: str
    body: bytes = b""
    kind: str | None = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    timeout_s: float | None = 4.0
    is_keyed: bool = True

    @classmethod
    def of(cls, path: str, body: Any, **others: Any) -> Request:
        """One with a JSON body."""
        return cls(path, json.dumps(body).encode(), **others)


class Attack:
    """One attack while it runs.

    Args:
        target: Whom.
        rng: For what is drawn.
        seconds: After which it ends.
    """

    def __init__(self, target: Target, rng: random.Random, seconds: float) -> None:
        self.target = target
        self.rng = rng
        self.answers: Counter[str] = Counter()
        self.requests = 0
        self.notes: list[str] = []
        self.failures: list[str] = []
        self._end_s = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []

    @property
    def left_s(self) -> float:
        """Seconds that are left, and a little."""
        return max(self._end_s - time.monotonic(), 0.05)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end_s

    def count(self, answer: str, times: int = 1) -> None:
        """Count an answer."""
        with self._lock:
            self.answers[answer] += times
            self.requests += times

    def fail(self, what: str) -> None:
        """Say what went wrong beside the other client's answers."""
        with self._lock:
            self.failures.append(what)

    def connect(self, timeout_s: float | None = None) -> socket.socket:
        """A connection to the gateway; closed at the end."""
        made = socket.create_connection((self.target.host, self.target.port), timeout=10)
        made.settimeout(timeout_s or self.left_s)
        with self._lock:
            self._open.append(made)
        return made

    def head(self, path: str, *lines: str, method: str = "POST", is_keyed: bool = True) -> bytes:
        """A request's first lines, without the empty one."""
        first = [f"{method} {path} HTTP/1.1", f"host: {self.target.host}:{self.target.port}"]
        if is_keyed and self.target.key:
            first.append(f"authorization: Bearer {self.target.key}")
        return "\r\n".join([*first, *lines, ""]).encode()

    def raw(self, chunks: Iterable[bytes], pause_s: float = 0.0) -> str:
        """Send bytes on a connection of its own, count and return what is answered first."""
        try:
            with self.connect() as made:
                answer = self._exchange(made, chunks, pause_s)
        except OSError as error:
            answer = CLOSED if isinstance(error, ConnectionError) else NO_ANSWER
        self.count(answer)
        return answer

    def _exchange(self, made: socket.socket, chunks: Iterable[bytes], pause_s: float) -> str:
        try:
            for chunk in chunks:
                if self.is_over:
                    return NO_ANSWER
                made.settimeout(self.left_s)
                made.sendall(chunk)
                if pause_s:
                    time.sleep(min(pause_s, self.left_s))
        except (ConnectionError, TimeoutError):
            pass  # it may have answered before it closed
        return first_status(made, self.left_s)

    def send(self, request: Request) -> str:
        """Send a request, count and return its status."""
        answer = self._answer(request)
        self.count(answer)
        return answer

    def _answer(self, request: Request) -> str:
        headers = dict(request.headers)
        if request.kind:
            headers.setdefault("content-type", request.kind)
        if request.timeout_s:
            headers.setdefault("x-request-timeout", str(request.timeout_s))
        if request.is_keyed and self.target.key:
            headers.setdefault("authorization", f"Bearer {self.target.key}")
        made = http.client.HTTPConnection(self.target.host, self.target.port, timeout=self.left_s)
        try:
            try:
                made.request(request.method, request.path, request.body, headers)
            except (ConnectionError, TimeoutError):
                if made.sock is None:
                    raise
                return first_status(made.sock, self.left_s)
            response = made.getresponse()
            response.read(_MOST_READ)
        except (ConnectionError, http.client.BadStatusLine):
            return CLOSED
        except OSError:
            return NO_ANSWER
        finally:
            made.close()
        return str(response.status)

    def at_once(self, works: Sequence[Callable[[], object]], at_once: int) -> None:
        """Run them, so many at a time, until the time is up."""
        left = list(reversed(works))

        def work() -> None:
            while not self.is_over:
                try:
                    one = left.pop()
                except IndexError:
                    return
                one()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.left_s + 2)

    def send_all(self, requests: Sequence[Request], at_once: int = 4) -> None:
        """Send them, so many at a time."""
        self.at_once([lambda each=each: self.send(each) for each in requests], at_once)

    def channel(self) -> grpc.Channel:
        """A gRPC channel of its own; the caller closes it."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        return grpc.insecure_channel(self.target.grpc_address, options)

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """The key, for gRPC."""
        return [("authorization", f"Bearer {self.target.key}")] if self.target.key else []

    def wait(self) -> None:
        """Wait until the time is up."""
        time.sleep(self.left_s)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for each in self._open:
                each.close()


def first_status(made: socket.socket, timeout_s: float) -> str:
    """The status of the first response that is not 100, or how the connection ended."""
    made.settimeout(timeout_s)
    received = b""
    try:
        while b"\r\n\r\n" not in received and len(received) < 65_536:
            piece = made.recv(65_536)
            if not piece:
                break
            received += piece
            if received.startswith(b"HTTP/1.1 100"):
                received = received.partition(b"\r\n\r\n")[2]
    except ConnectionError:
        return CLOSED
    except OSError:
        return NO_ANSWER
    words = received.split(b" ", 2)
    return words[1].decode("latin-1") if received.startswith(b"HTTP/1.") else CLOSED


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
