"""The process that builds: what it asks of the machine, and what it prints."""

from __future__ import annotations

import ctypes
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference.errors import SetupError
from serving.tensorrt import __main__ as process
from serving.tensorrt import library
from serving.tensorrt.building import Builds
from tests.serving.triton.tiny import publish_times


def _driver(monkeypatch: pytest.MonkeyPatch, failing: str = "") -> None:
    """A driver of one GPU of compute capability 9.0."""

    def get(device: Any, index: int) -> int:
        return 0 if index == 0 else 101

    def attribute(value: Any, name: int, device: Any) -> int:
        value._obj.value = {75: 9, 76: 0}[name]
        return 0

    calls = {"cuInit": lambda flags: 0, "cuDeviceGet": get, "cuDeviceGetAttribute": attribute}
    if failing:
        calls[failing] = lambda *given: 100
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(**calls))


def test_compute_capability_is_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    _driver(monkeypatch)
    assert library.compute_capability() == "9.0"
    with pytest.raises(SetupError, match="GPU 1 cannot be used: the driver returns error 101"):
        library.compute_capability(1)
    _driver(monkeypatch, failing="cuInit")
    with pytest.raises(SetupError, match="GPU 0 cannot be used: the driver returns error 100"):
        library.compute_capability()


def test_machine_without_a_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(SetupError, match=r"NVIDIA's driver is missing \(libcuda\.so\.1"):
        library.compute_capability()


def test_either_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = SimpleNamespace(__version__="10.14.1.48")
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # importing it fails
    monkeypatch.setitem(sys.modules, "tensorrt_bindings", wheel)
    assert library.tensorrt() is wheel


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any, *more: str) -> int:
    _driver(monkeypatch)
    monkeypatch.setattr(process, "tensorrt", lambda: SimpleNamespace(__version__="10.14.1"))
    monkeypatch.setattr(process, "Builds", partial(Builds, build=build))
    bundle = tmp_path / "models" / "twice" / "1"
    if not bundle.exists():
        publish_times(tmp_path / "models", "twice", 2)
    arguments = ["serving.tensorrt", str(bundle), str(tmp_path / "plans"), *more]
    monkeypatch.setattr(sys, "argv", arguments)
    return process.main()


def test_steps_and_plans_are_lines_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = _run(tmp_path, monkeypatch, lambda *given: (b"plan", b""))
    assert code == 0
    *steps, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [list(each) for each in steps] == [["progress"], ["progress"]]
    assert Path(last["plans"]["twice"]).read_bytes() == b"plan"
    code = _run(tmp_path, monkeypatch, None, "--lookup")
    assert code == 0
    assert json.loads(capsys.readouterr().out) == last


def test_failure_is_the_last_line_and_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: Any) -> tuple[bytes, bytes]:
        raise SetupError("TensorRT cannot read model.onnx: Gelu")

    code = _run(tmp_path, monkeypatch, fails)
    assert code == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"error": "TensorRT cannot read model.onnx: Gelu"}
