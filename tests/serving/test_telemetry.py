"""ONNX Runtime's telemetry is off in every process that loads it through a module of ours.

It is recognised by the database that it keeps below HOME as soon as a session exists; its first
upload follows half a minute later.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.triton.installation import find_installation

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SESSION = """
import onnxruntime
from onnx import TensorProto, helper
value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "abs", value[:1], value[1:])
opset = [helper.make_opsetid("", 17)]
model = helper.make_model(graph, opset_imports=opset, ir_version=8)
onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
"""
IMPORTERS = sorted(
    str(file.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for package in ("serving", "export", "benchmarks")
    for file in (ROOT / package).rglob("*.py")
    if ".cache" not in file.parts and "import onnxruntime" in file.read_text()
)


def files_after(program: str, home: Path) -> list[Path]:
    """Files that a Python program writes into its home directory."""
    hidden = ("ORT_", "CI", "XDG_")  # of these, CI switches telemetry off too
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    environment["HOME"] = str(home)
    command = [sys.executable, "-c", program]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=120)
    return [path for path in home.rglob("*onnxruntime*") if path.is_file()]


def test_alone_onnx_runtime_collects(tmp_path: Path) -> None:
    assert files_after(SESSION, tmp_path), "if this fails, the other tests prove nothing"


@pytest.mark.parametrize("module", IMPORTERS)
def test_modules_of_ours_switch_it_off(module: str, tmp_path: Path) -> None:
    assert files_after(f"import {module}\n{SESSION}", tmp_path) == []


def test_all_modules_that_load_it_are_known() -> None:
    assert {"serving.backends.onnxruntime.graph_sessions", "export.verify"} <= set(IMPORTERS)
    # Triton imports a backend's model.py itself, before any package of ours.
    assert not [name for name in IMPORTERS if name.endswith(".model")]


def test_tritons_own_processes_inherit_the_switch() -> None:
    assert find_installation().environment()["ORT_DISABLE_TELEMETRY"] == "1"


def test_images_set_the_switch() -> None:
    assert "ORT_DISABLE_TELEMETRY=1" in (ROOT / "docker" / "Dockerfile").read_text()
