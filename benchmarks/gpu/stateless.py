"""Stateless graphs on the card beside the CPU, and how fast they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoders.models import MODELS
from benchmarks.gpu.card import (
    Arrays,
    Card,
    Outcome,
    checkpoint,
    differences,
    milliseconds,
    missing_transformers,
    not_measured,
)
from export.parity.verify import bundle_path
from inference.bundle.manifest import Bundle, Role, Tensor
from inference.engine.runners.ort.sessions import CpuDevice, session_options
from inference.engine.state.device import Device

LENGTH, SPEED_LENGTH = 16, 128
"""Tokens of a text, at most: to compare, and to measure."""
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
    device, feeds = card.device(), random_inputs(bundle, key, batch, SPEED_LENGTH, is_full=True)
    session = device.open(bundle_path(bundle, key), session_options(1))
    names = [tensor.name for tensor in bundle.manifest.graphs[key].outputs]

    def run() -> None:
        for tensor in device.run(session, names, feeds):
            device.fetch(tensor)

    name = bundle.manifest.name
    return _speed("triptych", key, name, bundle.manifest.precision, batch, milliseconds(run, times))


def speed_of_transformers(
    name: str, key: str, batch: int, folder: Path, number: int, *, is_compiled: bool
) -> Outcome:
    """The same rows in float16: token ids, or pixels as a processor returns them, in float32.

    Args:
        key: Of the graph: `text` or `image`.
        number: Of the card.
    """
    engine = "torch.compile" if is_compiled else "transformers"
    reason = missing_transformers()
    if reason is not None:
        return not_measured(f"speed of {key}, {engine}", name, reason)
    import torch
    import transformers

    kind = getattr(transformers, MODELS[name].model)
    model = kind.from_pretrained(checkpoint(name, folder), dtype=torch.float16)
    model = model.to(f"cuda:{number}").eval()
    compute = {"text": "get_text_features", "image": "get_image_features"}
    call = getattr(model, compute[key]) if hasattr(model, compute[key]) else model
    call = torch.compile(call) if is_compiled else call
    random = np.random.default_rng(0)
    inputs: dict[str, Any] = {"pixel_values": random.normal(size=(batch, 3, 224, 224))}
    inputs["pixel_values"] = torch.from_numpy(inputs["pixel_values"].astype(np.float32))
    if key == "text":
        ids = random.integers(5, 30_000, (batch, _tokens(model.config)))
        inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.ones(ids.shape)}

    def run() -> None:
        with torch.inference_mode():
            given = {name: value.to(model.device) for name, value in inputs.items()}
            if key == "image":
                given["pixel_values"] = given["pixel_values"].half()
            found = call(**given)
        (found[0] if found.get("pooler_output") is None else found["pooler_output"]).cpu()

    run()
    return _speed(engine, key, name, "fp16", batch, milliseconds(run, 20))


def _tokens(config: Any) -> int:
    limit = getattr(getattr(config, "text_config", config), "max_position_embeddings", SPEED_LENGTH)
    return min(SPEED_LENGTH, int(limit))


def _speed(engine: str, key: str, name: str, precision: str, batch: int, taken: float) -> Outcome:
    found = {"batch": batch, "ms": taken, "rows_per_s": 1000 * batch / taken}
    return Outcome(f"speed of {key}, {engine}", name, precision, None, found)


def outputs(device: Device, bundle: Bundle, key: str, feeds: Arrays) -> Arrays:
    """What a graph computes on a device."""
    session = device.open(bundle_path(bundle, key), session_options(0))
    names = [tensor.name for tensor in bundle.manifest.graphs[key].outputs]
    found = device.run(session, names, feeds)
    return {name: device.fetch(each) for name, each in zip(names, found, strict=True)}


def random_inputs(
    bundle: Bundle, key: str, batch: int, length: int = LENGTH, *, is_full: bool = False
) -> Arrays:
    """Texts, ragged or all of the greatest length; random pictures.

    Args:
        length: The greatest, in tokens; the model's limit if that is less.
    """
    random = np.random.default_rng(0)
    manifest = bundle.manifest
    vocabulary = manifest.source_vocabulary_size or manifest.vocabulary_size or 64
    length = min(length, manifest.limits.max_input_tokens or length)
    lengths = np.full(batch, length) if is_full else random.integers(2, length + 1, batch)
    sizes = {"B": batch, "T": length, "S": length, "M": 1, "N": 1}

    def made(tensor: Tensor) -> Any:
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor.shape]
        if tensor.role in (Role.LENGTHS, Role.SOURCE):
            return lengths.astype(np.int32)
        if tensor.role in (Role.TOKENS, Role.SOURCE_TOKENS):
            return random.integers(1, vocabulary, shape)
        if tensor.role is Role.PIXELS:
            return random.integers(0, 256, shape).astype(np.uint8)
        return np.zeros(shape, tensor.dtype)

    return {tensor.name: made(tensor) for tensor in manifest.graphs[key].inputs}
