"""Stateless graphs on the card beside the CPU, and how fast they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gpu.card import Arrays, Card, differences, milliseconds
from benchmarks.gpu.outcome import Outcome
from export.parity.verify import bundle_path
from inference.bundle.manifest import Bundle, Role, Tensor
from inference.engine.runners.ort.device import CpuDevice, OrtDevice
from inference.engine.runners.ort.sessions import session_options

LENGTH = 16
BOUNDS = {"fp32": (1e-4, 0.99999), "fp16": (0.05, 0.999), "bf16": (0.3, 0.98)}
"""Precision → largest relative difference of an output, least cosine of a row."""


def parity(card: Card, bundle: Bundle, reference: Bundle) -> Outcome:
    """Outputs of all graphs for the same random inputs.

    Args:
        reference: Runs on the CPU: the bundle itself, or in float32 where the CPU lacks its type.
    """
    worst, least = 0.0, 1.0
    for key in bundle.manifest.graphs:
        feeds = random_inputs(bundle, key, 4)
        given = outputs(card.device(), bundle, key, feeds)
        wanted = outputs(CpuDevice(), reference, key, feeds)
        for name, value in wanted.items():
            if value.dtype.kind == "f":
                difference, cosine = differences(value, given[name])
                worst, least = max(worst, difference), min(least, cosine)
    largest, smallest = BOUNDS[bundle.manifest.precision]
    found = {"worst_difference": worst, "least_cosine": least}
    passed = worst <= largest and least >= smallest  # NaN fails
    return Outcome("outputs", bundle.manifest.name, bundle.manifest.precision, passed, found)


def speed(card: Card, bundle: Bundle, key: str, batch: int, times: int = 20) -> Outcome:
    """Rows a second of one graph, copies of inputs and outputs included."""
    device, feeds = card.device(), random_inputs(bundle, key, batch)
    session = device.open(str(bundle_path(bundle, key)), session_options(1))
    names = [tensor.name for tensor in bundle.manifest.graphs[key].outputs]

    def run() -> None:
        for tensor in device.run(session, names, feeds):
            device.fetch(tensor)

    taken_ms = milliseconds(run, times)
    found = {"batch": batch, "ms": taken_ms, "rows_per_s": 1000 * batch / taken_ms}
    return Outcome(f"speed of {key}", bundle.manifest.name, bundle.manifest.precision, None, found)


def outputs(device: OrtDevice, bundle: Bundle, key: str, feeds: Arrays) -> Arrays:
    """What a graph computes on a device."""
    session = device.open(str(bundle_path(bundle, key)), session_options(0))
    names = [tensor.name for tensor in bundle.manifest.graphs[key].outputs]
    found = device.run(session, names, feeds)
    return {name: device.fetch(each) for name, each in zip(names, found, strict=True)}


def random_inputs(bundle: Bundle, key: str, batch: int) -> Arrays:
    """Ragged texts, random pictures."""
    random = np.random.default_rng(0)
    manifest = bundle.manifest
    vocabulary = manifest.source_vocabulary_size or manifest.vocabulary_size or 64
    lengths = random.integers(2, LENGTH + 1, batch)
    sizes = {"B": batch, "T": LENGTH, "S": LENGTH, "M": 1, "N": 1}

    def made(tensor: Tensor) -> Any:
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor.shape]
        if tensor.role in (Role.LENGTHS, Role.SOURCE):
            return lengths.astype(np.int32)
        if tensor.role in (Role.TOKENS, Role.SOURCE_TOKENS):
            return random.integers(1, vocabulary, shape)
        if tensor.role is Role.PIXELS:
            return random.integers(0, 256, shape).astype(np.uint8)
        if tensor.role is Role.PIXEL_MASK:
            return np.ones(shape, np.bool_)
        return np.zeros(shape, tensor.dtype)

    return {tensor.name: made(tensor) for tensor in manifest.graphs[key].inputs}
