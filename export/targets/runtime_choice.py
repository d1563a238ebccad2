"""Which runtime serves a bundle: the fastest of those that pass the gate.

They take turns on this machine over a fixed panel, in the classes and with the configuration that
serve them; the geometric mean over the panel of their medians decides. The panel of a generator is
greedy decoding of one sequence and of eight.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean, median

import numpy as np
from rich.table import Table

from export.parity.token_parity import random_request
from export.targets.served_graph import open_call, panel
from export.triton_config import THREADS
from inference.bundle.manifest import Bundle
from inference.engine.engine_core import decode
from inference.engine.runner_factory import make_runner

ROUNDS = 7
REST_S = 0.05
"""Between two turns, so that no runtime's spinning threads are awake in the other one's turn."""

PROMPT, NEW_TOKENS = 24, 24
"""Of each sequence that a generator decodes."""
WORDS_WITH_IMAGE = 21
"""Of a prompt with one image, beside the image's tokens."""

Milliseconds = Mapping[str, Mapping[str, float]]
"""Cell of the panel → runtime → median of a call."""


@dataclass(frozen=True)
class Choice:
    """The runtime that was chosen, and why.

    Attributes:
        relative: Runtime → its time over that of the chosen one, geometric mean over the panel.
        dropped: Runtime → why it cannot be chosen.
    """

    runtime: str
    milliseconds: Milliseconds
    relative: Mapping[str, float]
    dropped: Mapping[str, str]

    def table(self) -> Table:
        """A line a cell, a column a runtime."""
        names = list(self.relative)
        made = Table("milliseconds, medians", *names)
        for cell, times in self.milliseconds.items():
            made.add_row(cell, *(f"{times[name]:.2f}" for name in names))
        made.add_row("relative time", *(f"{self.relative[name]:.2f}" for name in names))
        return made


def choose(milliseconds: Milliseconds, dropped: Mapping[str, str]) -> Choice:
    """The runtime of the least geometric mean; of equal ones the first."""
    names = list(next(iter(milliseconds.values())))
    means = {name: geometric_mean(times[name] for times in milliseconds.values()) for name in names}
    chosen = min(means, key=lambda name: means[name])
    relative = {name: round(mean / means[chosen], 3) for name, mean in means.items()}
    return Choice(chosen, milliseconds, relative, dict(dropped))


def timed(bundles: Mapping[str, Bundle], rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Median milliseconds of each call of the panel, by runtime.

    Args:
        bundles: Runtime → a bundle with its graphs in place.
    """
    calls = {name: _calls(bundle) for name, bundle in bundles.items()}
    spent: dict[str, dict[str, list[float]]] = {
        cell: {name: [] for name in bundles} for cell in next(iter(calls.values()))
    }
    order, shuffle = list(bundles), random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            time.sleep(REST_S)
            for cell, call in calls[name].items():
                call()  # the first one after a pause is slower
                started_s = time.perf_counter()
                call()
                spent[cell][name].append(1000 * (time.perf_counter() - started_s))
    return {
        cell: {name: round(median(times), 3) for name, times in by_name.items()}
        for cell, by_name in spent.items()
    }


def _calls(bundle: Bundle) -> dict[str, Callable[[], object]]:
    """Cell of the panel → a call of the bundle's graphs."""
    if "step" in bundle.manifest.graphs:
        return _decodings(bundle)
    cells = panel(bundle)
    graphs = {key: open_call(bundle, key) for key in dict.fromkeys(k for k, _ in cells.values())}
    return {cell: partial(graphs[key], feeds) for cell, (key, feeds) in cells.items()}


def _decodings(bundle: Bundle) -> dict[str, Callable[[], object]]:
    """Greedy decoding of random inputs to a fixed length."""
    runner, manifest = make_runner(bundle, threads=THREADS), bundle.manifest
    assert manifest.generation is not None
    longest = manifest.limits.max_total_tokens or PROMPT + NEW_TOKENS
    count = min(NEW_TOKENS, longest // 2)
    update = {"num_beams": 1, "num_return_sequences": 1, "do_sample": False, "eos_token_ids": ()}
    update |= {"max_new_tokens": count, "min_new_tokens": 0, "forced_eos_token_id": None}
    rules = manifest.generation.model_copy(update=update)
    random, has_images = np.random.default_rng(0), manifest.images is not None
    prompt = min(PROMPT, longest - count, manifest.limits.max_input_tokens or PROMPT)
    words = WORDS_WITH_IMAGE if has_images else prompt
    sizes = {
        f"greedy, {size} sequences": [
            random_request(manifest, rules, words, random) for _ in range(size)
        ]
        for size in (1, 8)
    }
    return {cell: partial(decode, runner, requests) for cell, requests in sizes.items()}
