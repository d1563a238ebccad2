"""A process that admits requests like a worker; run by the tests of shared counts.

Each line that it reads, `KIND LIMIT SECONDS`, is a run of 16 clients. It answers with the time in
which each request was admitted, so that a test can count those that overlap, independently of the
shared memory.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path

from inference.errors import Overloaded
from serving.gateway.admission.admission import Admission
from serving.gateway.admission.auth import KEY, ApiKey
from serving.gateway.server.shared_counts import Segment, SharedCounts

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
                        async with admission.turn():
                            await held()
                    elif kind == "tokens":
                        with admission.reserved(1):
                            await held()
                    else:
                        await held()
            except Overloaded:
                await asyncio.sleep(chance.random() * 0.001)

    until_s = time.monotonic() + run_s
    await asyncio.gather(*(client() for _ in range(16)))
    return spans


def main(path: str, number: str, workers: str) -> None:
    """Run what is read until the end of the input."""
    counts = SharedCounts(Segment(Path(path), int(workers), KEYS), int(number))
    for line in sys.stdin:
        kind, limit, run_s = line.split()
        print(json.dumps(asyncio.run(run(counts, kind, int(limit), float(run_s)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
