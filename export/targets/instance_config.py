"""How many instances of a bundle's parts, with how many threads: measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from export.parity.graph_runs import bundle_path
from export.parity.parity_inputs import Feeds, Probe, stateless_feeds
from export.tokenizer.special_token_templates import Framing
from export.triton_config import THREADS, stateless_config
from inference.bundle.manifest import Bundle, Placement, Role
from inference.process_limits import physical_cores
from inference.stateless.sessions import Sessions
from inference.tasks.shared.length_buckets import fixed_width

BATCHES = (1, 8)
LENGTHS = (16, 128)


def open_graph(bundle: Bundle, key: str, placement: Placement | None = None) -> Sessions:
    """One instance of a graph, loaded and ready; used by one thread.

    Args:
        placement: Whose threads it has; by default the manifest's.
    """
    manifest = bundle.manifest
    text = stateless_config(
        manifest.parts[key],
        manifest.graphs[key],
        runtime=manifest.runtime,
        precision=manifest.precision,
        placement=placement or manifest.placement,
    )
    message = text_format.Parse(text, pb.ModelConfig())
    config: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    if manifest.runtime == "openvino":
        from inference.stateless.compiled_graphs import CompiledGraphs

        return CompiledGraphs(bundle_path(bundle, key), config)
    from inference.stateless.graph_sessions import GraphSessions

    return GraphSessions(bundle_path(bundle, key), config)


def open_call(
    bundle: Bundle, key: str, placement: Placement | None = None
) -> Callable[[Feeds], object]:
    """All outputs of one instance of a graph."""
    outputs = [port.name for port in bundle.manifest.graphs[key].outputs]
    graphs = open_graph(bundle, key, placement)
    return lambda feeds: graphs.run(outputs, feeds)


def panel(bundle: Bundle) -> dict[str, tuple[str, Feeds]]:
    """Name → graph and inputs: every part but attention pictures, at the batches and lengths above.

    All texts of a batch have the same length.
    """
    manifest, found = bundle.manifest, {}
    size = manifest.source_vocabulary_size or 1
    longest = manifest.limits.max_input_tokens or max(LENGTHS)
    for key, graph in manifest.graphs.items():
        if graph.output(Role.ATTENTION):
            continue
        has_lengths = graph.input(Role.TOKENS) is not None and fixed_width(graph) is None
        lengths = sorted({min(length, longest) for length in LENGTHS}) if has_lengths else [None]
        for length in lengths:
            for batch in BATCHES:
                probe = _EqualLengths(size, size, framing=Framing.of(bundle))
                feeds = stateless_feeds(graph, manifest, probe, batch, length or longest)
                name = f"{key}, batch {batch}" + (f", {length} tokens" if length else "")
                found[name] = (key, feeds)
    return found


class _EqualLengths(Probe):
    def lengths(self, longest: int, count: int) -> Any:
        """(count,) of `longest`."""
        return np.full(count, longest, np.int32)


TURN_S = 0.5
ROUNDS = 3
GAIN = 1.05
"""A second instance has its own weights: it must raise the throughput by more than noise."""


@dataclass(frozen=True)
class Placed:
    """The placement that was chosen, and what each one computed.

    Attributes:
        calls_per_second: Placement → calls of the largest batch a second, median of the rounds.
    """

    chosen: Placement
    calls_per_second: Mapping[Placement, float]

    def line(self) -> str:
        """The choice and the rates, on a line for the console."""
        found = [f"{_words(each)} {rate:.1f}" for each, rate in self.calls_per_second.items()]
        timed = f"calls a second: {', '.join(found)}" if found else "no other one has enough cores"
        return f"{_words(self.chosen)} ({timed})"

    def as_json(self) -> dict[str, Any]:
        """The choice and the rates, for the report."""
        rates = self.calls_per_second.items()
        return {
            "placement": self.chosen.model_dump(),
            "calls_per_second": {_words(each): round(rate, 2) for each, rate in rates},
        }


def choose_placement(bundle: Bundle) -> Placed:
    """The placement of the most calls a second, as many threads calling as there are instances."""
    options = placements(physical_cores())
    if len(options) == 1:
        return Placed(options[0], {})
    return best(measured(bundle, options))


def placements(cores: int) -> list[Placement]:
    """One instance with all cores; where each of two has at least two, also two of half of them."""
    found = [Placement(instances=1, threads=max(THREADS, cores))]
    if cores >= 2 * THREADS:
        found.append(Placement(instances=2, threads=cores // 2))
    return found


def best(calls_per_second: Mapping[Placement, float]) -> Placed:
    """The first placement, unless another one computes more by the factor `GAIN`."""
    first, *others = calls_per_second
    chosen = first
    for each in others:
        if calls_per_second[each] > GAIN * calls_per_second[chosen]:
            chosen = each
    return Placed(chosen, calls_per_second)


def measured(bundle: Bundle, options: Sequence[Placement]) -> dict[Placement, float]:
    """Calls a second of each placement, in turns."""
    key, feeds = list(panel(bundle).values())[-1]
    ready = {
        each: [open_call(bundle, key, each) for _ in range(each.instances)] for each in options
    }
    rates: dict[Placement, list[float]] = {each: [] for each in options}
    for _ in range(ROUNDS):
        for each, instances in ready.items():
            rates[each].append(_rate([partial(call, feeds) for call in instances]))
    return {each: median(found) for each, found in rates.items()}


def _rate(calls: Sequence[Callable[[], object]]) -> float:
    """Calls a second, each function called again and again by a thread of its own."""

    def count(call: Callable[[], object]) -> int:
        call()
        done, end_s = 0, time.perf_counter() + TURN_S
        while time.perf_counter() < end_s:
            call()
            done += 1
        return done

    with ThreadPoolExecutor(len(calls)) as pool:
        return sum(pool.map(count, calls)) / TURN_S


def _words(placement: Placement) -> str:
    return f"{placement.instances} x {placement.threads} threads"
