"""ONNX Runtime's telemetry is off in every process that loads it through a module of ours.

It is recognised by the database that it keeps below HOME as soon as a session exists; its first
upload follows half a minute later.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.triton.installation import find_installation
from serving.triton.runtime_files import RuntimeFiles

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
    for package in ("inference", "serving", "export", "benchmarks")
    for file in (ROOT / package).rglob("*.py")
    if ".cache" not in file.parts and "import onnxruntime" in file.read_text()
)


FORKS = """
import json, os, sys
import numpy, onnx, torch, transformers  # slow to load, nothing of ours, and no ONNX Runtime
assert "onnxruntime" not in sys.modules
homes, session = json.loads(sys.argv[1])
for module, home in homes.items():
    if os.fork() == 0:
        os.environ["HOME"] = home
        if module:
            __import__(module)
        exec(session)
        os._exit(0)
    assert os.wait()[1] == 0, module
"""
"""Each module in a process of its own that starts with what takes long to load."""


def files_after(modules: Sequence[str], folder: Path) -> dict[str, list[Path]]:
    """Module → files that a session writes into the home directory after its import."""
    hidden = ("ORT_", "CI", "XDG_")  # of these, CI switches telemetry off too
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    homes = {module: folder / str(number) for number, module in enumerate(modules)}
    for home in homes.values():
        home.mkdir()
    argument = json.dumps([{module: str(home) for module, home in homes.items()}, SESSION])
    command = [sys.executable, "-c", FORKS, argument]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=300)
    return {
        module: [path for path in home.rglob("*onnxruntime*") if path.is_file()]
        for module, home in homes.items()
    }


ONE_EACH = list({module.partition(".")[0]: module for module in IMPORTERS}.values())
"""The package switches it off, whichever of its modules is imported."""


@pytest.mark.parametrize(
    "modules", [ONE_EACH, pytest.param(IMPORTERS, marks=pytest.mark.full)], ids=["one each", "all"]
)
def test_modules_of_ours_switch_it_off(modules: list[str], tmp_path: Path) -> None:
    alone, *ours = (written := files_after(["", *modules], tmp_path))
    assert written[alone], "ONNX Runtime alone collects; if it does not, this test proves nothing"
    assert [module for module in ours if written[module]] == []


def test_all_modules_that_load_it_are_known() -> None:
    assert {"inference.stateless.graph_sessions", "export.parity.graph_runs"} <= set(IMPORTERS)
    # Triton imports a backend's model.py itself, before any package of ours.
    assert not [name for name in IMPORTERS if name.endswith(".model")]


def test_tritons_own_processes_inherit_the_switch(tmp_path: Path) -> None:
    files = RuntimeFiles(tmp_path)
    assert find_installation().environment(files)["ORT_DISABLE_TELEMETRY"] == "1"
    files.remove()


def test_images_set_the_switch() -> None:
    assert "ORT_DISABLE_TELEMETRY=1" in (ROOT / "docker" / "Dockerfile").read_text()
