"""Devices and runners of tests over real graphs."""

from __future__ import annotations

import pytest

from inference.bundle.manifest import Bundle
from inference.engine.runners.openvino.runner import PagedRunner
from inference.engine.runners.ort.sessions import CpuDevice
from inference.engine.state.device import Device
from tests.inference.engine.host_device import HostDevice
from tests.inference.engine.toy_bundles import (
    attention_bundle,
    for_openvino,
    language_bundle,
    recurrent_bundle,
)
from tests.openvino_precisions import require_precision


@pytest.fixture(scope="module", params=[CpuDevice, HostDevice], ids=["cpu", "host"])
def device(request: pytest.FixtureRequest) -> Device:
    """The device of a runner's states and logits."""
    return request.param()


BUNDLES = {
    "attention": attention_bundle,
    "emitting": lambda folder: attention_bundle(folder, emits=True),
    "language": language_bundle,
    "recurrent": recurrent_bundle,
}


@pytest.fixture(scope="module", params=BUNDLES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return BUNDLES[request.param](tmp_path_factory.mktemp(request.param))


def in_precision(precision: str, bundle: Bundle) -> PagedRunner:
    require_precision(precision, is_generator=True)
    return PagedRunner(for_openvino(bundle, precision=precision), 2)


@pytest.fixture(scope="module")
def paged_attention(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    return PagedRunner(for_openvino(attention_bundle(tmp_path_factory.mktemp("attention"))), 2)


@pytest.fixture(scope="module")
def paged_language(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    return PagedRunner(for_openvino(language_bundle(tmp_path_factory.mktemp("language"))), 2)


@pytest.fixture(scope="module")
def paged_quantised(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    """The language with caches of 8 bits."""
    return in_precision("int8", language_bundle(tmp_path_factory.mktemp("quantised")))


@pytest.fixture(scope="module")
def paged_half(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    """The attention in bf16."""
    return in_precision("bf16", attention_bundle(tmp_path_factory.mktemp("half")))
