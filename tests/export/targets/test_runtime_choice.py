"""`--runtime auto`: what is chosen from given timings, and what becomes of candidates that fail."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from benchmarks.local_model import torch_graphs
from examples import CHECKPOINTS
from export.graphs.to_onnx import to_onnx
from export.parity.verify import ParityError, Report
from export.pipeline import build
from export.pipeline.cli import export
from export.precision import Precision, Runtime
from export.targets import instance_config, target
from export.targets.instance_config import GAIN, Placed, best, measured, placements
from export.targets.runtime_choice import choose, time_calls
from export.triton_config import stateless_config
from inference.bundle.manifest import Bundle, Manifest, Placement
from inference.bundle.reader import newest_bundle
from tests.export.pipeline.test_publish import IMAGE

NAME = "example-bert-sentiment"
ONE, TWO = Placement(instances=1, threads=4), Placement(instances=2, threads=2)


def _times(
    onnxruntime: tuple[float, ...], openvino: tuple[float, ...]
) -> dict[str, dict[str, float]]:
    return {
        f"cell {index}": {"onnxruntime": one, "openvino": other}
        for index, (one, other) in enumerate(zip(onnxruntime, openvino, strict=True))
    }


def test_the_least_geometric_mean_is_chosen() -> None:
    """Not the least sum: the shortest calls count as much as the longest."""
    choice = choose(_times((1.0, 100.0), (3.0, 90.0)), {})
    assert choice.runtime == "onnxruntime"
    assert choice.relative == {"onnxruntime": 1.0, "openvino": pytest.approx(1.643, abs=1e-3)}
    assert choose(_times((2.0, 100.0), (1.0, 101.0)), {}).runtime == "openvino"
    assert choose(_times((1.0,), (1.0,)), {}).runtime == "onnxruntime"


def test_one_candidate_is_chosen_and_the_reason_of_the_other_is_kept() -> None:
    choice = choose({"cell": {"onnxruntime": 5.0}}, {"openvino": "not installed"})
    assert choice.runtime == "onnxruntime"
    assert choice.dropped == {"openvino": "not installed"}
    assert choice.table().row_count == 2


@pytest.mark.parametrize(
    ("cores", "wanted"),
    [(1, [(1, 2)]), (2, [(1, 2)]), (3, [(1, 3)]), (4, [(1, 4), (2, 2)]), (16, [(1, 16), (2, 8)])],
)
def test_two_instances_need_two_cores_each(cores: int, wanted: list[tuple[int, int]]) -> None:
    assert [(each.instances, each.threads) for each in placements(cores)] == wanted


def test_a_second_instance_must_be_worth_its_memory() -> None:
    assert best({ONE: 100.0, TWO: 100.0 * GAIN - 1}).chosen == ONE
    assert best({ONE: 100.0, TWO: 100.0 * GAIN + 1}).chosen == TWO


def test_a_placement_is_written_to_the_configuration() -> None:
    text = stateless_config("x", IMAGE, placement=TWO)
    parsed = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert parsed.instance_group[0].count == 2
    assert parsed.parameters["intra_op_thread_count"].string_value == "2"
    default = Placement(instances=1, threads=2)
    assert stateless_config("x", IMAGE, placement=default) == stateless_config("x", IMAGE)


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's graph, of operators that both runtimes have."""
    [lowering] = torch_graphs(CHECKPOINTS / NAME).lowerings.values()
    path = tmp_path_factory.mktemp("graph") / lowering.graph.file
    to_onnx(replace(lowering, is_fused=False), path)
    return path


@pytest.fixture
def exported_once(graph_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "to_onnx", lambda _, path: shutil.copy(graph_file, path))


def _exported(repository: Path, precision: Precision = Precision.FP32) -> Manifest:
    export(
        str(CHECKPOINTS / NAME),
        repository=repository,
        runtime=Runtime.AUTO,
        precision=precision,
    )
    return newest_bundle(repository, NAME).manifest


@pytest.mark.slow
@pytest.mark.usefixtures("exported_once")
def test_the_faster_runtime_is_published_with_its_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Bundle] = {}

    def slow_onnxruntime(bundles: dict[str, Bundle]) -> dict[str, dict[str, float]]:
        seen.update(bundles)
        assert set(time_calls(bundles, rounds=1)) == {
            f"text, batch {batch}, {length} tokens" for batch in (1, 8) for length in (16, 128)
        }
        return _times((2.0, 4.0), (1.0, 2.0))

    monkeypatch.setattr(build, "time_calls", slow_onnxruntime)
    monkeypatch.setattr(build, "choose_placement", lambda _: Placed(TWO, {ONE: 10.0, TWO: 20.0}))
    manifest = _exported(tmp_path)
    assert list(seen) == ["onnxruntime", "openvino"]
    assert (manifest.runtime, manifest.placement) == ("openvino", TWO)
    config = (tmp_path / NAME / "config.pbtxt").read_text()
    parsed = text_format.Parse(config, model_config_pb2.ModelConfig())
    assert (parsed.backend, parsed.instance_group[0].count) == ("triptych_openvino", 2)
    report = json.loads((tmp_path / NAME / "1" / "report.json").read_text())["runtime_choice"]
    assert report["runtime"] == "openvino"
    assert report["relative"] == {"onnxruntime": 2.0, "openvino": 1.0}
    assert report["calls_per_second"] == {"1 x 4 threads": 10.0, "2 x 2 threads": 20.0}
    assert "relative time" in capsys.readouterr().out
    _exported(tmp_path)
    assert "version 1 is up to date" in capsys.readouterr().out
    monkeypatch.setattr(instance_config, "TURN_S", 0.01)
    rates = measured(newest_bundle(tmp_path, NAME), [Placement(instances=2, threads=2)])
    assert min(rates.values()) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("exported_once")
def test_a_candidate_that_fails_is_dropped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse_openvino(graphs: object, bundle: Bundle) -> Report:
        if bundle.manifest.runtime == "openvino":
            raise ParityError("too far from PyTorch")
        return Report()

    monkeypatch.setattr(build, "verify", refuse_openvino)
    monkeypatch.setattr(build, "choose_placement", lambda _: Placed(ONE, {}))
    assert _exported(tmp_path).runtime == "onnxruntime"
    report = json.loads((tmp_path / NAME / "1" / "report.json").read_text())["runtime_choice"]
    assert report["dropped"] == {"openvino": "too far from PyTorch"}
    assert "dropped: too far from PyTorch" in capsys.readouterr().out


def test_without_any_candidate_the_reasons_are_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise ParityError("it is Sunday")

    monkeypatch.setattr(target, "to_onnx", refuse)
    with pytest.raises(typer.Exit):
        _exported(tmp_path)
    error = capsys.readouterr().err
    assert "onnxruntime: it is Sunday; openvino: it is Sunday" in error
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_runtime_that_this_processor_lacks_something_for_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("inference.openvino_core.has_bf16", lambda: False)
    with pytest.raises(typer.Exit):
        _exported(tmp_path, Precision.BF16)
    error = capsys.readouterr().err
    assert "onnxruntime: --precision bf16 is not available with --runtime onnxruntime" in error
    assert "openvino: --runtime openvino has no bf16 here: this processor has no bfl" in error


def test_placement_without_rivals_says_that_nothing_was_timed() -> None:
    one, two = Placement(instances=1, threads=2), Placement(instances=2, threads=2)
    assert Placed(one, {}).line() == "1 x 2 threads (no other one has enough cores)"
    assert Placed(two, {one: 10.0, two: 18.25}).line().endswith("2 x 2 threads 18.2)")
