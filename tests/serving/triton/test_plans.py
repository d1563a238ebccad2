"""Bundles for TensorRT under a supervisor: a real Triton, with a stand-in for the native backend.

The stand-in loads the file that the configuration names, as the native backend does: joined to the
version's folder.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from inference.bundle.manifest import MANIFEST
from inference.errors import DeviceError
from serving.settings import triton_settings
from serving.tensorrt.plans import Plans
from serving.triton import bundle_loader, installation
from serving.triton.server import TritonServer
from tests.inference.tiny_models import publish
from tests.serving.triton.tiny import CONFIG, answer, brief_server, publish_times, settings, times

pytestmark = pytest.mark.integration

BACKEND = """
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"]) / args["model_version"]
        plan = folder / json.loads(args["model_config"])["default_model_filename"]
        self.factor = np.float32(plan.read_text())

    def execute(self, requests):
        x = [pb.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        return [pb.InferenceResponse([pb.Tensor("y", each * self.factor)]) for each in x]
"""
BUILD = """
import json, pathlib, sys
bundle, plans = map(pathlib.Path, sys.argv[1:3])
name, version = bundle.parts[-2:]
if name == "broken":
    print(json.dumps({"error": "TensorRT cannot read model.onnx: no such operator"}))
else:
    plans.mkdir(exist_ok=True)
    path = plans / f"{name}-{version}.plan"
    path.write_text(str(10 * int(version)))
    print(json.dumps({"plans": {name: str(path)}}))
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository of a machine that has a GPU and TensorRT's backend, for the supervisor."""
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(triton_settings, "GPU", tmp_path / "nvidiactl")
    backends = tmp_path / "backends"
    (backends / "tensorrt").mkdir(parents=True)
    (backends / "tensorrt" / "model.py").write_text(BACKEND)
    for ours in installation.BACKENDS.glob("*/model.py"):
        (backends / ours.parent.name).symlink_to(ours.parent)
    monkeypatch.setattr(installation, "BACKENDS", backends)
    program = (sys.executable, "-c", BUILD)
    monkeypatch.setattr(bundle_loader, "Plans", partial(Plans, program=program))
    return tmp_path / "models"


def _publish_planned(repository: Path, name: str, version: int) -> None:
    config = CONFIG.replace('"onnxruntime"', '"tensorrt" default_model_filename: "model.plan"')
    folder = publish(repository, name, times(1), config, version=version)
    fields = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(fields | {"device": "cuda", "runtime": "tensorrt"}))


def test_each_version_is_served_from_its_own_plan(machine: Path, tmp_path: Path) -> None:
    _publish_planned(machine, "ten", 1)
    lines: list[str] = []
    chosen = settings(machine, plans=tmp_path / "plans")
    with brief_server(chosen, lines.append) as server:
        assert answer(server, "ten") == 10
        _publish_planned(machine, "ten", 2)
        assert server.load("ten") == 2
        assert answer(server, "ten") == 20
        assert server.load("ten", 1) == 1
        assert answer(server, "ten") == 10
    assert {path.name for path in (tmp_path / "plans").iterdir()} == {"ten-1.plan", "ten-2.plan"}
    assert not list(machine.rglob("*.plan")), "the repository may be read-only"


def test_plan_that_cannot_be_built_leaves_the_others(machine: Path) -> None:
    _publish_planned(machine, "broken", 1)
    publish_times(machine, "twice", 2)
    with brief_server(settings(machine)) as server:
        assert server.models == ("twice",)
        assert answer(server, "twice") == 2
        with pytest.raises(DeviceError, match=r"broken version 1 has no plan: .*no such operator"):
            server.load("broken")
        assert answer(server, "twice") == 2


def test_plan_that_cannot_be_built_is_the_failure_where_there_is_nothing_else(
    machine: Path,
) -> None:
    _publish_planned(machine, "broken", 1)
    with pytest.raises(DeviceError, match="no such operator"), TritonServer(settings(machine)):
        pass


def test_triton_without_the_backend_says_so(
    machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "backends" / "tensorrt" / "model.py").unlink()
    _publish_planned(machine, "ten", 1)
    expected = "ten version 1 is for TensorRT, and this Triton has no tensorrt backend"
    with pytest.raises(DeviceError, match=expected), TritonServer(settings(machine)):
        pass
