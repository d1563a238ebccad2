"""Poisson arrivals of mixed lengths: continuous batching against static batches.

The same arrivals go to our engine as it serves, to our engine used as a static batcher (what waits
is decoded together, to the end of the longest, before the next batch starts), and to CTranslate2 as
one, whose batches have one length.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from benchmarks.harness.closed_loop import poisson_arrivals
from benchmarks.harness.system import THREADS
from benchmarks.speed.checkpoints import bundle, ctranslate2_folder
from benchmarks.speed.systems import words
from inference.bundle.manifest import Manifest
from inference.engine.engine import Engine, decode
from inference.engine.request import EngineRequest, RequestValidator
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.generation import TokenChunk

MOST = 32
"""Sequences in one batch."""
LENGTHS = (8, 16, 32, 64)


@dataclass(frozen=True)
class Arrival:
    """A request: arrival time, source, and number of tokens to generate."""

    at_s: float
    source: tuple[int, ...]
    new_tokens: int


def arrivals(rate: float, count: int, vocabulary: int, seed: int = 0) -> list[Arrival]:
    """Exponential gaps, sources of 16 to 48 tokens, wishes of `LENGTHS`."""
    random = np.random.default_rng(seed)
    times = islice(poisson_arrivals(rate, seed), count)
    return [
        Arrival(
            at_s,
            tuple(random.integers(2, vocabulary, int(random.integers(16, 49))).tolist()),
            int(random.choice(LENGTHS)),
        )
        for at_s in times
    ]


def play(
    requests: Sequence[Arrival],
    submit: Callable[[int, Arrival], None],
    done: threading.Event,
    ended: dict[int, float],
) -> dict[str, float]:
    """Sends each request at its time and waits for all."""
    started_s = time.perf_counter()
    for number, arrival in enumerate(requests):
        time.sleep(max(0.0, started_s + arrival.at_s - time.perf_counter()))
        submit(number, arrival)
    done.wait()
    latencies = [1000 * (ended[n] - started_s - a.at_s) for n, a in enumerate(requests)]
    seconds = max(ended.values()) - started_s
    return {
        "tokens_per_second": sum(a.new_tokens for a in requests) / seconds,
        "latency_ms_mean": float(np.mean(latencies)),
        "latency_ms_p50": float(np.percentile(latencies, 50)),
        "latency_ms_p95": float(np.percentile(latencies, 95)),
    }


class Tally:
    """Notes when each request was answered."""

    def __init__(self, count: int) -> None:
        self.ended: dict[int, float] = {}
        self.done = threading.Event()
        self._count = count

    def record(self, number: int) -> None:
        """A request has its answer."""
        self.ended[number] = time.perf_counter()
        if len(self.ended) == self._count:
            self.done.set()


def continuous(
    runner: OrtRunner, manifest: Manifest, rules: Any, requests: Sequence[Arrival]
) -> dict[str, float]:
    """Our engine as it serves."""
    capacity = Capacity(rows=MOST, waiting=len(requests), prefix_bytes=0, draft_tokens=0)
    engine = Engine(runner, RequestValidator(manifest), capacity)
    tally = Tally(len(requests))

    def submit(number: int, arrival: Arrival) -> None:
        def record(event: Any) -> None:
            if not isinstance(event, TokenChunk):
                tally.record(number)

        engine.submit(request(rules, arrival), record)

    try:
        return play(requests, submit, tally.done, tally.ended)
    finally:
        engine.close()


def static(
    requests: Sequence[Arrival], answer: Callable[[list[Arrival]], None]
) -> dict[str, float]:
    """All waiting requests form one batch; its answers are complete at its end."""
    inbox: SimpleQueue[tuple[int, Arrival] | None] = SimpleQueue()
    tally = Tally(len(requests))

    def work() -> None:
        while (first := inbox.get()) is not None:
            batch = [first]
            while len(batch) < MOST and not inbox.empty():
                following = inbox.get()
                assert following is not None
                batch.append(following)
            answer([arrival for _, arrival in batch])
            for number, _ in batch:
                tally.record(number)

    thread = threading.Thread(target=work)
    thread.start()
    measured = play(requests, lambda n, a: inbox.put((n, a)), tally.done, tally.ended)
    inbox.put(None)
    thread.join()
    return measured


def request(rules: Any, arrival: Arrival) -> EngineRequest:
    """An arrival as the engine takes it; nothing ends before it has its tokens."""
    update = {
        "max_new_tokens": arrival.new_tokens,
        "num_beams": 1,
        "num_return_sequences": 1,
        "eos_token_ids": (),
        "forced_eos_token_id": None,
    }
    return EngineRequest(
        rules.model_copy(update=update), source_ids=np.array(arrival.source, np.int64)
    )


def compare(model: str, precision: str, cache: Path, rate: float, count: int) -> dict[str, Any]:
    """All three at one rate of arrivals."""
    import ctranslate2

    found = bundle(model, precision, cache)
    rules = found.manifest.generation
    requests = arrivals(rate, count, found.manifest.vocabulary_size or 0)

    def ours(batch: list[Arrival]) -> None:
        decode(runner, [request(rules, one) for one in batch], Capacity(rows=MOST, waiting=MOST))

    kinds = {"fp32": "float32", "int8": "int8_float32"}
    folder = str(ctranslate2_folder(model, precision, cache))
    translators = [
        ctranslate2.Translator(folder, compute_type=kinds[precision], intra_threads=threads)
        for threads in (1, THREADS)
    ]

    def theirs(batch: list[Arrival], translator: Any = None) -> None:
        translator = translator or faster
        most = max(one.new_tokens for one in batch)
        translator.translate_batch(
            [words(one.source) for one in batch], beam_size=1, max_batch_size=0,
            max_decoding_length=most, min_decoding_length=most,
        )  # fmt: skip

    runner = OrtRunner(found, THREADS)
    took_s = []
    for translator in translators * 2:  # the second time counts
        started_s = time.perf_counter()
        theirs(requests[:8], translator)
        took_s.append(time.perf_counter() - started_s)
    faster = translators[int(np.argmin(took_s[len(translators) :]))]
    ours(requests[:4])
    rows = {
        "static ctranslate2": static(requests, theirs),
        "static triptych": static(requests, ours),
        "continuous triptych": continuous(
            runner, found.manifest, rules, requests
        ),  # closes the runner
    }
    return {"model": model, "precision": precision, "per_second": rate, "rows": rows}
