"""Alignments follow their row through beams, samples, moves and ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inference.bundle.inputs import AlignmentSpec
from inference.engine.engine_core import decode
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.engine.state.device import Device
from inference.engine.validation import RequestValidator
from inference.errors import InvalidRequest
from inference.generation import Generation
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    attention_fit,
    attention_likeness,
)

ROWS: list[dict[str, object]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 3},
    {"do_sample": True, "num_return_sequences": 2, "seed": 5},
    {"num_beams": 2, "repetition_penalty": 1.5},
]


def request(number: int, **overrides: object) -> EngineRequest:
    rng = np.random.default_rng(number)
    rules = Generation.model_validate(
        {
            "decoder_start_ids": (0,), "eos_token_ids": (1,), "pad_token_id": 0,
            "max_new_tokens": 12, "return_alignment": True, **ROWS[number % len(ROWS)], **overrides,
        }
    )  # fmt: skip
    source = rng.integers(0, VOCABULARY, rng.integers(1, 40))
    prompt = rng.integers(0, VOCABULARY, rng.integers(0, 4)).tolist()
    return EngineRequest(rules, source, prompt_ids=tuple(prompt))


@pytest.fixture(scope="module")
def emitting(tmp_path_factory: pytest.TempPathFactory, device: Device) -> OrtRunner:
    return OrtRunner(
        attention_bundle(tmp_path_factory.mktemp("emits"), emits=True), threads=1, device=device
    )


@pytest.fixture(scope="module")
def aligning(tmp_path_factory: pytest.TempPathFactory, device: Device) -> OrtRunner:
    return OrtRunner(
        attention_bundle(tmp_path_factory.mktemp("aligns"), aligns=True), threads=1, device=device
    )


def test_emitted_rows_are_those_of_each_tokens_step(emitting: OrtRunner) -> None:
    requests = [request(number) for number in range(16)]
    answers = decode(emitting, requests, Capacity(rows=16))
    for one, found in zip(requests, answers, strict=True):
        source = tuple(one.source_ids.tolist())
        for hypothesis in found.hypotheses:
            tokens = hypothesis.token_ids
            wanted = [
                attention_fit(source, (*one.decoder_ids, *tokens[:place]))
                for place in range(len(tokens))
            ]
            assert hypothesis.alignment.shape == (len(tokens), len(source))
            assert hypothesis.alignment == pytest.approx(np.stack(wanted), rel=1e-3, abs=1e-3)


def test_align_graph_runs_once_per_hypothesis(
    aligning: OrtRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[int] = []
    align = aligning.align
    monkeypatch.setattr(
        aligning, "align", lambda prompt, ids: (asked_for.append(len(ids)), align(prompt, ids))[1]
    )
    requests = [request(number) for number in range(8)]
    answers = decode(aligning, requests)
    for one, found in zip(requests, answers, strict=True):
        source = tuple(one.source_ids.tolist())
        for hypothesis in found.hypotheses:
            history = (*one.decoder_ids, *hypothesis.token_ids[:-1])
            wanted = attention_likeness(source, history)[len(one.decoder_ids) - 1 :]
            assert hypothesis.alignment == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    assert len(asked_for) == sum(len(found.hypotheses) for found in answers)


def test_alignments_are_absent_unless_requested(emitting: OrtRunner, aligning: OrtRunner) -> None:
    for runner in (emitting, aligning):
        (found,) = decode(runner, [request(1, return_alignment=False)])
        assert all(hypothesis.alignment is None for hypothesis in found.hypotheses)


def test_model_without_alignments_refuses_naming_the_field(tmp_path: Path) -> None:
    manifest = attention_bundle(tmp_path).manifest
    with pytest.raises(InvalidRequest) as refusal:
        RequestValidator(manifest).validate(request(0))
    assert refusal.value.field == "return_alignment"
    telling = manifest.model_copy(update={"alignment": AlignmentSpec(over="tokens")})
    assert RequestValidator(telling).validate(request(0)).rules.return_alignment
