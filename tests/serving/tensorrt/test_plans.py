"""Builds in a process of their own, as the supervisor sees them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from inference.bundle.manifest import Bundle
from inference.bundle.reader import open_bundle
from inference.errors import DeviceError
from serving.processes.process_table import running_with
from serving.tensorrt.plans import Plans, plan_folder, relative
from tests.serving.triton.tiny import publish_times


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return open_bundle(publish_times(tmp_path / "models", "twice", 2))


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
    deadline_s = time.monotonic() + 30
    while running_with(str(bundle.folder), {"-u"}):
        assert time.monotonic() < deadline_s, "the build goes on"
        time.sleep(0.01)


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
