"""Writes what each model of a bundle must compute when it is loaded (D124)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from export.parity.judge import TOLERANCE
from export.parity.parity_inputs import Feeds, Probe, stateless_feeds
from export.parity.token_parity import random_request
from export.parity.verify import Report
from export.precision import Precision
from export.report.file_checks import bundle_files
from export.targets.instance_config import open_graph
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Bundle, Manifest, Role
from inference.bundle.self_check import SelfCheck, checksum
from inference.engine import codec
from inference.engine.engine import decode
from inference.engine.runner_factory import bundle_validator, make_runner
from inference.generation import Overrides
from inference.load_check import (
    TOP,
    compared_ports,
    draw_picture,
    generated_outputs,
    sample_values,
    without_ties,
)

LENGTH = 5
"""Tokens of a text, or about so many of a prompt, which has one image where it takes them."""
NEW_TOKENS = 3
INT8_TOLERANCE = 0.02
"""What another processor's float32 may move int8 scores by, relative to the largest: a value beside
a boundary is rounded to another byte. Of 60 tiny random networks LeViT moved most, by 0.015, 58 by
less than 1e-6; of nine examples none by more than 3e-7. Where products saturate, those nine move by
0.036 to 0.10."""
OTHER_TOLERANCE = 0.05
"""The same of bfloat16, of float16 on a card, of OpenVINO's int8, and of weights of 4 bits."""
CARD_TOLERANCE = 1e-3
"""Of float32 on a card, which sums in another order and has other kernels of attention; no card
was at hand to measure it."""


def write_self_checks(bundle: Bundle, report: Report, folder_of: Callable[[str], Path]) -> None:
    """Adds the file to each model of a bundle.

    Args:
        report: Of these files.
        folder_of: The folder of one model's version.
    """
    manifest = bundle.manifest
    keys = {model: key for key, model in manifest.parts.items()}
    for model in bundle.models:
        folder = folder_of(model)
        own = {name: checksum(folder / name) for name in _files(bundle, model)}
        check = SelfCheck(own, _tolerance(manifest, report))
        if not _is_computed_here(manifest):
            pass
        elif manifest.generator is not None:
            check = _with_tokens(check, bundle)
        elif model in keys:
            check = _with_outputs(check, bundle, keys[model])
        check.write(folder)


def _files(bundle: Bundle, model: str) -> list[str]:
    """Names of a model's files that `checksums` covers."""
    paths = [name.split("/", 1) for name, _ in bundle_files(bundle)]
    return [file for owner, file in paths if owner == model]


def _is_computed_here(manifest: Manifest) -> bool:
    """Whether the CPU computes what the bundle's device will; TensorRT loads without our code."""
    is_bf16 = manifest.device == "cuda" and manifest.precision == Precision.BF16
    return manifest.runtime != "tensorrt" and not is_bf16


def _tolerance(manifest: Manifest, report: Report) -> float:
    """Two float32 graphs, each as near to float64 as it must be, may differ by twice that."""
    if manifest.precision == Precision.FP32 and manifest.device == "cuda":
        return CARD_TOLERANCE
    if manifest.precision == Precision.FP32:
        return 2 * max(report.allowed.values(), default=TOLERANCE)
    is_int8 = manifest.precision in (Precision.INT8, Precision.INT8_FAST)
    return INT8_TOLERANCE if is_int8 and manifest.runtime == "onnxruntime" else OTHER_TOLERANCE


def _with_outputs(check: SelfCheck, bundle: Bundle, key: str) -> SelfCheck:
    """The outputs of a stateless graph for one row."""
    manifest = bundle.manifest
    graph = manifest.graphs[key]
    vocabulary = manifest.source_vocabulary_size or 1
    probe = Probe(vocabulary, vocabulary, framing=Framing.of(bundle), images=manifest.text_images)
    inputs = stateless_feeds(graph, manifest, probe, 1, LENGTH)
    pixels = graph.input(Role.PIXELS)
    if pixels is not None:
        shape = inputs[pixels.name].shape
        inputs[pixels.name] = draw_picture(shape).astype(pixels.dtype)
    found = open_graph(bundle, key).run([port.name for port in graph.outputs], inputs)
    outputs = {name: sample_values(found[name]) for name in compared_ports(graph)}
    return replace(check, inputs=inputs, outputs=outputs)


def _with_tokens(check: SelfCheck, bundle: Bundle) -> SelfCheck:
    """The greedy tokens behind a short prompt, with the best log-probabilities at each."""
    manifest = bundle.manifest
    rules = manifest.generation
    assert rules is not None
    drawn = random_request(manifest, rules, LENGTH, np.random.default_rng(LENGTH))
    options = Overrides(
        num_beams=1,
        num_return_sequences=1,
        do_sample=False,
        max_new_tokens=min(NEW_TOKENS, drawn.rules.max_new_tokens),
        top_log_probs=TOP,
    )
    vocabulary = manifest.vocabulary_size or 1
    inputs: Feeds = {}
    if drawn.source_ids is not None:
        inputs[codec.SOURCE_IDS] = drawn.source_ids
    if drawn.pixels is not None:
        inputs[codec.PIXELS] = draw_picture(drawn.pixels.shape).astype(drawn.pixels.dtype)
    if drawn.image_sizes is not None:
        inputs[codec.IMAGE_SIZES] = drawn.image_sizes
    if drawn.prompt_ids:
        inputs[codec.PROMPT_IDS] = np.array(drawn.prompt_ids, np.int64)
    given = options.model_dump(exclude_none=True)
    check = replace(check, inputs=inputs, options=given, scale=math.log(vocabulary))
    runner = make_runner(bundle)
    tensors = codec.encode_request(inputs, options)
    request = bundle_validator(bundle).validate(codec.decode_request(tensors, rules))
    (answer,) = decode(runner, [request])
    runner.close()
    outputs = without_ties(generated_outputs(answer), check.tolerance, check.scale)
    return replace(check, outputs=outputs)
