"""Long beside short sequences, and conversations, in our engine over OpenVINO.

`python -m benchmarks.speed.mixed`: GPT-2's shape, int8. First the throughput of 32 sequences of 64
tokens and 64 new ones, and of 31 beside one on its way to 1,023 tokens. Then a conversation of ten
turns: the time to the first token of each turn, beside that of as many new tokens without a past.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.machine import load
from benchmarks.harness.report import markdown
from benchmarks.harness.system import THREADS
from benchmarks.speed.checkpoints import bundle
from export.precision import Runtime
from inference.engine.engine_core import EngineCore
from inference.engine.runner_factory import make_runner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.engine.sequence import SequenceState
from inference.sequences import TokenChunk

CACHE = Path(__file__).parents[1] / ".cache"
MODEL = "gpt2-124m"
SEQUENCES, NEW_TOKENS, LONGEST = 32, 64, 1023
TURNS, TURN_TOKENS, ANSWER_TOKENS = 10, 32, 32


Wait = tuple[float, float]
"""Seconds, and seconds of CPU time."""


@dataclass
class Answer:
    """What one request was answered, and when."""

    times_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    is_over: bool = False

    def hear(self, event: Any) -> None:
        """Notes an event of the engine."""
        if isinstance(event, TokenChunk):
            self.times_s += [time.perf_counter()] * len(event.token_ids)
            self.token_ids += event.token_ids
        else:
            self.is_over = True


@dataclass(frozen=True)
class Rate:
    """How fast sequences are decoded; CPU time depends less on other work of the machine."""

    tokens_per_s: float
    cpu_ms_per_token: float


class Measured:
    """The engine with one model; prompts are random and distinct."""

    def __init__(self, prefix_bytes: int) -> None:
        found = bundle(MODEL, "int8", CACHE, Runtime.OPENVINO)
        assert found.manifest.generation is not None
        self._rules = found.manifest.generation
        self._vocabulary = found.manifest.vocabulary_size or 1
        self._runner = make_runner(found, threads=THREADS)
        capacity = Capacity(rows=SEQUENCES, prefix_bytes=prefix_bytes, draft_tokens=0)
        self._core = EngineCore(self._runner, capacity)
        self._random = np.random.default_rng(0)
        self._asked: list[SequenceState] = []

    def prompt(self, count: int) -> tuple[int, ...]:
        """Random tokens."""
        return tuple(self._random.integers(2, self._vocabulary - 2, count).tolist())

    def ask(self, prompt: tuple[int, ...], new_tokens: int) -> Answer:
        """Adds a request that nothing ends before it has its tokens."""
        update = {"max_new_tokens": new_tokens, "eos_token_ids": ()}
        answer = Answer()
        rules = self._rules.model_copy(update=update)
        request = EngineRequest(rules, prompt_ids=prompt, stream=True)
        self._asked.append(SequenceState(request, answer.hear))
        self._core.add(self._asked[-1])
        return answer

    def short(self) -> Answer:
        """Adds a short request."""
        return self.ask(self.prompt(NEW_TOKENS), NEW_TOKENS)

    def drop(self) -> None:
        """Cancels everything."""
        for sequence in self._asked:
            sequence.cancel()
        self._asked.clear()
        while not self._core.is_idle:
            self._core.step()

    def step(self) -> None:
        """One iteration of the engine."""
        self._core.step()

    def answered(self, prompt: tuple[int, ...], new_tokens: int) -> tuple[Wait, list[int]]:
        """Time to the first token of a request alone, and all its tokens."""
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        answer = self.ask(prompt, new_tokens)
        while not answer.token_ids:
            self.step()
        wait = time.perf_counter() - started_s, time.process_time() - started_cpu_s
        while not answer.is_over:
            self.step()
        return wait, answer.token_ids


def throughput(engine: Measured, *, has_long: bool, steps: int) -> Rate:
    """What a number of iterations takes; short sequences that end are followed by others.

    Args:
        has_long: Whether one of `SEQUENCES` has half of `LONGEST` tokens at first.
    """
    half = LONGEST // 2
    assert steps < half
    long = [engine.ask(engine.prompt(half), LONGEST - half)] if has_long else []
    short = [engine.short() for _ in range(SEQUENCES - len(long))]
    while not all(answer.times_s for answer in [*short, *long]):
        engine.step()
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    before = sum(len(answer.token_ids) for answer in [*short, *long])
    ended = 0
    for _ in range(steps):
        engine.step()
        for index, answer in enumerate(short):
            if answer.is_over:
                ended += len(answer.token_ids)
                short[index] = engine.short()
    taken_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    tokens = ended + sum(len(answer.token_ids) for answer in [*short, *long]) - before
    engine.drop()
    return Rate(tokens / taken_s, 1000 * cpu_s / tokens)


def conversation(engine: Measured) -> list[tuple[Wait, Wait]]:
    """Time to the first token of each turn, and of as many new tokens without a past."""
    history: tuple[int, ...] = ()
    found = []
    for _ in range(TURNS):
        history += engine.prompt(TURN_TOKENS)
        first, answer = engine.answered(history, ANSWER_TOKENS)
        history += tuple(answer)
        alone, _ = engine.answered(engine.prompt(TURN_TOKENS), 1)
        found.append((first, alone))
    return found


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    before = load()
    engine = Measured(prefix_bytes=0)
    loads: dict[str, list[Rate]] = {"32 short sequences": [], "31 and a long one": []}
    for _ in range(arguments.rounds):
        for name, rates in loads.items():
            has_long = "long" in name
            rates.append(throughput(engine, has_long=has_long, steps=arguments.steps))
    lines = [
        [
            name,
            f"{median(each.tokens_per_s for each in rates):.0f}",
            f"{median(each.cpu_ms_per_token for each in rates):.2f}",
        ]
        for name, rates in loads.items()
    ]
    print(markdown(["", "tokens/s", "CPU ms a token"], lines))
    engine = Measured(prefix_bytes=256 << 20)
    conversation(engine)
    runs = [conversation(engine) for _ in range(arguments.rounds)]
    header = ["turn", "ms to its first token", "CPU ms", "without a past, ms", "CPU ms"]
    print(markdown(header, map(_turn, range(TURNS), zip(*runs, strict=True))))
    print(f"load average before and after: {before}, {load()}")


def _turn(number: int, pairs: Sequence[tuple[Wait, Wait]]) -> list[str]:
    """A line of the table: medians of a turn's runs."""
    times = zip(*((*first, *alone) for first, alone in pairs), strict=True)
    return [str(number + 1), *(f"{1000 * median(each):.0f}" for each in times)]


if __name__ == "__main__":
    main()
