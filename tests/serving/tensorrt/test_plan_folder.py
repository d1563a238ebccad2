"""Plans are found whole and by their key, or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from inference.bundle.manifest import Graph, Profile
from inference.errors import SetupError
from serving.tensorrt.plan_folder import PlanFolder
from serving.tensorrt.plan_key import PlanKey, graph_hash

KEY = PlanKey("clip-text", "ab12", "10.16.1", "9.0")


def test_written_plan_is_found_by_its_key_alone(tmp_path: Path) -> None:
    folder = PlanFolder(tmp_path / "plans")
    assert folder.find(KEY) is None
    path = folder.write(KEY, b"plan")
    assert folder.find(KEY) == path
    assert path.read_bytes() == b"plan"
    for field in ("model", "graph", "tensorrt", "compute_capability"):
        other = replace(KEY, **{field: "other"})
        assert folder.find(other) is None
        assert other.file != KEY.file


def test_plan_of_another_tensorrt_or_card_is_named_in_one_line(tmp_path: Path) -> None:
    folder = PlanFolder(tmp_path)
    folder.write(KEY, b"plan")
    folder.write(replace(KEY, model="clip-text-2"), b"another model's")
    newer = replace(KEY, tensorrt="11.0")
    assert folder.others(newer) == [KEY]
    assert newer.difference(KEY) == "built by TensorRT 10.16.1, this is 11.0"
    card = replace(KEY, compute_capability="12.0")
    assert card.difference(KEY) == "built for compute capability 9.0, this GPU has 12.0"
    assert replace(KEY, graph="c").difference(KEY) == "built from another graph"


@pytest.mark.parametrize("damage", ["truncated", "changed", "no record", "record of another"])
def test_damaged_plan_is_not_found(damage: str, tmp_path: Path) -> None:
    folder = PlanFolder(tmp_path)
    path = folder.write(KEY, b"a plan of some length")
    record = path.with_name(f"{path.name}.json")
    if damage == "truncated":
        path.write_bytes(b"a plan")
    elif damage == "changed":
        path.write_bytes(b"a plan of same length")
    elif damage == "no record":
        record.unlink()
    else:
        fields = json.loads(record.read_text())
        fields["key"]["tensorrt"] = "9.0"
        record.write_text(json.dumps(fields))
    assert folder.find(KEY) is None
    folder.write(KEY, b"built again")
    assert folder.find(KEY) == path


def test_build_that_was_killed_leaves_nothing_that_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = PlanFolder(tmp_path)
    written: list[str] = []

    def killed(*given: object) -> None:
        written.extend(path.name for path in tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.write(KEY, b"half")
    assert [path.name for path in tmp_path.iterdir()] == written != []
    assert folder.find(KEY) is None
    with folder.locked():
        assert {path.name for path in tmp_path.iterdir()} == {".lock"}


def test_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=f"cannot write plans to {tmp_path}/file"):
        PlanFolder(tmp_path / "file")


def test_hash_follows_graph_weights_and_profiles(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"graph")
    profile = Profile(shapes={"x": ((1,), (2,), (3,))})
    graph = Graph(file="model.onnx", inputs=(), outputs=(), profiles=(profile,))
    first = graph_hash(file, graph)
    assert graph_hash(file, graph) == first
    wider = graph.model_copy(update={"profiles": (Profile(shapes={"x": ((1,), (2,), (4,))}),)})
    assert graph_hash(file, wider) != first
    (tmp_path / "model.onnx.data").write_bytes(b"weights")
    assert graph_hash(file, graph) != first
