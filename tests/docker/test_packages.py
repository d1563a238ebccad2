"""What the images and lock files install."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
HALVES = {
    "triton-cpu": (
        "serving.triton.supervisor", "serving.triton.bundle_loader", "serving.load_model",
        "serving.probe", "serving.backends.autoregressive.request_queue",
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


ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
LOCKS = re.search(r"^LOCKS := (.*)$", MAKEFILE, re.MULTILINE)[1].split()
ENTRY = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?P<rest>[^\n]*\\\n(?:[^\n]+\n?)*?)(?=^\S|\Z)", re.M
)
WITHOUT_HASH = {"torch"}
SERVING = [lock for lock in LOCKS if not lock.startswith("dev")]
"""What images and workers install, and what builds the wheel of this project."""
each_lock = pytest.mark.parametrize("lock", LOCKS)


def entries(lock: str) -> dict[str, tuple[Version, str]]:
    """Package → its version, and the lines with its hashes."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    found = {
        canonicalize_name(match["name"]): (Version(match["version"]), match["rest"])
        for match in ENTRY.finditer(text)
    }
    assert len(found) == len(re.findall(r"^\w", text, re.MULTILINE)), "an entry is not understood"
    return found


@each_lock
def test_every_entry_has_hashes_and_no_address(lock: str) -> None:
    for name, (_, lines) in entries(lock).items():
        assert re.findall(r"--hash=sha256:[0-9a-f]{64}\b", lines), name
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert " @ " not in text
    assert "-index" not in text


@each_lock
def test_every_requirement_is_locked_within_its_range(lock: str) -> None:
    locked = entries(lock)
    waiting = [*PROJECT["dependencies"], *(text for e in lock.split("+") for text in EXTRAS[e])]
    seen: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name == "triptych":
            waiting += [text for e in requirement.extras - seen for text in EXTRAS[e]]
            seen |= requirement.extras
        elif name not in WITHOUT_HASH:
            version, _ = locked[name]
            assert requirement.specifier.contains(version), f"{requirement} but {version}"


def test_what_is_installed_needs_nothing_that_is_not_locked() -> None:
    needed = installed_by(*PROJECT["dependencies"], "triptych[dev]")
    of_torch = {name for name in needed if name.startswith(("nvidia-c", "nvidia-n", "triton"))}
    assert needed - of_torch - WITHOUT_HASH - set(entries("dev")) == set()


def test_locks_agree() -> None:
    versions: dict[str, set[Version]] = {}
    for lock in LOCKS:
        for name, (version, _) in entries(lock).items():
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_the_version_of_torch_is_the_same_everywhere() -> None:
    (declared,) = {Requirement(text).specifier for text in EXTRAS["export"] if "torch" in text}
    made = re.search(r"^TORCH := (.*)$", MAKEFILE, re.MULTILINE)
    assert str(declared) == f"=={made[1]}"


@each_lock
def test_arm64_has_the_packages_of_x86_64(lock: str) -> None:
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    installed = []
    for machine in ("x86_64", "aarch64"):
        environment = {**default_environment(), **linux, "platform_machine": machine}
        lines = {name: rest.partition("\\")[0] for name, (_, rest) in entries(lock).items()}
        asked = [Requirement(f"{name} {rest}") for name, rest in lines.items()]
        installed.append({e.name for e in asked if not e.marker or e.marker.evaluate(environment)})
    assert installed[0] == installed[1]


@pytest.mark.full
@pytest.mark.parametrize("python", ["3.11", "3.12"])
@pytest.mark.parametrize("lock", SERVING)
def test_arm64_has_wheels_with_the_locked_hashes(lock: str, python: str, tmp_path: Path) -> None:
    """For the images' glibc; needs the package index that uv is configured with."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--dry-run"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-version"]
    command += [python, "--python-platform", "aarch64-manylinux_2_36", "--target", str(tmp_path)]
    command += ["--requirements", str(ROOT / "requirements" / f"{lock}.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if any(reason in done.stderr for reason in ("Failed to fetch", "error sending request")):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
