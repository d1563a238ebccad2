"""`make soak`: translations, captions, streams, searches and encoders at once, for an hour.

Clients disconnect, and in the first half a model's process is killed four times. It fails on a
wrong answer, an error that no kill explains, or memory, handles, threads, shared memory or latency
that grow in the second half.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

import httpx

from tests.e2e.conftest import Stack, start_stack, stop_stack
from tests.soak.samples import Sample, Trend, model_processes, take, trends
from triptych import Client
from triptych.errors import TriptychError

PICTURE = Path(__file__).parents[2] / "examples/demo/pictures/scene-4.png"
KILLED = "example-gpt"
"""The model whose process is killed; the others must not notice."""
KILLS = 4
FULL_PREFIXES = ("TRIPTYCH_PREFIX_MEMORY", "16MB")
"""With this the cache of prefixes is full in two minutes, and grows no more."""
_SAMPLE_S = 5.0
_RECOVERY_S = 20.0
"""After a kill, requests of the killed model may fail for so long."""
_SHOWN = 20


class Load:
    """The clients of one run, from several threads.

    Args:
        stack: What they call.
        seconds: How long.
    """

    def __init__(self, stack: Stack, seconds: float) -> None:
        self._stack = stack
        self._seconds = seconds
        self._end_s = time.monotonic() + seconds
        self._started_s = time.monotonic()
        self._killed_s = -_RECOVERY_S
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.latencies: list[tuple[float, float]] = []
        self.kills = 0

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end_s

    def work(self, seed: int) -> None:
        """Send requests of all kinds until the time is up."""
        rng = random.Random(seed)
        jobs = (self._translate, self._beams, self._caption, self._encode, self._generate)
        with Client(self._stack.url, timeout=60) as client:
            while not self.is_over:
                if rng.random() < 0.1:
                    self._disconnect(rng)
                else:
                    self._timed(rng.choice(jobs), client)

    def kill(self) -> None:
        """Kill the process of one model, in the first half of the time.

        Triton keeps threads of each until `triptych triton` restarts it, and their shared memory
        for a while, so kills in the second half would look like a leak.
        """
        for _ in range(KILLS):
            time.sleep(self._seconds / 2 / (KILLS + 1))
            self._killed_s = time.monotonic()
            self.kills += 1
            for process in model_processes(self._stack.process.pid, KILLED):
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)

    def _timed(self, job: Callable[[Client], bool], client: Client) -> None:
        began_s = time.monotonic()
        name = job.__name__.removeprefix("_")
        try:
            is_right = job(client)
        except TriptychError as error:
            is_explained = name == "generate" and began_s < self._killed_s + _RECOVERY_S
            self._count(f"{name} failed")
            if not is_explained:
                self._fail(f"{name}: {type(error).__name__}: {error}")
            return
        if not is_right:
            self._fail(f"{name}: a wrong answer")
        now_s = time.monotonic()
        with self._lock:
            self.counts[name] += 1
            if name == "translate" and not self.is_over:  # the last ones are no whole minute
                self.latencies.append((now_s - self._started_s, now_s - began_s))

    def _translate(self, client: Client) -> bool:
        answer = client.translate("El mundo no es suficiente.", model="example-es-en")
        return answer.data[0].text == "The world is not enough."

    def _beams(self, client: Client) -> bool:
        answer = client.translate("El mundo no es suficiente.", model="example-es-en", num_beams=4)
        return answer.data[0].text == "The world is not enough."

    def _caption(self, client: Client) -> bool:
        answer = client.caption(str(PICTURE), model="example-captioner")
        return "red heart" in answer.data[0].text

    def _encode(self, client: Client) -> bool:
        labels = client.classify("The food was not bad at all.", model="example-bert-sentiment")
        return labels.data[0].labels[0].label == "positive"

    def _generate(self, client: Client) -> bool:
        text = "".join(piece.text for piece in client.generate_stream("a small red", seed=1))
        return bool(text)

    def _disconnect(self, rng: random.Random) -> None:
        body = {"prompts": ["a small"] * 3, "max_new_tokens": 60, "stream": True}
        body |= {"temperature": 1.0}
        with contextlib.suppress(httpx.HTTPError):
            url = f"{self._stack.url}/v1/generate"
            with httpx.stream("POST", url, json=body, timeout=10) as answer:
                for number, _ in enumerate(answer.iter_lines()):
                    if number >= rng.randrange(6):
                        break
        self._count("disconnected")

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def _fail(self, what: str) -> None:
        with self._lock:
            self.failures.append(f"after {time.monotonic() - self._started_s:.0f} s: {what}")


def soak(stack: Stack, seconds: float, workers: int) -> tuple[Load, list[Sample]]:
    """Load a stack for so long; what its clients saw, and samples of what it holds."""
    load, samples = Load(stack, seconds), []
    threads = [threading.Thread(target=load.work, args=(n,)) for n in range(workers)]
    threads.append(threading.Thread(target=load.kill))
    for thread in threads:
        thread.start()
    started_s = time.monotonic()
    while not load.is_over:
        time.sleep(_SAMPLE_S)
        at_s = time.monotonic() - started_s
        samples.append(take(stack.process.pid, at_s))
        memory = sum(v for name, v in samples[-1].values.items() if name.endswith("memory"))
        print(
            f"\r{at_s:.0f} of {seconds:.0f} s, {sum(load.counts.values())} requests, "
            f"{load.kills} kills, {memory / 2**20:.0f} MiB, {len(load.failures)} failures ",
            end="",
            flush=True,
        )
    for thread in threads:
        thread.join()
    print()
    return load, samples


def medians(latencies: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The median latency of each minute."""
    minutes: dict[int, list[float]] = {}
    for at_s, seconds in latencies:
        minutes.setdefault(int(at_s // 60), []).append(seconds)
    return [(60.0 * minute + 30, median(each)) for minute, each in sorted(minutes.items())]


def report(load: Load, found: list[Trend]) -> int:
    """Print the table; 1 if anything is wrong."""
    print(json.dumps(dict(load.counts)))
    print(f"{'':26} {'first':>12} {'last':>12} {'growth':>12} {'limit':>12}")
    for trend in found:
        figures = (trend.first, trend.last, trend.growth, trend.limit)
        row = " ".join(f"{_shown(trend.name, figure):>12}" for figure in figures)
        print(f"{trend.name:26} {row}{'  GROWS' if trend.is_growing else ''}")
    failures = load.failures + [f"{each.name} grows" for each in found if each.is_growing]
    for failure in failures[:_SHOWN]:
        print(failure)
    print(f"{sum(load.counts.values())} requests, {load.kills} kills, {len(failures)} failures")
    return 1 if failures else 0


def _shown(name: str, value: float) -> str:
    if name.endswith("memory"):
        return f"{value / 1e6:.1f} MB"
    return f"{1000 * value:.1f} ms" if name == "latency" else f"{value:.1f}"


def main() -> int:
    """Run; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=4, help="Requests in flight.")
    given = parser.parse_args()
    os.environ.setdefault(*FULL_PREFIXES)
    with tempfile.TemporaryDirectory() as folder:
        stack = start_stack(given.repository, Path(folder) / "serve.log")
        try:
            load, samples = soak(stack, 60 * given.minutes, given.workers)
        finally:
            stop_stack(stack)
    return report(load, trends(samples, medians(load.latencies)))


if __name__ == "__main__":
    sys.exit(main())
