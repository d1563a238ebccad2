"""Generators in OpenVINO, with keys and values in blocks, against `transformers.generate`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from export.precision import Precision, Runtime
from export.targets.runtime_rules import check_runtime, why_not_in_blocks
from inference.bundle.manifest import Bundle
from inference.engine.runners.openvino.runner import PagedRunner
from inference.errors import BundleError, SetupError
from tests.export.conftest import Bundles, Twins
from tests.export.parity.test_generate_parity import GENERATORS, RULES, check, with_rules

REFUSED = {
    "t5": "its attention has a bias of relative positions",
    "mt5": "its attention has a bias of relative positions",
    "gemma2": "its attention scores are capped",
    "blip": "x",
    "git": "its caches begin with the positions of an image",
    "idefics": "its prompts hold images",
}
"""Why OpenVINO's operator cannot decode them; they stay with ONNX Runtime."""
SERVED = [name for name in GENERATORS if name not in REFUSED]


@pytest.mark.parametrize("rules", ["greedy", "beam-4", "penalised beam-4", "renormalised"])
@pytest.mark.parametrize("name", SERVED)
def test_engine_over_blocks_generates_what_transformers_generates(
    name: str, rules: str, twins: Twins, bundles: Bundles
) -> None:
    bundle = with_rules(for_openvino(bundles(name, "odd")), RULES[rules])
    check(twins(name, "odd"), bundle, PagedRunner(bundle, threads=2))


def for_openvino(bundle: Bundle) -> Bundle:
    """The same files, to be decoded with OpenVINO."""
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"runtime": "openvino"}))
