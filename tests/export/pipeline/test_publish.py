"""Publishing is atomic, and manifests refuse what a decoder cannot follow."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from export.pipeline import publish as publishing
from export.pipeline.manifest import Request, build_manifest
from export.pipeline.publish import Staging, config, find_published, next_version, publish, staging
from inference.bundle.manifest import Graph, Manifest, SourceInfo, Tensor
from inference.bundle.reader import newest_bundle, open_bundle, versions
from inference.bundle.repository import VersionLock
from inference.errors import CheckpointError
from tests.export.conftest import pair_of
from tests.export.twins import make_twin
from tests.inference.tiny_models import make_manifest

PARTS = {"image": "clip", "text": "clip-text"}
EMBEDDING = Tensor(name="embedding", dtype="float32", shape=("B", 8))
IMAGE = Graph(
    file="model.onnx",
    inputs=(Tensor(name="pixels", dtype="uint8", shape=("B", 4, 6, 3)),),
    outputs=(EMBEDDING,),
)
TEXT = Graph(
    file="model.onnx",
    inputs=(
        Tensor(name="token_ids", dtype="int64", shape=("B", "T")),
        Tensor(name="lengths", dtype="int32", shape=("B",)),
    ),
    outputs=(EMBEDDING,),
)


def _manifest(version: int, content: str = "a") -> Manifest:
    graphs, source = {"image": IMAGE, "text": TEXT}, SourceInfo(name="clip", content_hash=content)
    return make_manifest("clip", "zero-shot", graphs, version=version, source=source, parts=PARTS)


def _stage(stage: Staging) -> None:
    for model in PARTS.values():
        (stage.part(model) / "model.onnx").write_bytes(b"graph")


def _publish(repository: Path, content: str = "a") -> int:
    manifest = _manifest(next_version(repository, PARTS), content)
    with staging(repository) as stage:
        _stage(stage)
        publish(stage, repository, manifest)
    return manifest.version


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "model_repository"


def test_published_version_opens_and_no_other_file_remains(repository: Path) -> None:
    assert _publish(repository) == 1
    assert open_bundle(repository / "clip" / "1").manifest == _manifest(1)
    assert sorted(path.name for path in repository.iterdir()) == ["clip", "clip-text"]
    assert [path.name for path in repository.parent.iterdir()] == ["model_repository"]


def test_equal_content_is_up_to_date(repository: Path) -> None:
    assert find_published(repository, "clip", "a") is None
    _publish(repository)
    assert find_published(repository, "clip", "a") == 1
    assert find_published(repository, "clip", "b") is None


def test_older_equal_content_is_not_up_to_date(repository: Path) -> None:
    _publish(repository, "a")
    _publish(repository, "b")
    assert find_published(repository, "clip", "a") is None


def test_last_two_versions_of_every_part_are_kept(repository: Path) -> None:
    for content in "abcd":
        _publish(repository, content)
    assert versions(repository / "clip") == [4, 3]
    assert versions(repository / "clip-text") == [4, 3]


def test_manifest_is_written_last(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[str] = []
    rename = Path.rename

    def record(self: Path, target: Path) -> Path:
        renamed.append(target.parent.name)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", record)
    _publish(repository)
    assert renamed == ["clip-text", "clip"]


def test_interrupted_publishing_leaves_nothing_that_loads(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _publish(repository, "a")
    sync = publishing._sync

    def fail_at_the_owner(folder: Path) -> None:
        if folder.name == "clip":
            raise KeyboardInterrupt
        sync(folder)

    monkeypatch.setattr(publishing, "_sync", fail_at_the_owner)
    with pytest.raises(KeyboardInterrupt):
        _publish(repository, "b")
    assert newest_bundle(repository, "clip").manifest.version == 1
    assert [path.name for path in repository.parent.iterdir()] == ["model_repository"]
    monkeypatch.setattr(publishing, "_sync", sync)
    assert _publish(repository, "b") == 3  # above the part that did arrive
    assert versions(repository / "clip-text") == [3, 1]


def test_half_written_version_is_passed_over_and_cleared(repository: Path) -> None:
    _publish(repository, "a")
    (repository / "clip" / "2").mkdir()
    (repository / "clip" / "2" / "model.onnx").write_bytes(b"half")
    assert find_published(repository, "clip", "a") == 1
    assert newest_bundle(repository, "clip").version == 1
    assert _publish(repository, "b") == 3
    assert versions(repository / "clip") == [3, 1]


def test_config_is_the_same_bytes_for_every_version(repository: Path) -> None:
    _publish(repository, "a")
    first = (repository / "clip-text" / "config.pbtxt").read_bytes()
    _publish(repository, "b")
    assert (repository / "clip-text" / "config.pbtxt").read_bytes() == first
    assert config(_manifest(1), "clip") == config(_manifest(9), "clip")


def test_version_has_the_configuration_that_it_was_published_with(repository: Path) -> None:
    _publish(repository)
    for model in PARTS.values():
        own = repository / model / "1" / "config.pbtxt"
        assert own.read_bytes() == (repository / model / "config.pbtxt").read_bytes()


def test_served_version_outlives_newer_ones_until_it_is_served_no_more(repository: Path) -> None:
    _publish(repository, "a")
    lock = VersionLock()
    lock.hold({repository / "clip" / "1"})
    for content in "bcd":
        _publish(repository, content)
    assert versions(repository / "clip") == versions(repository / "clip-text") == [4, 3, 1]
    assert open_bundle(repository / "clip" / "1").version == 1
    lock.hold(set())
    _publish(repository, "e")
    assert versions(repository / "clip") == versions(repository / "clip-text") == [5, 4]


@pytest.fixture
def private_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_export_under_a_private_umask_is_as_readable_as_the_repository(
    repository: Path, private_umask: None, caplog: pytest.LogCaptureFixture
) -> None:
    repository.mkdir()
    repository.chmod(0o755)
    _publish(repository)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in repository.rglob("*")}
    assert modes == {0o755, 0o644}
    assert not caplog.messages


def test_export_to_a_repository_of_one_user_is_reported(
    repository: Path, private_umask: None, caplog: pytest.LogCaptureFixture
) -> None:
    _publish(repository)
    assert {stat.S_IMODE(path.stat().st_mode) for path in repository.rglob("*")} == {0o700, 0o600}
    [message] = caplog.messages
    assert "can be read by user" in message
    assert "chmod" in message


@pytest.mark.parametrize(
    ("name", "value", "token"),
    [
        ("decoder_start_token_id", 64, 64),
        ("decoder_start_token_id", [2, -1], -1),
        ("forced_bos_token_id", 64, 64),
        ("forced_eos_token_id", -1, -1),
        ("sequence_bias", [[[64], 1.0]], 64),
    ],
)
def test_default_token_outside_the_vocabulary_is_refused_by_name(
    name: str, value: Any, token: int, tmp_path: Path
) -> None:
    pair = pair_of("bart", "odd", tmp_path, make_twin("bart", "odd", tmp_path))
    values = {"decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 2, name: value}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    message = f"generation default {name} = {token} is outside the vocabulary of 64 tokens"
    with pytest.raises(CheckpointError, match=message):
        build_manifest(Request("twin"), 1, pair.source, pair.graphs())
