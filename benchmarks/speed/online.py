"""`python -m benchmarks.speed.online`: the highest rate of arrivals that is answered in time.

Requests arrive at random (exponential gaps). In time is a 95th percentile below a second to the
first text, and below `WHOLE_S` to the whole. Servers take turns, on the same cores.

Translations of texts of 8 to 64 tokens, as many ± 25 % long, are answered whole: `triptych serve`,
with Triton and the gateway, beside CTranslate2 behind FastAPI with a queue and batches of 32
(`Queue`), with one worker on all cores and with one for each.

Chats have prompts of 32 to 256 tokens and answers of a quarter ± 40 %, which are streamed by
OpenAI's API: `triptych serve` beside `transformers serve`, which also needs `accelerate`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
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

from benchmarks.harness import machine
from benchmarks.harness.closed_loop import Reply, open_loop, poisson_arrivals
from benchmarks.harness.system import THREADS
from benchmarks.speed.checkpoints import bundle, checkpoint, ctranslate2_folder
from benchmarks.speed.served import MOST_TOKENS, Request, forced, generated, make_texts
from benchmarks.speed.systems import words
from benchmarks.speed.work import SMALLEST_VOCABULARY, VARIED
from examples.demo.server import READY_TIMEOUT_S, free_port, serving
from export.precision import Runtime
from inference.bundle.manifest import Bundle
from inference.bundle.reader import open_bundle
from inference.processing.tokenizer_kinds import load_tokenizer

CACHE = Path(__file__).parents[1] / ".cache"
RESULTS = Path(__file__).parents[1] / "results"
IN_TIME_S = 1.0
WHOLE_S = 10.0
TRIAL_S = 8.0
WARM = 8
"""Requests that are not counted, at least, before the first trial."""
GROWTH = 1.5
"""Of the rate from trial to trial, until one is in time and another is not."""
console = Console(highlight=False, width=160)


@dataclass(frozen=True)
class Trial:
    """Latencies at one rate, in milliseconds; infinite where a request was refused."""

    rate: float
    first_p50_ms: float = math.inf
    first_p95_ms: float = math.inf
    p50_ms: float = math.inf
    p95_ms: float = math.inf
    tokens_per_second: float = 0.0

    @property
    def is_in_time(self) -> bool:
        """Whether users would call it fast enough."""
        return self.first_p95_ms < 1000 * IN_TIME_S and self.p95_ms < 1000 * WHOLE_S


@dataclass(frozen=True)
class Server:
    """One that takes requests.

    Attributes:
        start: Makes it ready for a block; yields its address and path.
        requests: Makes what is sent to it, without end.
        first: Arrivals a second of the first trial.
    """

    start: Callable[[], AbstractContextManager[tuple[str, str]]]
    requests: Callable[[], Iterator[Request]]
    first: float


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        fewest: Requests of a trial.
        halvings: Of the interval between a rate in time and one that is not.
    """

    model: str
    servers: Callable[[str], Mapping[str, Server]]
    fewest: int
    halvings: int


def translators(model: str) -> dict[str, Server]:
    """Ours and CTranslate2's; all get the same texts."""
    found = bundle(model, "int8", CACHE)
    ours = forced(found, CACHE / "online", MOST_TOKENS)
    texts = list(islice(make_texts(ours, seed=7), 2048))
    requests = partial(cycle, texts)
    return {
        "triptych int8": Server(partial(triptych, CACHE / "online"), requests, first=20),
        "ctranslate2 int8, workers: 1": Server(partial(queued, model, ours, 1), requests, first=4),
        f"ctranslate2 int8, workers: {THREADS}": Server(
            partial(queued, model, ours, THREADS), requests, first=20
        ),
    }


def chats(model: str) -> dict[str, Server]:
    """Ours and that of `transformers`; no prompt is sent twice to a server."""
    folder = checkpoint(model, CACHE)
    servers = {}
    for precision in ("int8", "fp32"):
        repository = CACHE / f"online-chat-{precision}"
        found = bundle(model, precision, CACHE, Runtime.OPENVINO)
        forced(found, repository, VARIED["chat"].sources[1])
        start = partial(triptych, repository, "/v1/chat/completions")
        servers[f"triptych {precision}"] = Server(start, partial(make_chats, model, seed=7), 4)
    theirs = partial(make_chats, str(folder), seed=7)
    batching = "--continuous-batching"
    for name, first, options in (
        ("bf16", 2, [batching]),
        ("fp32", 2, [batching, "--dtype", "float32"]),
        ("one by one, bf16", 0.5, []),
    ):
        start = partial(transformers_serve, folder, options)
        servers[f"transformers serve {name}"] = Server(start, theirs, first)
    return servers


SUBJECTS = {
    "translate": Subject("marian-74m", translators, fewest=64, halvings=3),
    "chat": Subject("smollm2-135m", chats, fewest=32, halvings=2),
}


def main() -> int:
    """Measures, prints, and writes what is measured so far."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subject", choices=SUBJECTS, default="translate")
    parser.add_argument("--model", help="a default for each subject")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[""], help="servers with this in their names")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    subject = SUBJECTS[options.subject]
    model = options.model or subject.model
    servers = {
        name: server
        for name, server in subject.servers(model).items()
        if any(part in name for part in options.only)
    }
    if not servers:
        parser.error(f"--only {' '.join(options.only)}: no server has this in its name")
    rounds: dict[str, list[list[Trial]]] = {name: [] for name in servers}
    for number in range(options.rounds):
        for name, server in servers.items():
            with server.start() as address:
                requests = server.requests()
                play(address, requests, WARM, number, server.first)
                trial = partial(play, address, requests, subject.fewest, number)
                rounds[name].append(find_highest(trial, server.first, subject.halvings))
            console.print(f"round {number + 1}, {name}: {best(rounds[name][-1])}")
            rows = {each: row(trials) for each, trials in rounds.items() if trials}
            write(options.subject, model, rows, options.output)
    return 0


def write(subject: str, model: str, rows: Mapping[str, Any], folder: Path) -> None:
    """`online.json` and its picture, beside what they have of other subjects and servers."""
    file = folder / "online.json"
    report = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    rows = report.get(subject, {}).get("rows", {}) | rows
    report[subject] = {"machine": machine.describe(), "model": model, "rows": rows}
    machine.write_json(report, file)
    plot(report, file.with_suffix(".png"))


def best(trials: Sequence[Trial]) -> Trial:
    """Of the highest rate that is in time; of none, a rate of 0."""
    found = (trial for trial in trials if trial.is_in_time)
    return max(found, key=lambda trial: trial.rate, default=Trial(0.0))


def row(rounds: Sequence[Sequence[Trial]]) -> dict[str, Any]:
    """Medians over rounds, and all trials."""
    highest = [best(trials) for trials in rounds]
    times = ("first_p50_ms", "first_p95_ms", "p50_ms", "p95_ms", "tokens_per_second")
    return {
        "median": round(median(trial.rate for trial in highest), 2),
        "rounds": [round(trial.rate, 2) for trial in highest],
        **{name: finite(median(getattr(trial, name) for trial in highest)) for name in times},
        "trials": [
            {name: finite(value) for name, value in asdict(trial).items()}
            for trials in rounds
            for trial in trials
        ],
    }


def finite(value: float) -> float | None:
    """As JSON has it."""
    return round(value, 2) if math.isfinite(value) else None


def plot(report: Mapping[str, Any], path: Path) -> None:
    """The 95th percentile over the rate of arrivals: a panel a subject, a line a server."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    figure, axes = pyplot.subplots(
        1, len(report), figsize=(5.5 * len(report), 4), squeeze=False, sharey=True,
        layout="constrained",
    )  # fmt: skip
    for axis, (name, subject) in zip(axes[0], report.items(), strict=True):
        for server, values in subject["rows"].items():
            found = [trial for trial in values["trials"] if trial["first_p95_ms"]]
            rates = sorted({trial["rate"] for trial in found})
            heights = [
                median(trial["first_p95_ms"] for trial in found if trial["rate"] == rate)
                for rate in rates
            ]
            axis.plot(rates, heights, "o-", markersize=3, linewidth=1, label=server)
        axis.axhline(1000 * IN_TIME_S, color="grey", linestyle="--", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="arrivals per second")
        for line, base, ticks in ((axis.xaxis, 2, (1, 1.5)), (axis.yaxis, 10, (1, 2, 5))):
            line.set_major_locator(LogLocator(base, ticks))
            line.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.set_ylabel("ms to the first text, 95th percentile")
        axis.set_title(f"{name}, {subject['model']}", fontsize=9)
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def make_chats(model: str, seed: int) -> Iterator[Request]:
    """Requests without end: one message of random words, each of which is a token."""
    random, lengths = np.random.default_rng(seed), VARIED["chat"]
    while True:
        prompt, answer = lengths.draw(random)
        ids = random.integers(4, SMALLEST_VOCABULARY, prompt)
        body = {
            "model": model,
            "messages": [{"role": "user", "content": " ".join(words(tuple(ids.tolist())))}],
            "max_tokens": answer,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        yield json.dumps(body).encode(), answer


def play(
    address: tuple[str, str], requests: Iterator[Request], fewest: int, seed: int, rate: float
) -> Trial:
    """One trial; what a server refuses at this rate is never in time.

    Raises:
        ValueError: the server generated more or fewer tokens than were asked for.
    """
    count = max(fewest, round(TRIAL_S * rate))
    bodies, lengths = zip(*islice(requests, count), strict=True)
    arrivals = list(zip(islice(poisson_arrivals(rate, seed), count), bodies, strict=True))
    started_s = time.perf_counter()
    try:
        replies = open_loop(*address, arrivals)
    except RuntimeError:
        return Trial(rate)
    trial = measure(rate, replies, sum(lengths), time.perf_counter() - started_s)
    console.print(trial)
    return trial


def measure(rate: float, replies: Sequence[Reply], asked: int, seconds: float) -> Trial:
    """A trial of its replies.

    Raises:
        ValueError: they do not have as many tokens as were asked for.
    """
    tokens = sum(generated(reply.body) for reply in replies)
    if tokens != asked:
        raise ValueError(f"{tokens} tokens in place of {asked}")
    percentiles = np.percentile([(r.first_s, r.whole_s) for r in replies], [50, 95], axis=0)
    (first_p50, p50), (first_p95, p95) = 1000 * percentiles
    times = map(float, (first_p50, first_p95, p50, p95))
    return Trial(rate, *times, tokens_per_second=tokens / seconds)


def find_highest(trial: Callable[[float], Trial], first: float, halvings: int) -> list[Trial]:
    """Trials around the highest rate that is in time.

    The last rate in time and the first that is not differ by a factor of GROWTH ** 0.5 ** halvings.
    None is in time where a server that is sent an eighth of the first rate is still late.
    """
    trials = [trial(first)]
    while not trials[-1].is_in_time and trials[-1].rate > first / 8:
        trials.append(trial(trials[-1].rate / GROWTH))
    below = best(trials).rate
    if not below:
        return trials
    above = min((t.rate for t in trials if not t.is_in_time), default=math.inf)
    while math.isinf(above):
        trials.append(trial(below * GROWTH))
        if trials[-1].is_in_time:
            below = trials[-1].rate
        else:
            above = trials[-1].rate
    for _ in range(halvings):
        trials.append(trial(math.sqrt(below * above)))
        if trials[-1].is_in_time:
            below = trials[-1].rate
        else:
            above = trials[-1].rate
    return trials


@contextmanager
def triptych(repository: Path, path: str = "/v1/translate") -> Iterator[tuple[str, str]]:
    """Address and path of our server.

    Without drafts: models of random weights repeat themselves, which may not count as speed.
    """
    with serving(repository, "--draft-tokens", "0") as url:
        yield urlsplit(url).netloc, path


@contextmanager
def queued(model: str, found: Bundle, workers: int) -> Iterator[tuple[str, str]]:
    """Address and path of CTranslate2's, whose workers share the cores."""
    folder = ctranslate2_folder(model, "int8", CACHE)
    arguments = [str(folder), str(found.folder), str(workers), "--port"]
    with started(["benchmarks.speed.online", "serve", *arguments]) as address:
        yield address, "/translate"


@contextmanager
def transformers_serve(folder: Path, options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Address and path of `transformers serve`."""
    arguments = ["serve", str(folder), *options, "--log-level", "error", "--port"]
    with started(["transformers.cli.transformers", *arguments]) as address:
        yield address, "/v1/chat/completions"


@contextmanager
def started(command: Sequence[str]) -> Iterator[str]:
    """Address of another server that FastAPI answers for: a module, its arguments, and a port.

    Raises:
        RuntimeError: it ended, or was not ready in time.
    """
    port, log = free_port(), CACHE / "online.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", *command, str(port)], stdout=output, stderr=output,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
    try:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while server.poll() is None and time.monotonic() < deadline_s:
            try:
                httpx.get(f"http://127.0.0.1:{port}/docs", trust_env=False)
            except httpx.TransportError:
                time.sleep(0.2)
                continue
            yield f"127.0.0.1:{port}"
            return
        raise RuntimeError(f"{command[0]} did not start; its output is in {log}")
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
        _, _, converted, exported, workers, _, port = sys.argv
        app = make_app(converted, Path(exported), int(workers))
        uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
    else:
        sys.exit(main())
