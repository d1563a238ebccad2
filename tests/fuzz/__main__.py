"""`make fuzz`: a seeded number of odd requests against a real stack, HTTP and gRPC.

It fails on an undeclared status, a 500, a stack trace in an answer or in the log, an answer that
takes long, a process that dies, or memory that grows.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import psutil

from tests.e2e.conftest import Stack, start_stack, stop_stack
from tests.fuzz import cases

GRPC_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
GRPC_SHARE = 0.25
MOST_GROWTH = 1_000_000
"""Bytes per thousand requests, in the second half of a run."""
JUDGED_FROM = 30_000
"""Requests of a run whose growth is judged: until then caches fill."""
_SHOWN = 20
_SAMPLE_S = 2.0


@dataclass
class Outcome:
    """What was seen, from several threads."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, failure: str | None) -> None:
        """Count one answer."""
        with self.lock:
            self.done += 1
            self.counts[kind] += 1
            if failure:
                self.failures.append(failure)


def main() -> int:
    """Run; 1 if anything is wrong."""
    arguments = _parsed()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "serve.log"
        stack = start_stack(arguments.repository, log)
        try:
            outcome = fuzz(stack, arguments.requests, arguments.seed, arguments.workers)
            is_ready = httpx.get(f"{stack.url}/ready", timeout=30).status_code == 200
        finally:
            stop_stack(stack)
        return report(outcome, log.read_text(errors="replace"), is_ready=is_ready)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="The same requests for the same seed.")
    parser.add_argument("--workers", type=int, default=8, help="Requests in flight.")
    return parser.parse_args()


def fuzz(stack: Stack, requests: int, seed: int, workers: int) -> Outcome:
    """Send so many requests, from several threads."""
    outcome, numbers = Outcome(), itertools.count()
    document = httpx.get(f"{stack.url}/openapi.json", timeout=30).json()
    statuses = cases.declared(document)

    def work() -> None:
        connection = http.client.HTTPConnection(urlsplit(stack.url).netloc, timeout=60)
        with grpc.insecure_channel(stack.grpc_address) as channel:
            while (number := next(numbers)) < requests:
                rng = random.Random(f"{seed}/{number}")
                try:
                    if rng.random() < GRPC_SHARE:
                        kind, failure = _grpc(channel, rng)
                    else:
                        kind, failure = _http(connection, rng, statuses)
                except Exception as error:  # a bug of these files: the run must not pass
                    kind, failure = "bug", f"{type(error).__name__}: {error}"
                outcome.add(kind, f"case {seed}/{number}: {failure}" if failure else None)
        connection.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    started_s = time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(_SAMPLE_S)
        outcome.memory.append((outcome.done, _memory(stack.process.pid)))
        speed = outcome.done / (time.monotonic() - started_s)
        size = outcome.memory[-1][1] / 2**20
        print(
            f"\r{outcome.done} of {requests}, {speed:.0f} a second, {size:.0f} MiB, "
            f"{len(outcome.failures)} failures ",
            end="",
            flush=True,
        )
    print()
    return outcome


def _http(
    connection: http.client.HTTPConnection,
    rng: random.Random,
    statuses: dict[str, frozenset[int]],
) -> tuple[str, str | None]:
    request = cases.request(rng)
    started_s = time.monotonic()
    try:
        connection.request(request.method, request.path, request.body, dict(request.headers))
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return "broken", f"{request.method} {request.path}: {type(error).__name__}: {error}"
    allowed = cases.statuses_of(request.route, statuses)
    seconds = time.monotonic() - started_s
    kind = answer.headers.get("content-type", "")
    failure = cases.problem(answer.status, kind, content, seconds, allowed)
    if failure:
        failure = f"{request.method} {request.path} {request.headers}: {failure}: {content[:300]!r}"
    return str(answer.status), failure


def _grpc(channel: grpc.Channel, rng: random.Random) -> tuple[str, str | None]:
    method, content = cases.call(rng)
    path = f"/{method.containing_service.full_name}/{method.name}"
    call = channel.unary_stream(path)(content, timeout=cases.LONGEST_S + 5)
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        code = error.code()
        failure = None if code in GRPC_STATUSES else f"{path}: {code.name}: {error.details()}"
        if cases.shows_inside((error.details() or "").encode()):
            failure = f"{path}: the status shows the program's inside: {error.details()}"
        return code.name, failure
    return "OK", None


def _memory(pid: int) -> int:
    """Resident bytes of a process and its descendants, shared pages counted once or not at all."""
    total = 0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        try:
            memory = process.memory_info()
        except psutil.NoSuchProcess:
            continue
        total += memory.rss - memory.shared
    return total


def report(outcome: Outcome, log: str, *, is_ready: bool) -> int:
    """Print what was seen; 1 if anything is wrong."""
    failures = list(outcome.failures)
    growth = cases.growth(outcome.memory)
    if growth > MOST_GROWTH and outcome.done >= JUDGED_FROM:
        failures.append(f"memory grows by {growth / 1e6:.2f} MB per thousand requests")
    if not is_ready:
        failures.append("the service is not ready at the end")
    failures += [
        f"the log has {sign!r}: {log[max(0, log.index(sign) - 200) :][:1500]}"
        for sign in ("Traceback (most recent call last)", " bug request_id=", "restarting Triton")
        if sign in log
    ]
    print(json.dumps(dict(outcome.counts.most_common())))
    print(f"memory: {growth / 1000:+.0f} kB per thousand requests")
    for failure in failures[:_SHOWN]:
        print(failure)
    print(f"{outcome.done} requests, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
