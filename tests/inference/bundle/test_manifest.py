"""The contract between export and serving, seen from the reader's side."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from inference.bundle.manifest import Graph, Manifest, Role, Tensor
from inference.bundle.reader import newest_bundle, open_bundle, read_manifest, versions
from inference.errors import BundleError
from tests.inference.manifests import make_manifest


def make_bundle(repository: Path, name: str = "clip", version: int = 1) -> Path:
    """A complete two-part bundle with empty graph files; its manifest's folder."""
    pixels = Tensor(name="pixels", dtype="uint8", shape=("B", 8, 8, 3), role=Role.PIXELS)
    graph = Graph(file="model.onnx", inputs=(pixels,), outputs=())
    graphs, parts = {"image": graph, "text": graph}, {"image": name, "text": f"{name}-text"}
    manifest = make_manifest(name, "zero-shot", graphs, version=version, parts=parts)
    for part in manifest.parts.values():
        folder = repository / part / str(version)
        folder.mkdir(parents=True)
        (folder / "model.onnx").touch()
    folder = repository / name / str(version)
    (folder / "bundle.json").write_text(manifest.model_dump_json())
    return folder


def test_manifest_survives_a_round_trip_through_json(tmp_path: Path) -> None:
    manifest = read_manifest(make_bundle(tmp_path))
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    assert manifest.graphs["image"].input(Role.PIXELS) is not None
    assert manifest.graphs["image"].output(Role.LOGITS) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read"),
        ("[]", "clip/1/bundle.json"),
        ('{"format": 99}', "has format 99, this version reads 2"),
        ('{"format": 2}', "Field required"),
    ],
)
def test_damaged_manifest_is_named_with_what_is_wrong(
    tmp_path: Path, content: str, message: str
) -> None:
    folder = make_bundle(tmp_path)
    (folder / "bundle.json").write_text(content)
    with pytest.raises(BundleError, match=message):
        read_manifest(folder)


def test_unknown_manifest_field_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path)
    fields = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps({**fields, "colour": "red"}))
    with pytest.raises(BundleError, match="colour"):
        read_manifest(folder)


def test_a_graph_missing_in_a_further_part_makes_the_bundle_incomplete(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path)
    (tmp_path / "clip-text" / "1" / "model.onnx").unlink()
    with pytest.raises(BundleError, match=r"clip-text/1/model\.onnx is missing"):
        open_bundle(folder)


def test_newest_bundle_skips_a_half_written_version_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_bundle(tmp_path, version=9)
    (tmp_path / "clip" / "10").mkdir()
    with caplog.at_level(logging.WARNING):
        assert newest_bundle(tmp_path, "clip").manifest.version == 9
    assert len(caplog.messages) == 1
    assert "skipped clip version 10" in caplog.messages[0]


def test_newest_version_is_by_number_and_not_by_name(tmp_path: Path) -> None:
    for version in (9, 10):
        make_bundle(tmp_path, version=version)
    (tmp_path / "clip" / "notes").mkdir()
    (tmp_path / "clip" / "0").mkdir()
    assert versions(tmp_path / "clip") == [10, 9]
    assert newest_bundle(tmp_path, "clip").manifest.version == 10
