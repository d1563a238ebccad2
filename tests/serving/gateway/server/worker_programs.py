"""Programs of workers: of the tests of the supervisor, and of those of shared counts.

Without arguments it stands in for a worker: it starts as one, beats, and follows commands. What
else it does is in the file `behaviour` of its working folder: `fails`, `hangs`, `busy`, or nothing.

With arguments it admits requests like a worker. Each line that it reads, `KIND LIMIT SECONDS`, is a
run of 16 clients. It answers with the time in which each request was admitted, so that a test can
count those that overlap, independently of the shared memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

from inference.errors import Overloaded
from serving.gateway.admission.admission import Admission
from serving.gateway.admission.auth import KEY, ApiKey
from serving.gateway.server.shared_counts import Field, Segment, SharedCounts
from serving.gateway.server.worker_process import ABORT, DRAIN, Start, segment_of

KEYS = 65
"""Rows for the keys of a worker."""


async def run(counts: SharedCounts, kind: str, limit: int, run_s: float) -> list[tuple[int, int]]:
    """The times of one run."""
    most = 10**6
    admission = Admission(
        max_requests=limit if kind == "requests" else most,
        max_tokens=limit if kind == "tokens" else most,
        max_pixels=most,
        max_bytes=most,
        max_sequences=limit if kind == "turns" else most,
        counts=counts,
    )
    key = ApiKey(name="alice", sha256="0" * 64, max_concurrent_requests=limit)
    chance = random.Random()
    spans: list[tuple[int, int]] = []

    async def held() -> None:
        begin_ns = time.monotonic_ns()
        await asyncio.sleep(chance.random() * 0.002)
        spans.append((begin_ns, time.monotonic_ns()))

    async def client() -> None:
        KEY.set(key if kind == "key" else None)
        while time.monotonic() < until_s:
            try:
                with admission.request():
                    if kind == "turns":
                        async with admission.turn(0):
                            await held()
                    elif kind == "tokens":
                        with admission.reserve_tokens(1):
                            await held()
                    else:
                        await held()
            except Overloaded:
                await asyncio.sleep(chance.random() * 0.001)

    until_s = time.monotonic() + run_s
    await asyncio.gather(*(client() for _ in range(16)))
    return spans


def admit(path: str, number: str, workers: str) -> None:
    """Run what is read until the end of the input."""
    counts = SharedCounts(Segment(Path(path), int(workers), KEYS), int(number))
    for line in sys.stdin:
        kind, limit, run_s = line.split()
        print(json.dumps(asyncio.run(run(counts, kind, int(limit), float(run_s)))), flush=True)


def stand_in() -> int:
    start = Start.read(0)
    behaviour = Path("behaviour").read_text()
    if behaviour == "fails":
        return 1
    segment = segment_of(start.settings, start.folder)
    signal.signal(signal.SIGUSR2, lambda *_: _log(f"stacks of {start.number}"))
    segment.words[segment.place(start.number, Field.REQUESTS)] = 5
    given = b""
    while DRAIN not in given or (behaviour == "busy" and ABORT not in given):
        if behaviour != "hangs" or start.number == 0:
            segment.words[segment.place(start.number, Field.BEATS)] += 1
        if behaviour == "hangs" and segment.read(start.number, Field.BEATS) == 0:
            segment.words[segment.place(start.number, Field.BEATS)] = 1
        time.sleep(0.01)
        if select.select([0], [], [], 0)[0]:
            command = os.read(0, 9)
            given += command or DRAIN
    _log(f"{start.number} ends after {given.decode()}")
    return 0


def _log(line: str) -> None:
    os.write(2, f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(admit(*sys.argv[1:]) if sys.argv[1:] else stand_in())
