"""The host accesses device memory only by fetches; 16-bit bundles run; edits agree on devices."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.bundle.manifest import Bundle, Manifest
from inference.engine.engine_core import decode
from inference.engine.runner_factory import make_runner
from inference.engine.runners.candidates import CellEdits, HostLogits
from inference.engine.runners.ort.device import CpuDevice
from inference.engine.runners.ort.logits_graphs import CellEditor
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.ort.sessions import session_options
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.engine.state.device import Device
from inference.errors import BundleError, SetupError
from inference.generation import Generation
from inference.sequences import Finished
from tests.inference.engine.host_device import HostDevice
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    halved,
    language_bundle,
    recurrent_bundle,
)

WAYS: list[dict[str, object]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 2},
    {"repetition_penalty": 1.4, "logit_bias": {4: 0.5}},
    {"num_beams": 2, "repetition_penalty": 1.2, "bad_words_ids": ((5,),)},
    {"do_sample": True, "seed": 3, "top_k": 5, "num_return_sequences": 2},
]
BUILDERS = [attention_bundle, recurrent_bundle, language_bundle]


def requests(bundle: Bundle, count: int = 20) -> list[EngineRequest]:
    """Requests of all kinds of search, with sources as the bundle takes them."""
    rng = np.random.default_rng(7)
    has_pixels = any(state.name == "hidden" for state in bundle.manifest.states)
    has_source = not has_pixels and "admit" in bundle.manifest.graphs
    made = []
    for number in range(count):
        rules = Generation.model_validate(
            {"decoder_start_ids": (0,), "eos_token_ids": (1,), "pad_token_id": 0,
             "max_new_tokens": 15, **WAYS[number % len(WAYS)]}
        )  # fmt: skip
        source = rng.integers(0, VOCABULARY, rng.integers(1, 30))
        pixels = rng.integers(0, 256, (2, 2, 3)).astype(np.uint8)
        prompt = rng.integers(0, VOCABULARY, rng.integers(0, 3 if has_source else 9)).tolist()
        made.append(
            EngineRequest(
                rules,
                source if has_source else None,
                pixels if has_pixels else None,
                prompt_ids=tuple(prompt),
            )
        )
    return made


def tokens(found: list[Finished]) -> list[list[tuple[int, ...]]]:
    return [[hypothesis.token_ids for hypothesis in one.hypotheses] for one in found]


@pytest.mark.parametrize(
    "access",
    [
        np.asarray,
        len,
        list,
        float,
        bool,
        memoryview,
        np.from_dlpack,
        lambda tensor: tensor[0],
        lambda tensor: operator.setitem(tensor, 0, 1),
        lambda tensor: tensor + 1,
        lambda tensor: tensor.ctypes,
    ],
)
def test_host_access_without_a_fetch_raises(access: Callable[[object], object]) -> None:
    tensor = HostDevice().allocate(4, "float32")
    with pytest.raises((TypeError, AttributeError)):
        access(tensor)


@pytest.mark.parametrize("build", BUILDERS)
def test_only_candidates_are_fetched(build: Callable[[Path], Bundle], tmp_path: Path) -> None:
    """Neither states nor logits: k candidates of a row, and the scores of edited cells."""
    device, bundle = HostDevice(), build(tmp_path)
    asked = [one for one in requests(bundle) if not one.rules.do_sample]
    decode(OrtRunner(bundle, 1, device=device), asked, Capacity(rows=16))
    matrices = {shape for shape, _ in device.fetched if len(shape) > 1}
    assert {len(shape) for shape, _ in device.fetched} == {1, 2}
    assert max(columns for _, columns in matrices) <= 10 < VOCABULARY


@pytest.mark.parametrize("build", BUILDERS)
def test_devices_agree(build: Callable[[Path], Bundle], tmp_path: Path) -> None:
    bundle = build(tmp_path)
    cpu, host = (
        decode(OrtRunner(bundle, 1, device=device), requests(bundle), Capacity(rows=16))
        for device in (CpuDevice(), HostDevice())
    )
    assert tokens(cpu) == tokens(host)
    for one, other in zip(cpu, host, strict=True):
        assert [h.score for h in one.hypotheses] == [h.score for h in other.hypotheses]


@pytest.mark.parametrize("build", BUILDERS)
def test_float16_bundle_answers_as_in_float32(
    build: Callable[[Path], Bundle], tmp_path: Path, device: Device
) -> None:
    full = build(tmp_path / "full")
    half = halved(build(tmp_path / "half"))
    asked = requests(full)
    runner = OrtRunner(half, 1, device=device)
    found = decode(runner, asked, Capacity(rows=16))
    wanted = decode(OrtRunner(full, 1), asked, Capacity(rows=16))
    alike = [one == other for one, other in zip(tokens(found), tokens(wanted), strict=True)]
    assert sum(alike) >= 0.8 * len(alike), "float16 rounds; a few near ties may differ"
    for one, other, same in zip(found, wanted, alike, strict=True):
        if same:
            scores = [h.score for h in other.hypotheses]
            assert [h.score for h in one.hypotheses] == pytest.approx(scores, rel=0.02, abs=0.02)
    assert runner.footprint.position * 2 == OrtRunner(full, 1).footprint.position


@given(
    edits=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=20, unique=True
    ),
    seed=st.integers(0, 99),
)
def test_edits_by_graph_are_those_of_numpy(edits: list[tuple[int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, size = rng.normal(size=(4, 10)).astype(np.float32), len(edits)
    rows, token_ids = np.array(edits).T
    offset = rng.choice([0.0, -0.5, -np.inf], size).astype(np.float32)
    bias, factor = rng.normal(size=size), rng.uniform(0.5, 2, size)
    cells = CellEdits(rows, token_ids, bias.astype(np.float32), factor.astype(np.float32), offset)
    expected = logits.copy()
    raw = HostLogits(expected, lambda *_: pytest.fail("not ranked")).edit(cells)
    device = HostDevice()
    tensor = device.view(device.allocate(40, "float32"), (4, 10))
    device.upload(logits, tensor)
    assert EDITOR.run(tensor, cells).tolist() == raw.tolist()
    np.testing.assert_array_equal(device.fetch(tensor), expected)


EDITOR = CellEditor(session_options(threads=1), HostDevice())


def test_bfloat16_is_refused_where_the_provider_lacks_it(tmp_path: Path) -> None:
    bundle = language_bundle(tmp_path)
    fields = bundle.manifest.model_dump_json().replace('"float32"', '"bfloat16"')
    bundle = Bundle(bundle.folder, Manifest.model_validate_json(fields))
    with pytest.raises(BundleError, match="bfloat16, which CPUExecutionProvider does not support"):
        make_runner(bundle)


@pytest.mark.parametrize("device", ["rocm", "cuda:x", "cuda:-1", "cpu:0", ""])
def test_unknown_device_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(SetupError, match=f"device '{device}' is not supported"):
        make_runner(language_bundle(tmp_path), device)


def test_bundle_for_the_cpu_is_refused_on_cuda(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is for the CPU: export it with --device cuda"):
        make_runner(language_bundle(tmp_path), "cuda:0")


def test_cuda_without_its_provider_is_refused(tmp_path: Path) -> None:
    bundle = language_bundle(tmp_path)
    manifest = bundle.manifest.model_copy(update={"device": "cuda"})
    with pytest.raises(SetupError, match=r"no CUDAExecutionProvider: install triptych\[serve-gpu"):
        make_runner(Bundle(bundle.folder, manifest), "cuda:0")
