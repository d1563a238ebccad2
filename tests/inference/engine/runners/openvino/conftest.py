"""Runners over OpenVINO of the hand-made bundles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.bundle.manifest import Bundle
from inference.engine.runners.openvino.runner import PagedRunner
from tests.inference.engine.toy_bundles import attention_bundle, language_bundle
from tests.openvino_precisions import require_precision


def for_openvino(bundle: Bundle) -> Bundle:
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"runtime": "openvino"}))


def with_precision(precision: str, bundle: Bundle) -> Bundle:
    update = {"precision": precision, "runtime": "openvino"}
    return replace(bundle, manifest=bundle.manifest.model_copy(update=update))


def in_precision(precision: str, bundle: Bundle) -> PagedRunner:
    require_precision(precision, is_generator=True)
    return PagedRunner(with_precision(precision, bundle), 2)


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    return PagedRunner(for_openvino(attention_bundle(tmp_path_factory.mktemp("attention"))), 2)


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    return PagedRunner(for_openvino(language_bundle(tmp_path_factory.mktemp("language"))), 2)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    """The language with caches of 8 bits."""
    return in_precision("int8", language_bundle(tmp_path_factory.mktemp("quantised")))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    """The attention in bf16."""
    return in_precision("bf16", attention_bundle(tmp_path_factory.mktemp("half")))
