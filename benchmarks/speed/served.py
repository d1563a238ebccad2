"""Through the gateway: the same sentences by the engine in process and over HTTP.

Both are asked in a closed loop: so many sentences are in flight at any time. The client shares the
machine's cores with the server, and its share is told.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from benchmarks.speed.checkpoints import bundle
from benchmarks.speed.engines import THREADS
from export.examples.demo import serving
from export.examples.grammar import sentences
from export.publish import publish, staging
from serving.bundle import Bundle, newest_bundle
from serving.engine.engine import Engine
from serving.engine.intake import Intake
from serving.engine.ort_runner import OrtRunner
from serving.engine.request import Request
from serving.generation import Generation
from serving.processing.text import load_tokenizer
from triptych import Client

NEW_TOKENS = 32


@dataclass(frozen=True)
class Loop:
    """What a closed loop saw.

    Attributes:
        cores: Processors that this process used meanwhile, on average.
    """

    tokens_per_second: float
    latency_ms_p50: float
    latency_ms_p99: float
    cores: float


def closed_loop(ask: Callable[[str], int], texts: Sequence[str], in_flight: int) -> Loop:
    """Asks for every text, so many at a time.

    Args:
        ask: Text → generated tokens; called from several threads.
    """
    waiting: SimpleQueue[str] = SimpleQueue()
    for text in texts:
        waiting.put(text)
    tokens: list[int] = []
    latencies: list[float] = []

    def work() -> None:
        while True:
            try:
                text = waiting.get_nowait()
            except Empty:
                return
            asked_s = time.perf_counter()
            tokens.append(ask(text))
            latencies.append(1000 * (time.perf_counter() - asked_s))

    threads = [threading.Thread(target=work) for _ in range(in_flight)]
    cpu_s, started_s = time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    p50, p99 = np.percentile(latencies, [50, 99])
    return Loop(sum(tokens) / seconds, float(p50), float(p99), cpu_s / seconds)


def in_process(found: Bundle, loops: Sequence[tuple[list[str], int]]) -> list[Loop]:
    """The engine alone, given ids."""
    manifest = found.manifest
    assert manifest.generation is not None
    rules: Generation = manifest.generation
    tokenizer = load_tokenizer(found)
    assert tokenizer is not None
    engine = Engine(OrtRunner(found, THREADS), Intake(manifest))

    def ask(text: str) -> int:
        ids = np.array(tokenizer.encode(text), np.int64)
        return engine.generate(Request(rules, source_ids=ids)).generated_tokens

    closed_loop(ask, loops[0][0][:8], 4)
    measured = [closed_loop(ask, *loop) for loop in loops]
    engine.close()
    return measured


def over_http(repository: Path, loops: Sequence[tuple[list[str], int]]) -> list[Loop]:
    """`triptych serve` in processes of its own."""
    with serving(repository) as url, Client(url, timeout=300) as client:

        def ask(text: str) -> int:
            return int(client.translate([text]).usage.completion_tokens)

        closed_loop(ask, loops[0][0][:8], 4)
        return [closed_loop(ask, *loop) for loop in loops]


def forced(original: Bundle, repository: Path) -> Bundle:
    """A copy of a bundle that generates `NEW_TOKENS` and not one less."""
    shutil.rmtree(repository, ignore_errors=True)
    manifest = original.manifest
    assert manifest.generation is not None
    update = {"max_new_tokens": NEW_TOKENS, "eos_token_ids": (), "forced_eos_token_id": None}
    rules = manifest.generation.model_copy(update=update)
    manifest = manifest.model_copy(update={"generation": rules})
    with staging(repository) as stage:
        folder = stage.part(manifest.name)
        shutil.copytree(original.folder, folder, dirs_exist_ok=True, copy_function=os.link)
        (folder / "bundle.json").unlink()  # a link: must not be written through
        publish(stage, repository, manifest)
    return newest_bundle(repository, manifest.name)


def compare(
    model: str, precision: str, cache: Path, batches: Sequence[int]
) -> list[dict[str, object]]:
    """Rows of both ways, for each number of sentences in flight."""
    repository = cache / "served"
    found = forced(bundle(model, precision, cache), repository)
    spoken = [pair.spanish for pair in sentences("held_out", 6 * sum(batches) + 64, seed=3)]
    loops, start = [], 0
    for batch in batches:
        count = 6 * batch
        loops.append((spoken[start : start + count], batch))
        start += count
    rows: list[dict[str, object]] = []
    served, alone = over_http(repository, loops), in_process(found, loops)
    for batch, http, engine in zip(batches, served, alone, strict=True):
        rows.append(
            {
                "model": model,
                "precision": precision,
                "in_flight": batch,
                "in_process": vars(engine),
                "over_http": vars(http),
                "kept": http.tokens_per_second / engine.tokens_per_second,
                "client_cpu_share": http.cores / (os.cpu_count() or 1),
            }
        )
    return rows
