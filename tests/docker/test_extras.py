"""Each image starts with the packages that its extras install, and no others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
HALVES = {
    "triton-cpu": (
        "serving.triton.supervisor", "serving.triton.bundle_loader", "serving.load_model",
        "serving.probe", "serving.backends.autoregressive.pending_queue",
        "inference.engine.runner_factory", "inference.stateless.graph_sessions",
        "triptych.cli",
    ),
    "gateway": (
        "serving.gateway.server.run_server", "serving.gateway.server.app", "serving.load_model",
        "triptych.cli",
    ),
    "gateway,otlp": ("serving.gateway.observability.otlp",),
    "gateway,redis": ("serving.gateway.admission.redis_counts",),
    "batch": (
        "serving.batch.command", "inference.engine.runner_factory",
        "inference.stateless.graph_sessions", "triptych.cli",
    ),
    "object-storage": (
        "serving.object_storage.transfer", "serving.commands.object_storage", "triptych.cli",
    ),
    "triton-cpu,openvino-runtime": ("inference.stateless.compiled_graphs",),
}  # fmt: skip
"""Extras of an image → what its processes import."""
START = """
import importlib, json, sys
refused, modules = json.loads(sys.argv[1])
class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"the extras do not install {name}", name=name)
sys.meta_path.insert(0, Refusal())
for module in modules:
    importlib.import_module(module)
"""


def installed_by(*given: str) -> set[str]:
    """Distributions that requirements install, with all that these need."""
    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in given]
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name == "triptych":
            further = [text for each in requirement.extras for text in EXTRAS[each]]
            waiting += [(Requirement(text), "") for text in further]
            continue
        found.add(name)
        for each in ("", *requirement.extras):
            if (name, each) not in seen:
                seen.add((name, each))
                try:
                    needs = requires(name) or []
                except PackageNotFoundError:
                    continue  # of another platform
                waiting += [(Requirement(text), each) for text in needs]
    return found


@pytest.mark.parametrize("extras", HALVES)
def test_half_starts_with_the_packages_of_its_extras(extras: str) -> None:
    own = installed_by(*PROJECT["dependencies"], f"triptych[{extras}]")
    refused = [
        package
        for package, distributions in packages_distributions().items()
        if not {canonicalize_name(name) for name in distributions} & {*own, "triptych", "pip"}
        and package not in ("export", "setuptools", "_distutils_hack")
    ]
    assert "torch" in refused
    argument = json.dumps([refused, HALVES[extras]])
    command = [sys.executable, "-c", START, argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]


def test_images_install_these_extras() -> None:
    folder = Path(__file__).parents[2] / "docker"
    text = (folder / "Dockerfile").read_text()
    assert "ARG TRITON_EXTRAS=triton-cpu,openvino-runtime" in text
    assert 'requirements/$(echo "${TRITON_EXTRAS}" | tr , +).txt' in text
    assert "-r requirements/gateway+otlp+redis.txt" in text
    assert "-r requirements/object-storage.txt" in text
    assert not re.search(
        r"pip\b[^&]*? install (?!\\\n\s+--require-hashes|--require-hashes|--no-deps)", text
    )
    assert "${TRITON_EXTRAS:-triton-cpu,openvino-runtime}" in (folder / "compose.yaml").read_text()


def test_release_lists_what_each_image_installs() -> None:
    root = Path(__file__).parents[2]
    script = (root / ".ci" / "release").read_text()
    dockerfile = (root / "docker" / "Dockerfile").read_text()
    compose = (root / "docker" / "compose.gpu.yaml").read_text()
    locks = {"triton-gpu": re.search(r"TRITON_GPU_EXTRAS:-(\S+)\}", compose)[1].replace(",", "+")}
    for stage in dockerfile.split("\nFROM ")[1:]:
        if found := re.match(r"installer AS (\w+)-packages\n", stage):
            extras = re.search(r"ARG TRITON_EXTRAS=(\S+)", stage)
            lock = re.search(r"-r requirements/(\S+)\.txt", stage)
            locks[found[1]] = extras[1].replace(",", "+") if extras else lock[1]
    assert set(locks) == {"gateway", "triton", "triton-gpu", "storage"}
    assert dict(re.findall(r"^  ([\w-]+)=([\w+-]+)$", script, re.MULTILINE)) == locks
