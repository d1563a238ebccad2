"""TensorRT plans: built once for each key, found whole or not at all."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference.bundle.manifest import Bundle, Graph, Profile
from inference.bundle.reader import open_bundle
from inference.errors import DeviceError, SetupError
from serving.processes.process_table import running_with
from serving.tensorrt import __main__ as process
from serving.tensorrt import bindings
from serving.tensorrt import builder as library
from serving.tensorrt.builder import Builds, Target
from serving.tensorrt.plan_folder import PlanFolder, PlanKey, graph_hash
from serving.tensorrt.plans import Plans, plan_folder, relative
from tests.serving.triton.tiny import publish_times, wait_until


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


def _plans(tmp_path: Path, body: str, lines: list[str]) -> Plans:
    return Plans(tmp_path / "plans", lines.append, program=(sys.executable, "-u", "-c", body))


def test_steps_are_reported_and_plans_returned(tmp_path: Path, bundle: Bundle) -> None:
    body = """
import json, sys
print("[W] something that TensorRT prints")
print(json.dumps({"progress": f"building in {sys.argv[2]}"}))
print(json.dumps({"plans": {"twice": sys.argv[1] + "/../x.plan"}}))
"""
    lines: list[str] = []
    ready = _plans(tmp_path, body, lines).ready(bundle)
    assert lines == [f"building in {tmp_path}/plans"]
    assert ready == {"twice": Path(f"{bundle.folder}/../x.plan")}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('print(\'{"error": "no GPU"}\')', "no GPU$"),
        ("import os; print('a crash'); os.abort()", "killed by SIGABRT: a crash"),
        ("print('[1, 2]')", r"exit code 0: \[1, 2\]"),
    ],
)
def test_failure_is_one_line_with_its_reason(
    body: str, reason: str, tmp_path: Path, bundle: Bundle
) -> None:
    with pytest.raises(DeviceError, match=f"^twice version 1 has no plan: {reason}"):
        _plans(tmp_path, body, []).ready(bundle)


def test_version_that_failed_is_looked_up_and_not_built_again(
    tmp_path: Path, bundle: Bundle
) -> None:
    body = """
import json, pathlib, sys
made = pathlib.Path(sys.argv[2]) / "x.plan"
if "--lookup" in sys.argv and made.exists():
    print(json.dumps({"plans": {"twice": str(made)}}))
else:
    print(json.dumps({"error": "again" if "--lookup" in sys.argv else "first"}))
"""
    plans = _plans(tmp_path, body, [])
    for reason in ("first", "again", "again"):
        with pytest.raises(DeviceError, match=f": {reason}$"):
            plans.ready(bundle)
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "x.plan").touch()  # `triptych plan`
    assert plans.ready(bundle) == {"twice": tmp_path / "plans" / "x.plan"}
    with pytest.raises(DeviceError, match=r"first$"):
        plans.ready(bundle)
    plans.open()
    with pytest.raises(DeviceError, match=r"first$"):
        plans.ready(bundle)


def test_package_that_is_missing_is_named(tmp_path: Path, bundle: Bundle) -> None:
    with pytest.raises(DeviceError, match="has no plan: TensorRT's Python package is missing"):
        Plans(tmp_path / "plans", print).ready(bundle)
    assert not (tmp_path / "plans").exists()


def test_stop_ends_a_build(tmp_path: Path, bundle: Bundle) -> None:
    begun = threading.Event()
    body = 'import time; print(\'{"progress": "begun"}\'); time.sleep(600)'
    plans = Plans(
        tmp_path / "plans", lambda line: begun.set(), program=(sys.executable, "-u", "-c", body)
    )
    failures: list[DeviceError] = []

    def build() -> None:
        try:
            plans.ready(bundle)
        except DeviceError as error:
            failures.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    assert begun.wait(30)
    plans.close()
    thread.join(30)
    assert [each.message for each in failures] == [
        "building the plans of twice version 1 was stopped"
    ]
    with pytest.raises(DeviceError, match="was stopped"):
        plans.ready(bundle)


SUPERVISOR = """
import sys
from pathlib import Path
from inference.bundle.reader import open_bundle
from serving.tensorrt.plans import Plans
program = (sys.executable, "-u", "-c", sys.argv[3])
plans = Plans(Path(sys.argv[1]), lambda line: print(line, flush=True), program=program)
plans.ready(open_bundle(Path(sys.argv[2])))
"""


def test_build_ends_with_its_killed_supervisor(tmp_path: Path, bundle: Bundle) -> None:
    body = 'import time; print(\'{"progress": "begun"}\'); time.sleep(600)'
    arguments = [str(tmp_path / "plans"), str(bundle.folder), body]
    command = [sys.executable, "-c", SUPERVISOR, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout.readline() == "begun\n"
        assert running_with(str(bundle.folder), {"-u"})
        supervisor.kill()
    wait_until(lambda: not running_with(str(bundle.folder), {"-u"}))


@pytest.mark.parametrize(
    ("visible", "card", "seen"),
    [(None, 0, "0"), (None, 1, "1"), ("2,3", 1, "3"), ("GPU-a", 0, "GPU-a")],
)
def test_build_sees_the_card_that_its_plan_is_for(
    visible: str | None,
    card: int,
    seen: str,
    tmp_path: Path,
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    body = (
        "import json, os; print(json.dumps({'plans': {'x': os.environ['CUDA_VISIBLE_DEVICES']}}))"
    )
    plans = Plans(tmp_path / "plans", print, card, (sys.executable, "-c", body))
    assert plans.ready(bundle) == {"x": Path(seen)}


def test_folder_lies_beside_the_repository_unless_given(tmp_path: Path) -> None:
    assert plan_folder(tmp_path / "models", None) == tmp_path / "models.plans"
    assert plan_folder(tmp_path / "models", Path("/plans")) == Path("/plans")


def test_path_for_triton_leads_from_the_version_to_the_plan(tmp_path: Path) -> None:
    """Triton joins it to a folder that may be reached through links."""
    version = tmp_path / "disk" / "models" / "clip" / "3"
    version.mkdir(parents=True)
    (tmp_path / "models").symlink_to(tmp_path / "disk" / "models")
    plan = tmp_path / "plans" / "clip.plan"
    plan.parent.mkdir()
    plan.touch()
    linked = tmp_path / "models" / "clip" / "3"
    assert (linked / relative(plan, linked)).samefile(plan)


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
    assert {path.name for path in (tmp_path / "plans").iterdir()} == {".lock"}, "a plan is left"


def _image(monkeypatch: pytest.MonkeyPatch, **libraries: Any) -> None:
    """An image in which these libraries load; their dots are written as underscores."""

    def load(name: str) -> Any:
        if name not in found:
            raise OSError(f"{name}: cannot open shared object file")
        return found[name]

    found = {name.replace("_", "."): each for name, each in libraries.items()}
    monkeypatch.setattr(ctypes, "CDLL", load)


@pytest.mark.parametrize(
    ("number", "version"), [(101401, "10.14.1"), (110400, "11.4.0"), (101609, "10.16.9")]
)
def test_version_is_read_from_the_library(
    number: int, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(getInferLibVersion=lambda: number)
    _image(monkeypatch, libnvinfer_so_10=library, libcudart_so_13=None)
    assert bindings.requirement("auto") == f"tensorrt-cu13-bindings=={version}.*"


def test_version_may_be_given_and_cuda_12_has_its_own_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _image(monkeypatch, libcudart_so_12=None)
    assert bindings.requirement("10.5.0") == "tensorrt-cu12-bindings==10.5.0"


def test_images_without_tensorrt_install_none_or_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _image(monkeypatch)
    assert bindings.requirement("none") == ""
    with pytest.raises(SetupError, match=r"this image has no TensorRT \(libnvinfer.so.11"):
        bindings.requirement("auto")
    with pytest.raises(SetupError, match="this image has no CUDA"):
        bindings.requirement("10.14.1.48")
