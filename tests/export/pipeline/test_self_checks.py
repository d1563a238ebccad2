"""Exported bundles hold a check that they pass, and that faults fail."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export.graphs import external_data
from export.parity.graph_runs import bundle_path
from export.parity.verify import Report
from export.pipeline.self_checks import write_self_checks
from export.report.file_checks import FileChecks, checksums
from export.report.findings import Findings
from export.report.rows import Failure
from inference.bundle.manifest import Bundle
from inference.bundle.self_check import FILE, SelfCheck, checksum
from tests.export.conftest import Bundles, Lowered
from tests.export.twin import EXPORTED

STAGED = ["gpt2", "marian", "vision-encoder-decoder", "bert", "clip", "vit"]


@pytest.fixture
def check(tmp_path: Path) -> Callable[[Bundle], FileChecks]:
    """A published copy of a bundle with its checks."""

    def publish(original: Bundle) -> FileChecks:
        manifest = original.manifest
        stage = tmp_path / "stage"
        shutil.copytree(original.folder.parent, stage)
        staged = Bundle(stage / manifest.name, manifest)
        report = Report(files=checksums(staged))
        write_self_checks(staged, report, lambda model: stage / model)
        for model in staged.models:
            (tmp_path / "repository" / model).mkdir(parents=True)
            (stage / model).rename(tmp_path / "repository" / model / "1")
        bundle = Bundle(tmp_path / "repository" / manifest.name / "1", manifest)
        findings = Findings("", 1, "", "", (), {}, None, {})
        return FileChecks(bundle, findings)

    return publish


@pytest.mark.parametrize("name", STAGED)
def test_bundle_passes_its_own_check(
    name: str, bundles: Bundles, check: Callable[[Bundle], FileChecks]
) -> None:
    checks = check(bundles(name, EXPORTED))
    assert checks.loads_as_exported().startswith(f"{len(checks.bundle.models)} models")
    for path in checks.bundle.folder.parents[1].rglob(FILE):
        assert path.stat().st_size < 20_000


def _change(checks: FileChecks, key: str, change: Callable[[onnx.ModelProto], None]) -> None:
    """Changes a graph and, as a faulty tool would, its recorded checksum."""
    path = bundle_path(checks.bundle, key)
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    recorded = SelfCheck.read(path.parent)
    assert recorded is not None
    assert isinstance(recorded.checksums, dict)
    recorded.checksums[path.name] = checksum(path)
    recorded.write(path.parent)


def _swap_scales(model: onnx.ModelProto) -> None:
    """Gives two layers of one width each other's scales."""
    scales = [t for t in model.graph.initializer if t.name.endswith("_scale")]
    one, other = next(
        (a, b)
        for i, a in enumerate(scales)
        for b in scales[i + 1 :]
        if a.dims == b.dims and a.raw_data != b.raw_data
    )
    one.raw_data, other.raw_data = other.raw_data, one.raw_data


def _double_a_norm(model: onnx.ModelProto) -> None:
    norm = next(n for n in model.graph.node if "Normalization" in n.op_type)
    weight = next(t for t in model.graph.initializer if t.name == norm.input[1])
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))


@pytest.mark.parametrize(("name", "key"), [("marian", "step"), ("bert", "text")])
def test_scales_of_another_layer_are_refused(
    name: str, key: str, int8: Lowered, check: Callable[[Bundle], FileChecks]
) -> None:
    checks = check(int8(name, EXPORTED))
    checks.loads_as_exported()
    _change(checks, key, _swap_scales)
    with pytest.raises(Failure, match="fails its self-check"):
        checks.loads_as_exported()


@pytest.mark.parametrize(
    ("name", "key"), [("gpt2", "step"), ("marian", "admit"), ("vit", "image"), ("clip", "text")]
)
def test_other_weights_are_refused(
    name: str, key: str, bundles: Bundles, check: Callable[[Bundle], FileChecks]
) -> None:
    checks = check(bundles(name, EXPORTED))
    _change(checks, key, _double_a_norm)
    with pytest.raises(Failure, match="fails its self-check"):
        checks.loads_as_exported()


def test_one_flipped_bit_of_a_weight_is_refused(
    int8: Lowered, check: Callable[[Bundle], FileChecks]
) -> None:
    checks = check(int8("marian", EXPORTED))
    path = bundle_path(checks.bundle, "step")
    weight = max(onnx.load(path).graph.initializer, key=lambda t: len(t.raw_data)).raw_data
    content = path.read_bytes()
    place = content.index(weight) + len(weight) // 2
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with pytest.raises(Failure, match=r"step\.onnx changed since the export"):
        checks.loads_as_exported()


def test_truncated_weights_beside_a_graph_are_refused(
    bundles: Bundles, check: Callable[[Bundle], FileChecks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_data, "EXTERNAL_DATA_BYTES", 0)
    checks = check(bundles("gpt2", EXPORTED))
    path = bundle_path(checks.bundle, "step")
    external_data.save(external_data.open_graph(path), path)
    data = external_data.data_path(path)
    report = Report(files=checksums(checks.bundle))
    write_self_checks(checks.bundle, report, lambda _: path.parent)
    assert checks.loads_as_exported().startswith("1 models")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(Failure, match=r"step\.onnx\.data changed since the export"):
        checks.loads_as_exported()


def test_tokens_of_a_confident_model_are_recorded(
    bundles: Bundles, check: Callable[[Bundle], FileChecks]
) -> None:
    checks = check(bundles("gpt2", EXPORTED))
    recorded = SelfCheck.read(checks.bundle.folder)
    assert recorded is not None
    assert len(recorded.outputs["tokens"]) == 3
    assert np.isfinite(recorded.outputs["log-probabilities"]).all()
