"""Plans are built once for each key, and again where they do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference.bundle.manifest import Bundle
from inference.bundle.reader import open_bundle
from inference.errors import SetupError
from serving.tensorrt.builder import Target
from serving.tensorrt.building import Builds
from serving.tensorrt.plan_folder import PlanFolder
from tests.serving.triton.tiny import publish_times


class Builder:
    """Counts builds."""

    def __init__(self) -> None:
        self.built: list[tuple[str, bytes]] = []

    def __call__(
        self, target: Target, file: Path, profiles: Any, timings: bytes, progress: Any
    ) -> tuple[bytes, bytes]:
        progress("half way")
        self.built.append((file.parent.parent.name, timings))
        return f"plan of {file.parent.parent.name}".encode(), timings + b"."


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(publish_times(tmp_path / "models", "twice", 2))


def _builds(folder: Path, builder: Any, lines: list[str], version: str = "10.16") -> Builds:
    target = Target(SimpleNamespace(__version__=version))
    return Builds(PlanFolder(folder), target, "9.0", lines.append, builder)


def test_plan_is_built_once_and_then_found(tmp_path: Path, bundle: Bundle) -> None:
    builder, lines = Builder(), list[str]()
    builds = _builds(tmp_path / "plans", builder, lines)
    first = builds.ensure(bundle)
    assert first["twice"].read_bytes() == b"plan of twice"
    assert builds.ensure(bundle) == first
    assert len(builder.built) == 1
    assert [line.split("; ")[0] for line in lines[:2]] == [
        "building the plan of twice version 1 with TensorRT 10.16 for compute capability 9.0",
        "building the plan of twice version 1: half way",
    ]
    builds.ensure(bundle, again=True)
    assert [timings for _, timings in builder.built] == [b"", b"."], "the timings are kept"


def test_other_tensorrt_or_card_builds_beside_and_says_why(tmp_path: Path, bundle: Bundle) -> None:
    builder, lines = Builder(), list[str]()
    old = _builds(tmp_path / "plans", builder, lines).ensure(bundle)
    lines.clear()
    newer = _builds(tmp_path / "plans", builder, lines, "11.0")
    assert newer.ensure(bundle) != old
    assert lines[0] == (
        "twice has a plan that does not fit: built by TensorRT 10.16, this is 11.0; "
        "building another"
    )
    lines.clear()
    replace(newer, compute_capability="12.0").ensure(bundle)
    assert "built for compute capability 9.0, this GPU has 12.0" in " ".join(lines)
    assert old["twice"].exists(), "the other machine's plan stays"
    assert len(builder.built) == 3


def test_lookup_builds_nothing(tmp_path: Path, bundle: Bundle) -> None:
    builder = Builder()
    builds = _builds(tmp_path / "plans", builder, [])
    with pytest.raises(SetupError, match="none that fits is there"):
        builds.ensure(bundle, is_lookup=True)
    assert not builder.built
    assert builds.ensure(bundle) == builds.ensure(bundle, is_lookup=True)


def test_failed_build_leaves_no_plan(tmp_path: Path, bundle: Bundle) -> None:
    def fails(*arguments: Any) -> tuple[bytes, bytes]:
        raise SetupError("TensorRT cannot read model.onnx: no such operator")

    with pytest.raises(SetupError, match="no such operator"):
        _builds(tmp_path / "plans", fails, []).ensure(bundle)
    assert {path.name for path in (tmp_path / "plans").iterdir()} == {".lock"}
