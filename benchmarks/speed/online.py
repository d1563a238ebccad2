"""`python -m benchmarks.speed.online`: the highest rate of arrivals that is answered in time.

Texts of 8 to 64 tokens arrive at random (exponential gaps), each for a translation of as many
tokens ± 25 %. In time is a 95th percentile of the latency below a second. `triptych serve`, with
Triton and the gateway, beside CTranslate2 behind FastAPI with a queue and batches of 32
(`Queue`), with one worker on all cores and with one for each; in turns, one after the other, on the
same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from benchmarks.harness import machine
from benchmarks.harness.closed_loop import open_loop, poisson_arrivals
from benchmarks.harness.system import THREADS
from benchmarks.speed.checkpoints import bundle, ctranslate2_folder
from benchmarks.speed.served import forced
from benchmarks.speed.systems import words
from benchmarks.speed.work import VARIED
from examples.demo.server import READY_TIMEOUT_S, free_port, serving
from examples.texts.grammar import sentences
from inference.bundle.manifest import Bundle
from inference.bundle.reader import open_bundle
from inference.processing.tokenizer_kinds import load_tokenizer

CACHE = Path(__file__).parents[1] / ".cache"
RESULTS = Path(__file__).parents[1] / "results"
IN_TIME_S = 1.0
TRIAL_S = 8.0
FEWEST = 64
"""Requests of a trial."""
GROWTH = 1.5
"""Of the rate from trial to trial, until a trial is not in time."""
HALVINGS = 3
"""Of the interval of rates, afterwards: the result is exact to 5 %."""
JSON = {"content-type": "application/json"}
SENTENCE_ENDS = ".?!¿¡"
"""Stripped from words, so that a text is one sentence."""
Body = bytes
console = Console(highlight=False, width=160)


@dataclass(frozen=True)
class Trial:
    """Latencies at one rate, in milliseconds; infinite where a request was refused."""

    rate: float
    p50_ms: float
    p95_ms: float

    @property
    def is_in_time(self) -> bool:
        """Whether users would call it fast enough."""
        return self.p95_ms < 1000 * IN_TIME_S


def main() -> int:
    """Measures, prints and writes `online.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="marian-74m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first", type=float, default=4.0, help="arrivals a second at first")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = bundle(options.model, "int8", CACHE)
    ours = forced(found, CACHE / "online", 2 * VARIED["sentences"].sources[1])
    bodies = list(islice(make_bodies(ours, seed=7), 2048))
    systems = {
        "triptych": lambda: triptych(CACHE / "online"),
        **{
            f"ctranslate2, workers: {count}": lambda count=count: queued(options.model, ours, count)
            for count in (1, THREADS)
        },
    }
    best: dict[str, list[Trial]] = {name: [] for name in systems}
    for number in range(options.rounds):
        for name, start in systems.items():
            with start() as address:
                check_lengths(*address, bodies[:8])
                trial = highest(partial(play, address, bodies, number), options.first)
            best[name].append(trial)
            console.print(f"round {number + 1}, {name}: {trial}")
    table = Table("arrivals/s in time", "median", "rounds", "p50 ms", "p95 ms")
    rows = {name: row(trials) for name, trials in best.items()}
    for name, values in rows.items():
        table.add_row(name, *map(str, values.values()))
    console.print(table)
    report = {"machine": machine.describe(), "model": options.model, "rows": rows}
    machine.write_json(report, options.output / "online.json")
    return 0


def row(trials: Sequence[Trial]) -> dict[str, object]:
    """Medians over rounds."""
    return {
        "median": round(median(trial.rate for trial in trials), 1),
        "rounds": [round(trial.rate, 1) for trial in trials],
        "p50_ms": round(median(trial.p50_ms for trial in trials)),
        "p95_ms": round(median(trial.p95_ms for trial in trials)),
    }


def make_bodies(found: Bundle, seed: int) -> Iterator[Body]:
    """Requests without end: words of held-out sentences, up to a drawn number of tokens.

    Each is one sentence: a text of several is translated sentence by sentence, each of which would
    have as many tokens as are asked for.
    """
    tokenizer = load_tokenizer(found)
    assert tokenizer is not None
    random, lengths = np.random.default_rng(seed), VARIED["sentences"]
    pairs = cycle(sentences("held_out", 4096, seed=seed))
    words = (word.strip(SENTENCE_ENDS) for pair in pairs for word in pair.spanish.split())
    while True:
        source, answer = lengths.draw(random)
        taken = [next(words)]
        while len(tokenizer.encode(" ".join(taken))) < source:
            taken.append(next(words))
        yield json.dumps({"texts": [" ".join(taken)], "max_new_tokens": answer}).encode()


def check_lengths(address: str, path: str, bodies: Sequence[Body]) -> None:
    """Makes sure that a server generates as many tokens as are asked for.

    Raises:
        ValueError: it generated more or fewer.
    """
    for body in bodies:
        response = httpx.post(
            f"http://{address}{path}", content=body, headers=JSON, trust_env=False
        )
        answer, asked = response.json(), json.loads(body)["max_new_tokens"]
        tokens = answer.get("usage", answer)["completion_tokens"]
        if tokens != asked:
            raise ValueError(f"{tokens} tokens in place of {asked} from {address}{path}")


def play(address: tuple[str, str], bodies: Sequence[Body], seed: int, rate: float) -> Trial:
    """One trial; what a server refuses at this rate is never in time."""
    count = max(FEWEST, round(TRIAL_S * rate))
    times = poisson_arrivals(rate, seed)
    try:
        latencies = open_loop(
            *address, list(zip(islice(times, count), cycle(bodies), strict=False))
        )
    except RuntimeError:
        return Trial(rate, math.inf, math.inf)
    p50, p95 = np.percentile(latencies, [50, 95])
    return Trial(rate, 1000 * float(p50), 1000 * float(p95))


def highest(trial: Callable[[float], Trial], first: float) -> Trial:
    """The trial of the highest rate that is in time, after one that is not counted.

    Raises:
        ValueError: the first rate is not in time.
    """
    trial(first)
    best = trial(first)
    if not best.is_in_time:
        raise ValueError(f"{first} arrivals a second are too many to begin with: {best}")
    while (found := trial(best.rate * GROWTH)).is_in_time:
        best = found
    above = found.rate
    for _ in range(HALVINGS):
        found = trial(math.sqrt(best.rate * above))
        if found.is_in_time:
            best = found
        else:
            above = found.rate
    return best


@contextmanager
def triptych(repository: Path) -> Iterator[tuple[str, str]]:
    """Address and path of our server."""
    with serving(repository) as url:
        yield urlsplit(url).netloc, "/v1/translate"


@contextmanager
def queued(model: str, found: Bundle, workers: int) -> Iterator[tuple[str, str]]:
    """Address and path of the other one, whose workers share the cores.

    Raises:
        RuntimeError: it ended, or was not ready in time.
    """
    folder, port = ctranslate2_folder(model, "int8", CACHE), free_port()
    arguments = [str(folder), str(found.folder), str(port), str(workers)]
    command = [sys.executable, "-m", "benchmarks.speed.online", "serve", *arguments]
    server = subprocess.Popen(command)
    try:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while server.poll() is None and time.monotonic() < deadline_s:
            try:
                httpx.get(f"http://127.0.0.1:{port}/docs", trust_env=False)
            except httpx.TransportError:
                time.sleep(0.2)
                continue
            yield f"127.0.0.1:{port}", "/translate"
            return
        raise RuntimeError("the server of CTranslate2 did not start")
    finally:
        server.terminate()
        server.wait()


MOST = 32
"""Texts of a batch."""


class Question(BaseModel):
    """A text, and the tokens after which its translation ends, as a model's own end would."""

    texts: list[str]
    max_new_tokens: int


class Queue:
    """Decodes what waits, at most `MOST` texts a worker, each of which is a thread."""

    def __init__(self, translator: Any, workers: int) -> None:
        self._translator = translator
        self._inbox: SimpleQueue[tuple[list[str], int, asyncio.Future[int]]] = SimpleQueue()
        for _ in range(workers):
            threading.Thread(target=self._work, daemon=True).start()

    def put(self, source: list[str], new_tokens: int) -> asyncio.Future[int]:
        """Queues a text; its number of tokens, once they are decoded."""
        future = asyncio.get_running_loop().create_future()
        self._inbox.put((source, new_tokens, future))
        return future

    def _work(self) -> None:
        while True:
            batch = [self._inbox.get()]
            with suppress(Empty):
                while len(batch) < MOST:
                    batch.append(self._inbox.get_nowait())
            sources, lengths, futures = zip(*batch, strict=True)
            for count, future in zip(self._decode(sources, lengths), futures, strict=True):
                future.get_loop().call_soon_threadsafe(future.set_result, count)

    def _decode(self, sources: Sequence[list[str]], lengths: Sequence[int]) -> list[int]:
        """Tokens of each text's translation, which ends at its own length."""
        seen = [0] * len(lengths)

        def is_over(step: Any) -> bool:
            seen[step.batch_id] += 1
            return seen[step.batch_id] >= lengths[step.batch_id]

        results = self._translator.translate_batch(
            list(sources), beam_size=1, max_batch_size=0, callback=is_over,
            max_decoding_length=max(lengths), min_decoding_length=max(lengths),
        )  # fmt: skip
        return [len(result.hypotheses[0]) for result in results]


def make_app(folder: str, exported: Path, workers: int) -> FastAPI:
    """The server: `POST /translate`."""
    import ctranslate2  # no dependency of ours

    tokenizer = load_tokenizer(open_bundle(exported))
    assert tokenizer is not None
    translator = ctranslate2.Translator(
        folder, compute_type="int8_float32", inter_threads=workers, intra_threads=THREADS // workers
    )
    queue = Queue(translator, workers)
    app = FastAPI()

    @app.post("/translate")
    async def translate(question: Question) -> dict[str, Any]:
        [text] = question.texts
        source = words(tuple(tokenizer.encode(text)))
        return {"completion_tokens": await queue.put(source, question.max_new_tokens)}

    return app


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _, _, converted, exported, port, workers = sys.argv
        app = make_app(converted, Path(exported), int(workers))
        uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
    else:
        sys.exit(main())
