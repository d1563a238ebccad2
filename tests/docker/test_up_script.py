"""`up.sh` and `compose.sh` say what is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from triptych import __version__

DOCKER = Path(__file__).parents[2] / "docker"
[BASE] = re.findall(r"(?m)^ARG BASE=(.+)$", (DOCKER / "Dockerfile").read_text())
TOOLS = (
    *("sh", "dirname", "sed", "cat", "mktemp", "rm", "id", "find", "sort", "xargs", "sha256sum"),
    *("cut", "sleep"),
)
FAKE = """#!/usr/bin/python3 -S
import json, pathlib, sys
state = pathlib.Path(sys.argv[0]).parent / "state.json"
here = json.loads(state.read_text())
words = sys.argv[1:]
with open(state.parent / "calls", "a") as calls:
    print(*words, file=calls)
if words[0] == "info":
    sys.exit(not here["daemon"])
if words[:2] == ["buildx", "version"]:
    sys.exit(not here["buildx"])
if words[0] == "version":
    print(here["version"])
if words[:2] == ["image", "inspect"]:
    image = here["images"].get(words[-1])
    print(image or "")
    sys.exit(image is None)
if words[0] == "pull":
    sys.exit(words[1] not in here["registry"])
if words[0] == "build":
    here["images"][words[words.index("-t") + 1]] = words[words.index("--label") + 1][8:]
    state.write_text(json.dumps(here))
"""


@dataclass
class Machine:
    """A copy of the project, and a Docker that records what it is called with."""

    root: Path

    def __post_init__(self) -> None:
        for name in ("export", "inference", "serving", "clients", "requirements"):
            (self.root / name).mkdir(parents=True)
            (self.root / name / "module.py").touch()
        for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
            (self.root / name).touch()
        shutil.copytree(DOCKER, self.root / "docker")
        self.path.mkdir()
        for tool in TOOLS:
            (self.path / tool).symlink_to(str(shutil.which(tool)))
        (self.path / "docker").write_text(FAKE)
        (self.path / "docker").chmod(0o755)
        self.set()

    @property
    def path(self) -> Path:
        return self.root / "bin"

    def set(self, **changes: object) -> None:
        state = {
            **{"daemon": True, "buildx": True, "version": "28.2.2", "images": {}},
            "registry": [BASE],
        }
        (self.path / "state.json").write_text(json.dumps({**state, **changes}))

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.path / "calls").write_text("")
        unset = ("BASE", "GPU", "TLS", "MONITORING", "PIP_CONF", "CA_CERTIFICATES", "HTTP_PORT")
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        return subprocess.run(
            [self.root / "docker" / "up.sh", *arguments],
            env={**inherited, "PATH": str(self.path), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self, verb: str) -> list[str]:
        lines = (self.path / "calls").read_text().splitlines()
        return [line for line in lines if line.split()[0] == verb or f" {verb} " in f" {line} "]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "project")


def test_every_copied_file_counts_as_a_source() -> None:
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    names = {name for words in copied if not words[0].startswith("--") for name in words}
    script = (DOCKER / "up.sh").read_text()
    [found] = [line.split()[1:-3] for line in script.splitlines() if "find docker/" in line]
    assert set(found) == {"docker/Dockerfile", *names}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"daemon": False}, "no Docker daemon responds"),
        ({"buildx": False}, "Docker 28.2.2 builds with buildx, which is missing: install"),
        ({"registry": []}, f"the base image {BASE} is neither here nor"),
    ],
)
def test_what_is_missing_is_found_before_anything_is_built(
    machine: Machine, state: dict[str, object], message: str
) -> None:
    machine.set(**state)
    done = machine.run("--check")
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert not machine.calls("build")


def test_check_changes_nothing(machine: Machine) -> None:
    done = machine.run("--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert not machine.calls("build")
    assert not machine.calls("up")


def test_old_docker_needs_no_plugin(machine: Machine) -> None:
    machine.set(buildx=False, version="20.10.24")
    assert machine.run("--check").returncode == 0


def test_images_are_built_once_and_again_when_their_sources_change(machine: Machine) -> None:
    assert machine.run().returncode == 0
    assert len(machine.calls("build")) == 2
    built = [re.findall(r"-t (\S+) ", call) for call in machine.calls("build")]
    assert built == [[f"triptych-{name}:{__version__}"] for name in ("triton", "gateway")]
    [up] = machine.calls("up")
    assert up.endswith("up --detach --no-build --wait")
    done = machine.run()
    assert "up: http://127.0.0.1:8080/ready" in done.stdout
    assert not machine.calls("build")
    assert not machine.calls("pull")
    (machine.root / "serving" / "module.py").write_text("changed = True")
    machine.run()
    assert len(machine.calls("build")) == 2
    machine.run(TRITON_EXTRAS="triton-cpu")
    [build] = machine.calls("build")
    assert "--target triton " in build
    assert "TRITON_EXTRAS=triton-cpu" in build


def test_secrets_of_a_mirror_and_settings_of_the_machine_reach_the_build(machine: Machine) -> None:
    (machine.root / "docker" / ".env").write_text('# mine\nBASE="base:mine"\nHTTP_PORT=9000\n')
    machine.set(registry=["base:mine"])
    done = machine.run(PIP_CONF="/etc/pip.conf", CA_CERTIFICATES="/etc/ca.crt", HTTP_PORT="9001")
    assert "http://127.0.0.1:9001/ready" in done.stdout, "the environment goes before the file"
    for build in machine.calls("build"):
        assert "--secret id=pip,src=/etc/pip.conf --secret id=ca,src=/etc/ca.crt" in build
        assert "BASE=base:mine" in build


def test_gpu_builds_nvidias_image_beside_the_other(machine: Machine) -> None:
    machine.set(registry=[BASE, "nvidia:1"])
    assert machine.run(GPU="1", TRITON_BASE="nvidia:1").returncode == 0
    triton, gateway = machine.calls("build")
    assert f"-t triptych-triton-gpu:{__version__} " in triton
    assert "BASE=nvidia:1" in triton
    assert "TENSORRT=auto" in triton
    assert f"BASE={BASE}" in gateway


COMPOSE_SCRIPT_TOOLS = ("sh", "dirname", "sed", "cat", "mktemp", "rm")
CURRENT = '#!/bin/sh\necho "docker $*"\n'
WITHOUT_PLUGIN = '#!/bin/sh\necho "docker: unknown command: docker compose" >&2\nexit 1\n'
OLD = """#!/bin/sh
echo "docker-compose $* in $PWD with $DOCKER_BUILDKIT$COMPOSE_DOCKER_CLI_BUILD"
cat
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder for PATH with what the script needs, and no Docker."""
    for tool in COMPOSE_SCRIPT_TOOLS:
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    return tmp_path


def install(path: Path, name: str, script: str) -> None:
    (path / name).write_text(script)
    (path / name).chmod(0o755)


def run(
    path: Path, *arguments: str, gpu: str = "", folder: Path = DOCKER
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "compose.sh", *arguments],
        env={**os.environ, "PATH": str(path), "GPU": gpu},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_plugin_is_preferred(path: Path) -> None:
    install(path, "docker", CURRENT)
    install(path, "docker-compose", OLD)
    done = run(path, "up", "--build")
    assert done.stdout.endswith(f"docker compose -f {DOCKER}/compose.yaml up --build\n")


def test_gpu_adds_its_file_after_the_other(path: Path) -> None:
    install(path, "docker", CURRENT)
    done = run(path, "up", gpu="1")
    files = f"-f {DOCKER}/compose.yaml -f {DOCKER}/compose.gpu.yaml"
    assert done.stdout.endswith(f"docker compose {files} up\n")
    install(path, "docker", WITHOUT_PLUGIN)
    install(path, "docker-compose", OLD)
    done = run(path, "up", gpu="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("GPU=1, MONITORING=1 and TLS=1 need Docker Compose 2: install")


def test_version_1_gets_what_it_needs(path: Path) -> None:
    install(path, "docker", WITHOUT_PLUGIN)
    install(path, "docker-compose", OLD)
    done = run(path, "up", "--build")
    command, _, file = done.stdout.partition("\n")
    assert command == f"docker-compose -p docker -f - up --build in {DOCKER} with 11"
    assert "create_host_path" not in file, "version 1 refuses the whole file for it"
    expected = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    for service in expected.values():
        service["volumes"][0].pop("bind", None)  # one mapping, shared by an alias
    assert yaml.safe_load(file)["services"] == expected


@pytest.fixture
def overridden(tmp_path: Path) -> Path:
    """The folder of the script, with settings of one machine."""
    folder = tmp_path / "deploy"
    shutil.copytree(DOCKER, folder)
    (folder / "compose.override.yaml").write_text("services: {triton: {cpus: 2}}\n")
    return folder


def test_settings_of_one_machine_are_read_last(path: Path, overridden: Path) -> None:
    install(path, "docker", CURRENT)
    files = "".join(f" -f {overridden}/compose{name}.yaml" for name in ("", ".gpu", ".override"))
    assert run(path, "up", gpu="1", folder=overridden).stdout.endswith(f"compose{files} up\n")


def test_settings_of_one_machine_are_read_by_version_1(path: Path, overridden: Path) -> None:
    install(path, "docker", WITHOUT_PLUGIN)
    install(path, "docker-compose", '#!/bin/sh\necho "$*"; cat "$6"\n')
    command, _, file = run(path, "up", folder=overridden).stdout.partition("\n")
    words = command.split()
    assert words[:5] == ["-p", "docker", "--project-directory", str(overridden), "-f"]
    assert words[6:] == ["-f", f"{overridden}/compose.override.yaml", "up"]
    assert "create_host_path" not in file
    assert set(yaml.safe_load(file)["services"]) == {"triton", "gateway"}
    assert not Path(words[5]).exists()


def test_down_needs_no_variable_and_removes_what_any_file_has_started(path: Path) -> None:
    shown = "docker $* $API_KEY $PUBLIC_URL $GRAFANA_PASSWORD"
    install(path, "docker", f'#!/bin/sh\necho "{shown}"\n')
    done = run(path, "down", "--volumes")
    names = ("", ".gpu", ".tls", ".monitoring")
    files = "".join(f" -f {DOCKER}/compose{name}.yaml" for name in names)
    expected = f"compose{files} down --volumes --remove-orphans none none none\n"
    assert done.stdout.endswith(expected), done.stdout
    required = {
        name
        for file in DOCKER.glob("compose*.yaml")
        for name in re.findall(r"\$\{(\w+):?\?", file.read_text())
    }
    assert required == {"API_KEY", "PUBLIC_URL", "GRAFANA_PASSWORD"}


def test_down_of_version_1(path: Path) -> None:
    install(path, "docker-compose", OLD)
    assert run(path, "down").stdout.startswith(
        "docker-compose -p docker -f - down --remove-orphans "
    )


def test_nothing_installed_is_one_line(path: Path) -> None:
    done = run(path, "up")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "docker-compose-plugin" in done.stderr


def test_failure_is_passed_on(path: Path) -> None:
    install(path, "docker-compose", "#!/bin/sh\nexit 7\n")
    assert run(path, "up").returncode == 7
