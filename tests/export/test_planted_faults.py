"""The gate, and the twins, must notice every mistake: a check that cannot fail proves nothing."""

from __future__ import annotations

import copy

import onnx
import pytest
from onnx import numpy_helper

from export.verify import TOLERANCE, ParityError, bundle_path, verify
from serving.bundle import Bundle
from tests.export.conftest import Bundles, Twins
from tests.export.faults import BAHDANAU, CAPTIONER, GPT2, MARIAN, SHOW_ATTEND_TELL, Fault
from tests.export.oracle import compare, difference

FAULTS = [
    pytest.param(name, config, fault, id=f"{name}: {title}")
    for name, config, faults in (
        ("marian", "odd-heads", MARIAN),
        ("vision-encoder-decoder", "strict", CAPTIONER),
        ("gpt2", "odd-heads", GPT2),
        ("bahdanau", "odd-sizes", BAHDANAU),
        ("show-attend-tell", "odd-sizes", SHOW_ATTEND_TELL),
    )
    for title, fault in faults.items()
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config", "fault"), FAULTS)
def test_gate_fails_for_a_planted_fault(
    name: str, config: str, fault: Fault, twins: Twins, bundles: Bundles
) -> None:
    twin = twins(name, config)
    network = copy.deepcopy(twin.network)
    graphs = twin.architecture.graphs(network, twin.prepared.image)
    bundle = bundles(name, config)
    with fault(network), pytest.raises(ParityError, match="nothing was published"):
        verify(graphs, bundle)


@pytest.mark.parametrize(("name", "config", "fault"), FAULTS)
def test_twin_differs_for_a_planted_fault(
    name: str, config: str, fault: Fault, twins: Twins
) -> None:
    twin = twins(name, config)
    network = copy.deepcopy(twin.network)
    with fault(network):
        worst = max(difference(want, got) for _, want, got in compare(twin, network))
    assert worst > TOLERANCE


@pytest.mark.slow
def test_gate_fails_for_a_weight_that_export_changed(
    twins: Twins, bundles: Bundles, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = bundles("clip", "odd-heads")
    stage = tmp_path_factory.mktemp("changed")
    for key in good.manifest.graphs:
        model = onnx.load(str(bundle_path(good, key)))
        if key == "text":
            weight = max(model.graph.initializer, key=lambda tensor: tensor.ByteSize())
            values = numpy_helper.to_array(weight).copy()
            values[..., ::2] += 1e-3  # not all: a norm would take a constant away
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
        folder = stage / good.manifest.parts[key]
        folder.mkdir()
        onnx.save_model(model, str(folder / "model.onnx"))
    changed = Bundle(stage / good.manifest.name, good.manifest)
    with pytest.raises(ParityError, match="text"):
        verify(twins("clip", "odd-heads").graphs(), changed)
