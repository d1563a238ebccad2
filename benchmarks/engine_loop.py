"""Time of the decode loop without a model: a runner that returns the same candidates at each step.

`python -m benchmarks.engine_loop` prints microseconds a step, the median of many steps. What a
model adds to them is its runner's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from inference.engine.engine import EngineCore
from inference.engine.request import EngineRequest
from inference.engine.runners.candidates import CandidateRequest, Candidates
from inference.engine.runners.protocol import Capabilities, Group, Prompt, Runner
from inference.engine.scheduler import Capacity
from inference.engine.sequence import SequenceState
from inference.engine.state.group_state import MemoryModel
from inference.generation import Generation

VOCABULARY = 1000
END = 0
WARM_UP = 20
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, repetition penalty": {"repetition_penalty": 1.2},
    "4 beams": {"num_beams": 4},
    "sampling, top 5": {"do_sample": True, "seed": 1, "top_k": 5},
}


@dataclass
class NullGroup(Group):
    """Sequences without state."""

    width: int
    state_bytes = 0
    _made: dict[tuple[int, int], Candidates] = field(default_factory=dict)

    def admit(
        self, prompts: Sequence[Prompt], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        """The same candidates for each prompt."""
        return self._candidates(row_requests)

    def step(
        self, token_ids: NDArray[np.int64], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        """The same candidates for each row, but new objects, as a runner returns them."""
        return self._candidates(row_requests)

    def release(self, *_: object) -> None:
        """The group holds nothing that would be given back."""

    admit_deferred = copy = retire = release

    def _candidates(self, row_requests: Sequence[CandidateRequest]) -> Candidates:
        shape = len(row_requests), max(request.count for request in set(row_requests))
        if shape not in self._made:
            generator = np.random.default_rng(shape)
            tokens = np.sort(generator.integers(END + 1, VOCABULARY, shape))
            log_probs = -np.sort(generator.random(shape, np.float32))
            self._made[shape] = Candidates(tokens, log_probs)
        made = self._made[shape]
        return Candidates(made.token_ids, made.log_probs)


class NullRunner(Runner):
    """A runner whose steps take no time; its state has a byte a position."""

    vocabulary_size = VOCABULARY
    footprint = MemoryModel(position=1)
    capabilities = Capabilities(defers_admission=True)

    def group(self, width: int) -> NullGroup:
        return NullGroup(width)

    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        raise NotImplementedError


def time_steps(sequences: int, steps: int, search: dict[str, Any]) -> float:
    """Median microseconds of a step of the decode loop with that many streams or sequences.

    Raises:
        RuntimeError: a sequence ended within the steps.
    """
    length = WARM_UP + steps + 10
    rules = Generation(eos_token_ids=(END,), pad_token_id=END, max_new_tokens=length, **search)
    core = EngineCore(NullRunner(), Capacity(rows=sequences * rules.rows))
    for _ in range(sequences):
        request = EngineRequest(rules, prompt_ids=(1,), stream=rules.rows == 1)
        core.add(SequenceState(request, lambda _: None))
    times_s = []
    for _ in range(WARM_UP + steps):
        start_s = time.perf_counter()
        core.step()
        times_s.append(time.perf_counter() - start_s)
    if core.rows_in_use != sequences * rules.rows:
        raise RuntimeError("a sequence ended, so that later steps had fewer rows")
    return statistics.median(times_s[WARM_UP:]) * 1e6


def main(
    steps: Annotated[int, typer.Option(min=1, help="Steps that are timed.")] = 500,
    sequences: Annotated[tuple[int, int, int], typer.Option(min=1, help="Sequences at a time.")] = (
        1,
        8,
        32,
    ),
) -> None:
    """Print microseconds a step."""
    typer.echo(f"| µs a step, {' / '.join(map(str, sequences))} sequences | |\n|---|---|")
    for name, search in SEARCHES.items():
        found = [f"{time_steps(count, steps, search):.0f}" for count in sequences]
        typer.echo(f"| {name} | {' / '.join(found)} |")


if __name__ == "__main__":
    typer.run(main)
