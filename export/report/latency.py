"""Latency of a bundle's graphs by batch size, in this process and on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median

from export.parity.parity_inputs import Probe, Run, stateless_feeds
from export.parity.token_parity import mixed_requests
from inference.bundle.manifest import Bundle, Manifest
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runner_factory import make_runner

BATCHES = (1, 2, 4, 8, 16, 32)
TEXT_LENGTH = 32
NEW_TOKENS = 16
BUDGET_S = 1.0
"""Larger batches are left out once a call took this long."""
_THREADS = 2
_REPEATS = 5

Latencies = dict[int, float]
"""Batch size → median milliseconds."""


def stateless_latencies(run: Run, manifest: Manifest, probe: Probe) -> dict[str, Latencies]:
    """Graph → latency of one call with texts of `TEXT_LENGTH` tokens, or with images."""
    longest = min(TEXT_LENGTH, manifest.limits.max_input_tokens or TEXT_LENGTH)

    def measure(key: str) -> Latencies:
        graph = manifest.graphs[key]

        def call(batch: int) -> float:
            feeds = stateless_feeds(graph, manifest, probe, batch, longest)
            return _milliseconds(partial(run, key, feeds))

        return dict(_until_slow(call))

    return {key: measure(key) for key in manifest.graphs}


def generator_latencies(bundle: Bundle) -> dict[str, Latencies]:
    """Time to the first token, and of each further one, of greedy requests decoded together."""
    runner = make_runner(bundle, threads=_THREADS)
    request = mixed_requests(bundle.manifest, 1)[0]
    positions = bundle.manifest.limits.max_total_tokens or NEW_TOKENS + len(request.decoder_ids) + 1
    further = max(1, min(NEW_TOKENS, positions - len(request.decoder_ids) - 1))
    one, many = _force_length(request, 1), _force_length(request, 1 + further)
    first: Latencies = {}
    step: Latencies = {}
    for batch in BATCHES:
        first[batch] = _milliseconds(partial(decode, runner, [one] * batch))
        whole = _milliseconds(partial(decode, runner, [many] * batch))
        step[batch] = round(max(0.0, whole - first[batch]) / further, 3)
        if whole > 1000 * BUDGET_S:
            break
    runner.close()
    return {"first token": first, "further token": step}


def _force_length(request: EngineRequest, tokens: int) -> EngineRequest:
    """The request with exactly this many new tokens."""
    update = {"min_new_tokens": tokens, "max_new_tokens": tokens}
    return replace(request, rules=request.rules.model_copy(update=update))


def _until_slow(call: Callable[[int], float]) -> Iterator[tuple[int, float]]:
    for batch in BATCHES:
        spent_ms = call(batch)
        yield batch, spent_ms
        if spent_ms > 1000 * BUDGET_S:
            return


def _milliseconds(call: Callable[[], object]) -> float:
    """Median of a few calls after one that is not counted; of one call where it is slow."""
    started_s = time.perf_counter()
    call()
    spent = [time.perf_counter() - started_s]
    if spent[0] < BUDGET_S:
        spent = []
        for _ in range(_REPEATS):
            started_s = time.perf_counter()
            call()
            spent.append(time.perf_counter() - started_s)
    return round(1000 * median(spent), 3)
