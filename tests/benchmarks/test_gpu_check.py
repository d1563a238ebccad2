"""The checks for a card, run on host memory: they pass where they should, and can fail."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks.gpu import __main__ as gpu_check
from benchmarks.gpu import speed, stateless
from benchmarks.gpu.card import Card, Outcome, bandwidth, differences, table
from export.precision import Precision
from inference.bundle.manifest import Bundle
from inference.engine.runners.ort.bound_graph import BoundGraph
from inference.generation import Generation
from tests.export.conftest import Bundles, bundles, twins
from tests.export.twin import EXPORTED
from tests.inference.engine.host_device import HostDevice
from tests.inference.engine.toy_bundles import attention_bundle, language_bundle, recurrent_bundle

__all__ = ["bundles", "twins"]


class HostCard(Card):
    """A card of host memory."""

    name = "host"

    def device(self, *, captures: bool = True) -> HostDevice:
        return HostDevice(graph_limit=192 if captures else 0)


def checkable(bundle: Bundle) -> Bundle:
    """A toy bundle with what an exported one has."""
    rules = Generation(max_new_tokens=20, eos_token_ids=(1,), pad_token_id=0)
    if "admit" in bundle.manifest.graphs:
        rules = rules.model_copy(update={"decoder_start_ids": (0,)})
    return Bundle(bundle.folder, bundle.manifest.model_copy(update={"generation": rules}))


def results(bundle: Bundle, reference: Bundle) -> dict[str, Outcome]:
    return {each.check: each for each in gpu_check.of_bundle(HostCard(), bundle, reference)}


@pytest.mark.parametrize("build", [language_bundle, attention_bundle, recurrent_bundle])
def test_generator_passes_every_check(build: Callable[[Path], Bundle], tmp_path: Path) -> None:
    bundle = checkable(build(tmp_path))
    found = results(bundle, bundle)
    assert list(found) == ["placement", "scores", "tokens", "graphs on = off", "4 beams"]
    assert all(each.is_passed for each in found.values()), found
    assert found["tokens"].found["equal_tokens"] == 1
    assert found["placement"].found["on_device"] > 0


def test_other_weights_fail(tmp_path: Path) -> None:
    bundle = checkable(language_bundle(tmp_path / "one"))
    other = checkable(language_bundle(tmp_path / "other"))
    path = other.path("step.onnx")
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name == "output":
            tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, path)
    found = results(bundle, other)
    assert found["scores"].is_passed is False
    assert found["tokens"].is_passed is False
    assert found["graphs on = off"].is_passed


def test_stale_graph_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, addresses = checkable(language_bundle(tmp_path)), BoundGraph._addresses
    monkeypatch.setattr(BoundGraph, "_addresses", lambda self: len(addresses(self)[0][2]))
    found = results(bundle, bundle)
    assert any(each.is_passed is False for each in found.values())


def test_graph_that_does_not_load_is_a_failed_check_and_the_next_ones_run(tmp_path: Path) -> None:
    bundle = checkable(language_bundle(tmp_path))
    bundle.path("step.onnx").write_bytes(b"damaged")
    found = list(gpu_check.of_bundle(HostCard(), bundle, bundle))
    assert [each.is_passed for each in found] == [False] * 5
    assert "step.onnx" in found[0].found["error"]


@pytest.mark.full
def test_stateless_outputs_are_compared(bundles: Bundles, tmp_path: Path) -> None:
    bundle = bundles("clip", EXPORTED)
    found = results(bundle, bundle)
    assert list(found) == ["placement", "outputs"]
    assert all(each.is_passed for each in found.values()), found
    outcome = stateless.speed(HostCard(), bundle, "image", batch=2, times=2)
    assert outcome.found["rows_per_s"] > 0


def test_nan_fails() -> None:
    worst, least = differences(np.ones((2, 3)), np.full((2, 3), np.nan))
    assert not worst <= 1
    assert not least >= 0.9


def test_speed_of_a_generator_is_measured(tmp_path: Path) -> None:
    bundle = checkable(language_bundle(tmp_path))
    found = speed.ours(HostCard(), bundle, batch=2, bytes_per_s=1e9, new=6).found
    assert found["tokens_per_s"] > 0
    assert found["share_of_roofline"] > 0


def test_bandwidth_of_the_device_is_measured() -> None:
    assert bandwidth(HostDevice(), nbytes=1 << 20) > 0


def test_others_that_find_no_card_are_named(tmp_path: Path) -> None:
    others = [speed.of_transformers]
    if importlib.util.find_spec("ctranslate2"):  # of the extra `bench`
        others.append(speed.of_ctranslate2)
    for of_other in others:
        outcome = of_other("gpt2-124m", 1, tmp_path, 0)
        assert outcome.is_passed is None
        assert "finds no CUDA" in outcome.found["not measured"]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_encoder_of_transformers_without_a_card_is_named(is_compiled: bool, tmp_path: Path) -> None:
    given = ("bert-base", "text", 1, tmp_path, 0)
    outcome = stateless.speed_of_transformers(*given, is_compiled=is_compiled)
    assert "finds no CUDA" in outcome.found["not measured"]
    assert ("compile" in outcome.check) == is_compiled


def test_without_a_card_one_line_and_nothing_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "gpu.json"
    assert gpu_check.main(["--output", str(output)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("gpu-check: onnxruntime ")
    assert captured.err.count("\n") == 1
    assert not captured.out
    assert not output.exists()


def test_outcomes_are_written_and_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = checkable(language_bundle(tmp_path / "bundle"))
    monkeypatch.setattr(gpu_check, "check_card", lambda number: None)
    monkeypatch.setattr(gpu_check, "Card", HostCard)
    monkeypatch.setattr(gpu_check, "example", lambda name, precision, folder: bundle)
    output = tmp_path / "results" / "gpu.json"
    arguments = ["--output", str(output), "--no-speed", "--models", "example-gpt"]
    assert gpu_check.main(arguments) == 0
    written = json.loads(output.read_text())["outcomes"]
    assert len(written) == 3 * 5
    bundle.path("step.onnx").write_bytes(b"damaged")
    assert gpu_check.main(arguments) == 1


def test_table_has_a_row_for_each_outcome() -> None:
    found = [Outcome("tokens", "m", "fp16", True, {"share": 0.5}), Outcome("speed", "m", "", None)]
    assert table(found).row_count == 2


def test_precisions_of_the_examples_are_those_of_cuda() -> None:
    assert all(Precision.INT8 not in each for each in gpu_check.EXAMPLES.values())
