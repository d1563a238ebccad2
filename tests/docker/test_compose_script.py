"""`compose.sh` finds the Compose that is installed, or names what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

DOCKER = Path(__file__).parents[2] / "docker"
TOOLS = ("sh", "dirname", "sed", "cat", "mktemp", "rm")
CURRENT = '#!/bin/sh\necho "docker $*"\n'
WITHOUT_PLUGIN = '#!/bin/sh\necho "docker: unknown command: docker compose" >&2\nexit 1\n'
OLD = """#!/bin/sh
echo "docker-compose $* in $PWD with $DOCKER_BUILDKIT$COMPOSE_DOCKER_CLI_BUILD"
cat
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder for PATH with what the script needs, and no Docker."""
    for tool in TOOLS:
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
