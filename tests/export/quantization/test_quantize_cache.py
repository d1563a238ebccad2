"""An int8 cache: a quarter of the bytes, and the same tokens for every way of prefill."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.parity.graph_runs import LazySessions, bundle_path
from export.parity.parity_inputs import Admitted, Probe, StepLoop
from export.quantization.calibrate import (
    HEADROOM,
    CalibrationRun,
    Scales,
    cache_scales,
    calibration_runs,
)
from export.quantization.quantize import LARGEST
from inference.bundle.manifest import Bundle, Growth, State
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.state.group_state import MemoryModel
from tests.export.conftest import Bundles, Lowered, Twins, lowered
from tests.export.parity.test_prompt_reading import (
    PIECES,
    WHOLE,
    assert_alike,
    prompted,
    prompts,
    rules,
    staggered,
)
from tests.export.twin import EXPORTED
from tests.export.twins import generators, growth

LENGTH = 12
KEPT_WIDE = ("gemma", "paligemma", "switch_transformers")
"""Twins whose logits an int8 cache would change too much: it stays float32."""
UNFUSED = ("lstmn-lm", "prophetnet", "t5gemma2")
"""Decoders whose states grow, but no fused attention reads them: they stay float32."""
UNCACHED = [name for name in generators() if Growth.APPEND not in growth(name) or name in UNFUSED]
CACHED = [name for name in generators() if name not in (*KEPT_WIDE, *UNCACHED)]
LANGUAGE_MODELS = [
    ("gpt2", "plain"),  # heads that need no padding
    *((name, EXPORTED) for name in CACHED if name in generators(has_source=False)),
]
WITH_SOURCE = [name for name in CACHED if name in generators(has_source=True)]


def caches(bundle: Bundle) -> list[State]:
    return [state for state in bundle.manifest.states if state.growth is Growth.APPEND]


def reported(bundle: Bundle) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((bundle.folder / "report.json").read_text())["int8"]
    return report


@pytest.mark.parametrize("name", CACHED)
def test_cache_takes_a_quarter_of_the_bytes(name: str, bundles: Bundles, int8: Lowered) -> None:
    wide, narrow = bundles(name, "odd"), int8(name, "odd")
    assert {state.dtype for state in caches(narrow)} == {"int8"}
    pair = [MemoryModel.of(bundle.manifest.states) for bundle in (wide, narrow)]
    assert pair[0].position == 4 * pair[1].position > 0
    assert pair[0].source == pair[1].source  # what is only read stays float32
    assert reported(narrow)["cache"] == "int8"
    assert 0.99 < reported(narrow)["cache_cosine"] < 1
    assert reported(narrow)["cache_clipped"] < 1e-3


@pytest.mark.parametrize("name", KEPT_WIDE)
def test_cache_stays_wide_where_it_would_lose_too_much(name: str, int8: Lowered) -> None:
    narrow = int8(name, "odd")
    assert {state.dtype for state in caches(narrow)} == {"float32"}
    assert reported(narrow)["cache"] == "float32"


@pytest.mark.parametrize("chunks", [(5, 7), (1, 4, 4, 3), (11, 1), (1,) * 12])
@pytest.mark.parametrize(("name", "config"), LANGUAGE_MODELS)
def test_prompt_in_chunks_gives_the_same_bits_as_the_whole(
    name: str, config: str, chunks: tuple[int, ...], int8: Lowered
) -> None:
    bundle = int8(name, config)
    run = LazySessions({"step": bundle_path(bundle, "step")})
    tokens = np.random.default_rng(0).integers(0, 64, (1, LENGTH))

    def read(pieces: tuple[int, ...]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
        admitted = Admitted.make(run, bundle.manifest, Probe(64, 64), 1, 1)
        call = StepLoop(run, bundle.manifest, admitted, room=LENGTH + 4)
        end = 0
        for piece in pieces:
            start, end = end, end + piece
            logits = call(tokens[:, start:end], np.array([end], np.int32), piece)
        return logits, [call.values[state.step_input] for state in caches(bundle)]

    (logits, kept), (wanted_logits, wanted) = read(chunks), read((LENGTH,))
    np.testing.assert_array_equal(logits, wanted_logits)
    for found, want in zip(kept, wanted, strict=True):
        np.testing.assert_array_equal(found, want)
        assert np.abs(found.astype(int)).max() > LARGEST / HEADROOM / 2  # it was written


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("name", "config"), LANGUAGE_MODELS)
def test_tokens_do_not_depend_on_prefill_chunks(
    beams: int, name: str, config: str, int8: Lowered
) -> None:
    bundle = int8(name, config)
    runner = OrtRunner(bundle, threads=1)
    limit = bundle.manifest.limits.max_total_tokens or 0
    requests = [EngineRequest(rules(bundle, beams), prompt_ids=ids) for ids in prompts(limit - 8)]
    alone = [decode(runner, [request], WHOLE)[0] for request in requests]
    assert_alike(decode(runner, requests, WHOLE), alone)
    assert_alike(staggered(runner, requests, PIECES), alone)  # chunks, and shared prefixes
    runner.close()


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", WITH_SOURCE)
def test_tokens_do_not_depend_on_other_sequences(name: str, beams: int, int8: Lowered) -> None:
    bundle = int8(name, EXPORTED)
    runner = OrtRunner(bundle, threads=1)
    requests = prompted(bundle, beams)
    alone = [decode(runner, [request], WHOLE)[0] for request in requests]
    assert_alike(decode(runner, requests, WHOLE), alone)
    found = staggered(runner, requests, PIECES, shares_prefixes=False)
    assert_alike(found, alone)
    runner.close()


@pytest.mark.parametrize("name", CACHED)
def test_scales_have_a_margin_above_the_calibrated_range(name: str, bundles: Bundles) -> None:
    bundle = bundles(name, "odd")
    graphs = bundle.manifest.graphs
    run = LazySessions({key: bundle_path(bundle, key) for key in graphs})
    scales = cache_scales(bundle.manifest, run)
    reach = {state.name: np.zeros(len(scales[state.name])) for state in caches(bundle)}
    for done in calibration_runs(bundle.manifest, run, seed=0):
        for state, cells in done.caches.items():
            far = np.abs(cells).max(axis=(0, 2)).ravel()
            reach[state] = np.maximum(reach[state], far)
    for state, far in reach.items():
        padding = far == 0
        assert padding.any()  # odd heads are padded
        reached = scales[state] * LARGEST / HEADROOM
        np.testing.assert_allclose(reached[~padding], far[~padding], rtol=1e-6)
        assert (scales[state] > 0).all()


def test_calibration_run_replays_the_same_tokens(bundles: Bundles) -> None:
    bundle = bundles("gpt2", "plain")
    run = LazySessions({"step": bundle_path(bundle, "step")})
    first = calibration_runs(bundle.manifest, run, seed=1)
    other = calibration_runs(bundle.manifest, run, seed=2, follow=first)
    again = calibration_runs(bundle.manifest, run, seed=1, follow=first)

    def fed(done: CalibrationRun) -> NDArray[np.int64]:
        return np.concatenate(done.tokens, axis=1)

    np.testing.assert_array_equal(fed(other[0]), fed(first[0]))
    np.testing.assert_array_equal(again[1].logits[-1], first[1].logits[-1])
    drawn = fed(first[0])[1::2]
    assert len({tuple(row) for row in drawn.tolist()}) == len(drawn)  # no two rows alike


@pytest.mark.parametrize("name", UNCACHED)
def test_decoder_without_fused_attention_has_no_cache_to_lower(name: str, int8: Lowered) -> None:
    bundle = int8(name, EXPORTED)
    assert {state.dtype for state in bundle.manifest.states} == {"float32"}
    assert reported(bundle)["cache"] is None


def too_small(scales: Scales) -> Scales:
    return {name: scale / 8 for name, scale in scales.items()}


def of_the_wrong_channel(scales: Scales) -> Scales:
    spread = {name: scale * np.geomspace(0.1, 10, len(scale)) for name, scale in scales.items()}
    return {name: scale.astype(np.float32) for name, scale in spread.items()}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(
            name,
            fault,
            marks=[] if name in (LANGUAGE_MODELS[0][0], WITH_SOURCE[0]) else [pytest.mark.full],
        )
        for fault in (too_small, of_the_wrong_channel)
        for name in CACHED
    ],
)
def test_cache_that_changes_logits_too_much_stays_float32(
    name: str,
    fault: Callable[[Scales], Scales],
    twins: Twins,
    bundles: Bundles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "export.quantization.lower_precision.cache_scales",
        lambda manifest, run: fault(cache_scales(manifest, run)),
    )
    bundle = lowered(bundles(name, "odd"), twins(name, "odd"), tmp_path)
    assert reported(bundle)["cache"] == "float32"
    assert reported(bundle)["cache_cosine"] < 0.98
    assert reported(bundle)["layers"] > 0  # the rest is int8
    assert {state.dtype for state in caches(bundle)} == {"float32"}
    OrtRunner(bundle, threads=1).close()  # manifest and graph fit
