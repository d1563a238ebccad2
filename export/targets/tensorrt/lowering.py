"""The graphs of a stateless bundle for TensorRT, and the shapes of its plans.

TensorRT chooses kernels for one shape of each profile, and Triton takes the profile whose tuned
shape is nearest. So a graph has a profile for what one call of the gateway holds and one for what
the dynamic batcher joins, each for short texts and for all texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from export.architecture import Graphs, Lowering
from export.parity.graph_runs import bundle_path, file_bytes
from export.parity.verify import Report
from export.precision import Precision
from export.targets.cuda.gate import compare_low
from export.targets.cuda.half_precision import halve
from export.targets.cuda.lowering import LOW
from export.targets.tensorrt.checks import (
    TENSORRT,
    check_constants,
    check_operators,
    check_positions,
)
from inference.bundle.manifest import Bundle, Graph, Limits, Manifest, Profile
from inference.errors import SetupError
from inference.tasks.shared.length_buckets import ROWS, padded_length
from inference.tasks.shared.model_calls import MAX_ROWS
from triptych.tasks.fill_mask import MAX_TARGETS

Range = tuple[int, int, int]
"""Least, tuned and largest size of a dimension."""

SHORT = 64
"""Tokens of a short text."""
JOINED_TOKENS = 1 << 15
"""Padded tokens of a joined call: beyond them rows run after each other as fast as together, and a
plan's memory is that of its largest shape."""


def with_profiles(graph: Graph, limits: Limits, key: str) -> Graph:
    """A stateless graph with its profiles.

    Raises:
        SetupError: the checkpoint has no limit on lengths, or a dimension is unknown.
    """
    names = _dynamic(graph)
    limit = _limit(limits, key) if "T" in names else None
    rows = largest_rows(graph, limits)
    row_ranges = [(1, ROWS, ROWS), (1, rows // 2, rows)][: 1 + (rows > ROWS)]
    profiles = []
    for lengths, row_range in product(_lengths(limit), row_ranges):
        sizes: dict[str, Range] = {"B": row_range, "N": (1, 1, MAX_TARGETS)}
        if lengths is not None:
            sizes |= {"T": lengths, "M": (1, 1, lengths[2])}
        if unknown := sorted(names - sizes.keys()):
            raise SetupError(f"{key} has dimensions without a range for TensorRT: {unknown}")
        profiles.append(_profile(graph, sizes))
    return graph.model_copy(update={"profiles": tuple(profiles)})


def largest_rows(graph: Graph, limits: Limits) -> int:
    """Rows of the largest call: what the batcher may join, but never less than a gateway's call.

    Scores of a vocabulary at many positions are the largest values of any graph, so those calls are
    not joined.
    """
    names = _dynamic(graph)
    if "M" in names:
        return ROWS
    length = (limits.max_input_tokens or 1) if "T" in names else 1
    return max(ROWS, min(MAX_ROWS, JOINED_TOKENS // length))


def check_profiles(graph: Graph, limits: Limits, key: str) -> None:
    """Refuses profiles that leave out a shape that is served.

    Raises:
        SetupError: names the first such shape.
    """
    names = _dynamic(graph)
    limit = _limit(limits, key) if "T" in names else 1
    lengths = sorted({1, *(padded_length(length, limit) for length in range(1, limit + 1))})
    rows = sorted({1, ROWS, largest_rows(graph, limits)})
    for length, count in product(lengths, rows):
        for masks, targets in _beside(names, length):
            sizes = {"B": count, "T": length, "M": masks, "N": targets}
            if not any(takes(profile, graph, sizes) for profile in graph.profiles):
                listed = ", ".join(f"{name} = {sizes[name]}" for name in sizes if name in names)
                raise SetupError(f"no TensorRT profile of {key} takes {listed}")


def takes(profile: Profile, graph: Graph, sizes: Mapping[str, int]) -> bool:
    """Whether a call with these sizes of dimensions fits into a profile."""
    for port in graph.inputs:
        if port.name not in profile.shapes:
            continue
        least, _, largest = profile.shapes[port.name]
        for size, low, high in zip(port.shape, least, largest, strict=True):
            if isinstance(size, str) and not low <= sizes[size] <= high:
                return False
    return True


def _beside(names: frozenset[str], length: int) -> Iterator[tuple[int, int]]:
    """Least and most positions and choices of a call, where the graph has them."""
    yield 1, 1
    if names & {"M", "N"}:
        yield length, MAX_TARGETS


def _lengths(limit: int | None) -> list[Range | None]:
    if limit is None:
        return [None]
    every = (1, max(1, limit // 2), limit)
    return [(1, SHORT // 2, SHORT), every] if limit > SHORT else [every]


def _profile(graph: Graph, sizes: Mapping[str, Range]) -> Profile:
    return Profile(
        shapes={
            port.name: (
                _shape(port.shape, sizes, 0),
                _shape(port.shape, sizes, 1),
                _shape(port.shape, sizes, 2),
            )
            for port in graph.inputs
        }
    )


def _shape(shape: tuple[int | str, ...], sizes: Mapping[str, Range], which: int) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else sizes[size][which] for size in shape)


def _dynamic(graph: Graph) -> frozenset[str]:
    """Names of the dimensions of the inputs."""
    return frozenset(size for port in graph.inputs for size in port.shape if isinstance(size, str))


def _limit(limits: Limits, key: str) -> int:
    if limits.max_input_tokens is None:
        raise SetupError(
            f"the checkpoint has no limit on the tokens of {key}: a TensorRT plan needs one"
        )
    return limits.max_input_tokens


def for_tensorrt(lowering: Lowering) -> Lowering:
    """A graph's lowering: TensorRT has none of ONNX Runtime's fused operators."""
    return replace(lowering, is_fused=False, is_for_cuda=True)


def add_profiles(manifest: Manifest) -> Manifest:
    """The manifest with the profiles of its graphs.

    Raises:
        SetupError: it has no limits that a plan could be built for.
    """
    limits = manifest.limits
    graphs = {key: with_profiles(each, limits, key) for key, each in manifest.graphs.items()}
    for key, graph in graphs.items():
        check_profiles(graph, limits, key)
    return manifest.model_copy(update={"graphs": graphs})


def finish_tensorrt(report: Report, graphs: Graphs, bundle: Bundle, precision: Precision) -> None:
    """Gives the verified float32 files of a staged bundle their precision, and checks them.

    Args:
        report: Of the float32 files, which equal PyTorch; updated in place.
        bundle: Its manifest has profiles.

    Raises:
        SetupError: TensorRT lacks an operator or its type, or a limit is beyond a table.
        ParityError: too much is lost.
    """
    manifest, nodes = bundle.manifest, Counter[str]()
    for key, graph in manifest.graphs.items():
        path = bundle_path(bundle, key)
        check_operators(path, key)
        check_positions(path, graph, key)
        if precision in LOW:
            halve(path, key, LOW[precision], frozenset(), TENSORRT)
            check_constants(path, key)
        nodes += check_operators(path, key)
    found: dict[str, Any] = {
        "nodes": dict(sorted(nodes.items())),
        "profiles": {key: len(graph.profiles) for key, graph in manifest.graphs.items()},
    }
    if precision in LOW:
        found["parity"] = asdict(compare_low(graphs, bundle, manifest, precision))
    report.tensorrt = found
    report.milliseconds = {}  # of the CPU
    report.graph_bytes = {key: file_bytes(bundle_path(bundle, key)) for key in manifest.graphs}
