"""Our networks against `transformers` or their paper, eager; and their ONNX graphs against them."""

from __future__ import annotations

import pytest

from export.registry import ARCHITECTURES, architecture
from export.verify import TOLERANCE, verify
from serving.errors import CheckpointError
from tests.export.conftest import Bundles, Twins
from tests.export.oracle import compare, difference
from tests.export.twins import CONFIGS

EVERY_CONFIG = [(name, config) for name in CONFIGS for config in CONFIGS[name]]
# Exporting takes seconds, so only the configurations whose lowering differs are exported.
EXPORTED = [(name, config) for name, config in EVERY_CONFIG if config.startswith("odd-")]


def test_every_architecture_has_twins() -> None:
    assert set(CONFIGS) == set(ARCHITECTURES)


@pytest.mark.parametrize(("name", "config"), EVERY_CONFIG)
def test_network_says_what_its_reference_says(name: str, config: str, twins: Twins) -> None:
    for what, want, got in compare(twins(name, config)):
        assert difference(want, got) < TOLERANCE, what


@pytest.mark.parametrize(("name", "config"), EXPORTED)
def test_graphs_say_what_the_network_says(
    name: str, config: str, twins: Twins, bundles: Bundles
) -> None:
    report = verify(twins(name, config).graphs(), bundles(name, config))
    assert report.observations >= 10
    assert report.worst_difference < TOLERANCE


def test_unknown_model_type_is_refused_with_what_there_is() -> None:
    with pytest.raises(CheckpointError, match="'bert' is not supported; supported are: marian"):
        architecture("bert")
