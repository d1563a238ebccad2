"""The gate, and the twins, must fail for every mistake: a check that cannot fail proves nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from export.architecture import Graphs
from export.layers.attention.attention import Attention
from export.models.dual_encoders.groupvit import Assignment, TokenMLP
from export.parity.graph_runs import bundle_path
from export.parity.judge import TOLERANCE
from export.parity.token_parity import TokenParity
from export.parity.verify import ParityError, verify
from export.registry import families
from inference.bundle.manifest import Bundle
from tests.export.conftest import SIBLINGS, TRACED, Bundles, TwinPair, Twins
from tests.export.faults import (
    faults_captioners,
    faults_encoders,
    faults_joint,
    faults_open_clip,
    faults_seq2seq,
    faults_vision,
)
from tests.export.faults.faults import GENERAL_FAULTS, OWN_FAULTS, Fault
from tests.export.faults.faults_decoders import DECODER_FAULTS
from tests.export.oracle import compare, difference
from tests.export.twin import EXPORTED
from tests.export.twins import build

Faults = Mapping[tuple[str, str], Mapping[str, Fault]]
"""(architecture, configuration) → title → fault."""


def exported(faults: Mapping[str, Mapping[str, Fault]]) -> Faults:
    """Faults by architecture, in the configuration that is exported."""
    return {(name, EXPORTED): planted for name, planted in faults.items()}


ENCODERS: Faults = faults_encoders.FAULTS
JOINT: Faults = faults_joint.FAULTS | faults_open_clip.FAULTS
VISION: Faults = faults_vision.FAULTS
FAMILIES = (
    exported(OWN_FAULTS), exported(DECODER_FAULTS), exported(faults_captioners.FAULTS), ENCODERS,
    JOINT, faults_seq2seq.FAULTS, VISION,
)  # fmt: skip
QUICK = (exported(OWN_FAULTS), {place: VISION[place] for place in VISION if place[1] == EXPORTED})
"""Of whose faults the gate must find the first in `make test`; all others in `make test-all`."""
PLACES = [
    pytest.param(*place, marks=[pytest.mark.full] if place[0] in SIBLINGS - TRACED else [])
    for place in dict.fromkeys([*((name, EXPORTED) for name in families()), *ENCODERS, *JOINT])
]


def flat(*groups: Faults) -> Iterator[tuple[str, str, str, Fault]]:
    for group in groups:
        for place, faults in group.items():
            for title, fault in faults.items():
                yield *place, title, fault


def parameters(*, of_gate: bool) -> list[Any]:
    """Every fault as a parameter; those that the gate need not find each time are `full`."""
    quick = {(*place, next(iter(faults))) for group in QUICK for place, faults in group.items()}
    return [
        pytest.param(
            name, config, fault, id=f"{name}-{config}: {title}",
            marks=[pytest.mark.full] if of_gate and (name, config, title) not in quick else [],
        )
        for name, config, title, fault in flat(*FAMILIES)
        if not of_gate or (name, config) not in VISION or config == EXPORTED
    ]  # fmt: skip


def planted(twin: TwinPair) -> tuple[nn.Module, Graphs]:
    """A copy of the network, and its graphs."""
    network = copy.deepcopy(twin.network)
    return network, twin.architecture.graphs(network, twin.prepared.image)


@pytest.mark.parametrize(("name", "config", "fault"), parameters(of_gate=False))
def test_twin_differs_for_a_planted_fault(
    name: str, config: str, fault: Fault, twins: Twins
) -> None:
    twin = twins(name, config)
    if (name, config) in VISION:  # whose faults change what is prepared for a size, too
        network, graphs = planted(twin)
    else:
        network, graphs = copy.deepcopy(twin.network), None
    with fault(network):
        assert differs(twin, network, graphs)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config", "fault"), parameters(of_gate=True))
def test_gate_fails_for_a_planted_fault(
    name: str, config: str, fault: Fault, twins: Twins, bundles: Bundles
) -> None:
    network, graphs = planted(twins(name, config))
    bundle = bundles(name, config)
    with fault(network), pytest.raises(ParityError, match="nothing was published"):
        verify(graphs, bundle)


@pytest.mark.parametrize(("name", "config"), PLACES)
def test_twin_differs_when_any_parameter_does(name: str, config: str, twins: Twins) -> None:
    """Otherwise a wrong weight would pass: it is unused, or the twin cannot detect it."""
    twin = twins(name, config)
    network = copy.deepcopy(twin.network)
    unnoticed = []
    for path, parameter in network.named_parameters():
        kept = parameter.detach().clone()
        disturb(parameter)
        if not differs(twin, network) and not may_be_unnoticed(network, path):
            unnoticed.append(path)
        with torch.no_grad():
            parameter.copy_(kept)
    assert unnoticed == []


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (name, fault)
        for name in families()
        for fault, plant in GENERAL_FAULTS.items()
        if plant(build(name)[1])
    ],
)
def test_twin_differs_for_a_general_fault(name: str, fault: str, twins: Twins) -> None:
    twin = twins(name, EXPORTED)
    network = copy.deepcopy(twin.network)
    assert GENERAL_FAULTS[fault](network)
    assert differs(twin, network)


@pytest.mark.slow
@pytest.mark.parametrize("name", families())
def test_gate_fails_for_a_disturbed_weight(name: str, twins: Twins, bundles: Bundles) -> None:
    twin = twins(name, EXPORTED)
    graphs = twin.architecture.graphs(network := copy.deepcopy(twin.network), twin.prepared.image)
    matrices = [weight for weight in network.parameters() if weight.ndim == 2]
    disturb(matrices[-1])
    with pytest.raises(ParityError, match="nothing was published"):
        verify(graphs, bundles(name, EXPORTED))


def differs(twin: TwinPair, network: nn.Module, graphs: Graphs | None = None) -> bool:
    """Whether any output is farther from the reference's than the tolerance, or NaN."""
    compared = compare(twin, network) if graphs is None else compare(twin, graphs=graphs)
    return any(not difference(want, got) <= TOLERANCE for _, want, got in compared)


def disturb(parameter: torch.Tensor) -> None:
    """Changes every value, by amounts that differ."""
    with torch.no_grad():
        parameter.add_(torch.linspace(0.1, 0.3, parameter.numel()).view(parameter.shape))


def may_be_unnoticed(network: nn.Module, path: str) -> bool:
    """Whether a parameter has mathematically no effect.

    A key's bias adds the same to every score of a query; softmax takes it away, as the maximum
    over groups does the query's. What shifts all channels of a group token alike is taken away by
    norms. To the first block's messages the frames of a video are alike: class tokens have not seen
    them yet. A parameter directly below the network is no part of a graph (a logit scale goes into
    the manifest).
    """
    owner = network.get_submodule(path.rpartition(".")[0].rpartition(".")[0])
    is_key = path.endswith((".key.bias", ".first_key.bias")) and isinstance(owner, Attention)
    is_query = path.endswith(".query.bias") and isinstance(owner, Assignment)
    shifts_tokens = path.endswith(".down.bias") and isinstance(owner, TokenMLP)
    among_equals = path.startswith(
        ("image.blocks.0.message_attention.query.", "image.blocks.0.message_attention.key.")
    )
    return is_key or is_query or shifts_tokens or among_equals or "." not in path


@pytest.mark.slow
def test_gate_fails_for_other_tokens(
    twins: Twins, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of every planted fault differ, too; here only the tokens do."""
    parity = TokenParity(compared=50, differences=["request 3"])
    monkeypatch.setattr("export.parity.verify.compare_tokens", lambda *_: parity)
    with pytest.raises(ParityError, match="other tokens than PyTorch: request 3"):
        verify(twins("gpt2", EXPORTED).graphs(), bundles("gpt2", EXPORTED))


@pytest.mark.slow
def test_gate_fails_for_a_weight_that_export_changed(
    twins: Twins, bundles: Bundles, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = bundles("clip", "odd")
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
        verify(twins("clip", "odd").graphs(), changed)
