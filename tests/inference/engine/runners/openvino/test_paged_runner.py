"""The runner over OpenVINO computes what the other one computes, however blocks move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.bundle.manifest import Bundle
from inference.engine.engine_core import EngineCore, decode, final_result
from inference.engine.runners.candidates import plain_request
from inference.engine.runners.openvino.runner import PagedRunner
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest, Event
from inference.engine.sequence import SequenceState
from inference.errors import BundleError
from inference.generation import Generation
from inference.sequences import Finished
from tests.inference.engine.fake_runner import FakeRunner
from tests.inference.engine.runners.ort.test_runner import (
    assert_alike,
    prompt_request,
    request,
)
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    attention_logits,
    language_bundle,
    language_logits,
    recurrent_bundle,
)


def for_openvino(bundle: Bundle) -> Bundle:
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"runtime": "openvino"}))


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    return PagedRunner(for_openvino(attention_bundle(tmp_path_factory.mktemp("attention"))), 2)


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> PagedRunner:
    return PagedRunner(for_openvino(language_bundle(tmp_path_factory.mktemp("language"))), 2)


def test_it(attention, language):
    reference = FakeRunner(language_logits, VOCABULARY, takes_chunks=False)
    asked=[prompt_request(1, 1, 20), prompt_request(2,2,10)]
    assert_alike(decode(language, asked), [decode(reference,[a])[0] for a in asked])
    reference = FakeRunner(attention_logits, VOCABULARY, takes_chunks=False)
    asked=[request(1, 1, 20), request(2,2,10)]
    assert_alike(decode(attention, asked), [decode(reference,[a])[0] for a in asked])
