"""Manifests and repositories, from the reader's side."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.bundle.manifest import Graph, Manifest, Role, Tensor
from inference.bundle.reader import newest_bundle, open_bundle, read_manifest, versions
from inference.bundle.repository import Repository, VersionLock, removable
from inference.errors import BundleError, SetupError
from tests.inference.tiny_models import make_manifest, publish
from tests.programs import run_program


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


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    publish(tmp_path, "a", None, "")
    return Repository(tmp_path)


def test_bundles_are_listed_and_further_parts_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(tmp_path, "clip", None, "", parts={"image": "clip", "text": "clip-text"})
    publish(tmp_path, "clip-text", None, "", complete=False)
    publish(tmp_path, "broken", None, "", complete=False)
    repository = Repository(tmp_path)
    for _ in range(3):
        assert repository.names() == ["clip"]
    assert caplog.messages == ["skipped broken: no complete version"]


def test_versions_are_newest_first_and_incomplete_ones_skipped_with_one_line(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (2, 9, 10):
        publish(repository.root, "a", None, "", version=version, complete=version != 9)
    for _ in range(3):
        assert [bundle.version for bundle in repository.complete("a")] == [10, 2, 1]
    assert repository.numbers("a") == [10, 9, 2, 1]
    assert len(caplog.messages) == 1
    assert "skipped a version 9" in caplog.messages[0]
    with pytest.raises(BundleError, match="not a complete bundle"):
        repository.open("a", 9)


def test_missing_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="triptych export"):
        Repository(tmp_path / "nowhere")


def test_bundle_in_a_folder_of_another_name_is_refused_and_named(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    publish(repository.root, "clip", None, "")
    (repository.root / "clip").rename(repository.root / "copied")
    assert repository.problem is None
    assert repository.complete("copied") == []
    assert "the folder is 'copied': rename the folder" in str(repository.problem)
    assert str(repository.problem) in caplog.text
    (repository.root / "copied").rename(repository.root / "clip")
    assert [bundle.version for bundle in repository.complete("clip")] == [1]


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


READ_AS_OTHER_USER = """
import logging, os, sys
from pathlib import Path
from inference.bundle.repository import Repository
import inference.bundle.manifest, pydantic
logging.basicConfig(format="%(message)s", stream=sys.stdout)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
repository = Repository(Path(sys.argv[1]))
for _ in range(2):
    for name in repository.names():
        print(name, [bundle.version for bundle in repository.complete(name)])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
@pytest.mark.parametrize(
    ("unreadable", "found", "warned"),
    [
        (".", "", "all bundles: user nobody cannot read"),
        ("a", "b [1]", "a: user nobody cannot read"),
        ("a/2", "a [1]", "a version 2: cannot read"),
        ("a/2/bundle.json", "a [1]", "a version 2: cannot read"),
    ],
)
def test_what_may_not_be_read_is_skipped_with_one_line(
    shared_folder: Path, unreadable: str, found: str, warned: str
) -> None:
    root = shared_folder
    publish(root, "a", None, "")
    publish(root, "a", None, "", version=2)
    publish(root, "b", None, "")
    (root / unreadable).chmod(0)
    lines = run_program(sys.executable, "-c", READ_AS_OTHER_USER, str(root)).splitlines()
    [warning] = [line for line in lines if line.startswith("skipped")]
    assert f"skipped {warned}" in warning
    assert "Permission denied" in warning
    if (root / unreadable).is_dir() and unreadable != "a/2":
        assert "(mode 0000 of root); permit it, as by chmod -R a+rX" in warning
    assert not found or lines.count(found) == 2


def test_repository_that_is_away_is_no_matter_of_rights(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    publish(repository.root, "clip", None, "")
    repository.root.rename(repository.root.with_name("away"))
    assert repository.names() == []
    [warning] = caplog.messages
    assert f"cannot read {repository.root}: No such file or directory; it is tried" in warning
    assert "chmod" not in warning
    repository.root.with_name("away").rename(repository.root)
    assert "clip" in repository.names()
    assert repository.problem is None


def test_held_version_is_not_removable_until_it_is_released(repository: Repository) -> None:
    folder = repository.root / "a" / "1"
    lock = VersionLock()
    for held in (True, False):
        lock.hold({folder} if held else set())
        with removable(folder) as is_removable:
            assert is_removable is not held


def test_version_that_becomes_complete_is_found(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    half = publish(repository.root, "a", None, "", version=2, complete=False)
    assert [bundle.version for bundle in repository.complete("a")] == [1]
    manifest = (repository.root / "a" / "1" / "bundle.json").read_text()
    (half / "bundle.json").write_text(manifest.replace('"version": 1', '"version": 2'))
    with caplog.at_level(logging.WARNING):
        assert [bundle.version for bundle in repository.complete("a")] == [2, 1]
