"""The shapes that a graph's plan is built for, from the bundle's limits and the gateway's buckets.

TensorRT chooses kernels for one shape of each profile, and Triton takes the profile whose tuned
shape is nearest. So a graph has a profile for what one call of the gateway holds and one for what
the dynamic batcher joins, each for short texts and for all texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from inference.bundle.manifest import Graph, Limits, Profile
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
