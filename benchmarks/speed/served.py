"""Through the gateway: the same sentences by the engine in process and over HTTP.

Sources and answers have lengths of their own (`work.VARIED`): of equal lengths all would end, and
begin, at once. Both run in a closed loop and take turns, round by round. Only the work counts that
they did while so many sentences were in flight, not how a loop fills and empties: what a request
generated is spread evenly over its time. The client shares the machine's cores with the server, so
it is lean (`harness.http_loop`), and the CPU share of every process is reported.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import numpy as np

from benchmarks.harness.closed_loop import Loop, closed_loop, http_loop
from benchmarks.harness.machine import CLIENT
from benchmarks.harness.system import THREADS
from benchmarks.speed.checkpoints import bundle
from benchmarks.speed.work import VARIED
from examples.demo.server import serving
from examples.texts.grammar import sentences
from export.pipeline.publish import publish, staging
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle
from inference.engine.engine import Engine
from inference.engine.request import EngineRequest, RequestValidator
from inference.engine.runners.ort.runner import OrtRunner
from inference.generation import Generation
from inference.process_limits import usable_cores
from inference.processing.tokenizer_kinds import load_tokenizer

MOST_TOKENS = 2 * VARIED["sentences"].sources[1]
SENTENCE_ENDS = ".?!¿¡"
"""Stripped from words, so that a text is one sentence."""

Request = tuple[bytes, int]
"""A body, and the tokens that it asks for."""
Play = Callable[[int], Loop]
"""Number of sentences in flight → a closed loop."""
_TOKENS = re.compile(rb'"completion_tokens":(\d+)')


class InProcess:
    """The engine alone, in this process."""

    def __init__(self, found: Bundle) -> None:
        manifest = found.manifest
        assert manifest.generation is not None
        self._rules: Generation = manifest.generation
        tokenizer = load_tokenizer(found)
        assert tokenizer is not None
        self._tokenizer = tokenizer
        self._engine = Engine(OrtRunner(found, THREADS), RequestValidator(manifest))

    def send(self, body: bytes) -> int:
        """What a request says → generated tokens; called from several threads."""
        request = json.loads(body)
        ids = np.array(self._tokenizer.encode(request["texts"][0]), np.int64)
        rules = self._rules.model_copy(update={"max_new_tokens": request["max_new_tokens"]})
        return self._engine.generate(EngineRequest(rules, source_ids=ids)).generated_tokens

    def close(self) -> None:
        """Frees the model."""
        self._engine.close()


def make_texts(found: Bundle, seed: int) -> Iterator[Request]:
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
        body = {"texts": [" ".join(taken)], "max_new_tokens": answer}
        yield json.dumps(body).encode(), answer


def forced(original: Bundle, repository: Path, new_tokens: int) -> Bundle:
    """A copy of a bundle that generates so many tokens, unless asked for less, and not one less."""
    shutil.rmtree(repository, ignore_errors=True)
    manifest = original.manifest
    update = {"max_new_tokens": new_tokens, "eos_token_ids": (), "forced_eos_token_id": None}
    rules = manifest.generation.model_copy(update=update)
    manifest = manifest.model_copy(update={"generation": rules})
    with staging(repository) as stage:
        folder = stage.part(manifest.name)
        shutil.copytree(original.folder, folder, dirs_exist_ok=True, copy_function=os.link)
        (folder / "bundle.json").unlink()  # a link: must not be written through
        publish(stage, repository, manifest)
    return newest_bundle(repository, manifest.name)


def compare(
    model: str, precision: str, cache: Path, batches: Sequence[int], rounds: int
) -> list[dict[str, object]]:
    """Rows of both ways, for each number of sentences in flight."""
    repository = cache / "served"
    found = forced(bundle(model, precision, cache), repository, MOST_TOKENS)
    bodies = cycle([body for body, _ in islice(make_texts(found, seed=3), 2048)])
    with closing(InProcess(found)) as engine, serving(repository) as url:

        def alone(in_flight: int) -> Loop:
            return closed_loop(engine.send, bodies, in_flight)

        def served(in_flight: int) -> Loop:
            return http_loop(urlsplit(url).netloc, "/v1/translate", bodies, generated, in_flight)

        return [
            {"model": model, "precision": precision}
            | row(batch, *_rounds(alone, served, batch, rounds))
            for batch in batches
        ]


def generated(body: bytes) -> int:
    """Generated tokens of a response."""
    found = _TOKENS.search(body)
    assert found is not None, body
    return int(found[1])


def _rounds(
    alone: Play, served: Play, in_flight: int, rounds: int
) -> tuple[list[Loop], list[Loop]]:
    """Both ways in turn, each round the other one first."""
    loops: dict[Play, list[Loop]] = {alone: [], served: []}
    for number in range(rounds):
        for play in (alone, served) if number % 2 == 0 else (served, alone):
            loops[play].append(play(in_flight))
    return loops[alone], loops[served]


def row(in_flight: int, alone: Sequence[Loop], served: Sequence[Loop]) -> dict[str, object]:
    """Medians over rounds; what is kept is compared within each round."""
    kept = [
        http.tokens_per_second / engine.tokens_per_second
        for http, engine in zip(served, alone, strict=True)
    ]
    cores = median(loop.cpu_ms[CLIENT] * loop.requests_per_second / 1000 for loop in served)
    return {
        "in_flight": in_flight,
        "in_process": _medians(alone),
        "over_http": _medians(served),
        "kept": median(kept),
        "rounds_kept": [round(each, 3) for each in kept],
        "client_cpu_share": cores / usable_cores(),
    }


def _medians(loops: Sequence[Loop]) -> dict[str, object]:
    latencies = [value for loop in loops for value in loop.latencies_ms]
    p50, p99 = np.percentile(latencies, [50, 99])
    parts = dict.fromkeys(part for loop in loops for part in loop.cpu_ms)
    cpu_ms = {part: median(loop.cpu_ms.get(part, 0.0) for loop in loops) for part in parts}
    return {
        "tokens_per_second": median(loop.tokens_per_second for loop in loops),
        "latency_ms_p50": float(p50),
        "latency_ms_p99": float(p99),
        "cpu_ms_per_request": {part: round(ms, 2) for part, ms in cpu_ms.items()},
    }
