"""Publishing is atomic; bundles hold a check that they pass, and manifests that can be followed."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export.graphs import external_data
from export.parity.graph_runs import bundle_path
from export.parity.verify import Report
from export.pipeline import publish as publishing
from export.pipeline.manifest import Request, build_manifest
from export.pipeline.publish import Staging, config, find_published, next_version, publish, staging
from export.pipeline.self_checks import write_self_checks
from export.report.file_checks import FileChecks, checksums
from export.report.findings import Findings
from export.report.rows import Failure
from inference.bundle.manifest import Bundle, Graph, Manifest, SourceInfo, Tensor
from inference.bundle.reader import newest_bundle, open_bundle, versions
from inference.bundle.repository import VersionLock
from inference.bundle.self_check import FILE, SelfCheck, checksum
from inference.errors import CheckpointError
from tests.export.conftest import Bundles, Lowered, pair_of
from tests.export.twin import EXPORTED
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
        return FileChecks(bundle, Findings("", 1, "", "", (), {}, None, {}))

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
