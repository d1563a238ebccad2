"""The GPU override adds a GPU and NVIDIA's Triton, and keeps the protection of the CPU's file."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCKER = Path(__file__).parents[2] / "docker"
BASE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
OVERRIDE = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text())
TRITON = OVERRIDE["services"]["triton"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text()


def test_override_is_triton_alone() -> None:
    """Without the file the containers are the CPU's, and the gateway always is."""
    assert set(OVERRIDE["services"]) == {"triton"}
    assert "gpu" not in (DOCKER / "compose.yaml").read_text().lower()
    protection = {"read_only", "cap_drop", "security_opt", "networks", "healthcheck", "ports"}
    assert not protection & set(TRITON)


def test_gpu_is_reserved_and_the_image_is_another() -> None:
    [device] = TRITON["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert TRITON["image"] != BASE["services"]["triton"]["image"]


def test_nvidias_container_has_a_fixed_tag_that_a_variable_changes() -> None:
    arguments = TRITON["build"]["args"]
    assert re.fullmatch(
        r"\$\{TRITON_BASE:-nvcr\.io/nvidia/tritonserver:\d\d\.\d\d-py3@sha256:[0-9a-f]{64}\}",
        arguments["BASE"],
    )
    for name in arguments:
        assert f"ARG {name}" in DOCKERFILE


def test_plans_are_on_a_volume_that_triton_may_write() -> None:
    command = shlex.split(TRITON["command"])
    folder = command[command.index("--plans") + 1]
    assert f"plans:{folder}" in TRITON["volumes"]
    assert "plans" in OVERRIDE["volumes"]
    assert f"COPY --chown=10001:10001 --from=triton-packages {folder} {folder}" in DOCKERFILE
    assert TRITON["environment"]["CUDA_CACHE_PATH"].startswith(f"{folder}/")


def test_command_is_the_cpus_with_plans() -> None:
    ours = shlex.split(TRITON["command"])
    at = ours.index("--plans")
    assert ours[:at] + ours[at + 2 :] == shlex.split(BASE["services"]["triton"]["command"])


@pytest.mark.skipif(
    shutil.which("docker-compose") is None, reason="docker-compose merges the files"
)
def test_files_merge(tmp_path: Path) -> None:
    """Version 1.29 validates them against the same schema, but for `create_host_path`."""
    names = ("compose.yaml", "compose.gpu.yaml")
    for name in names:
        lines = (DOCKER / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join(x for x in lines if "create_host_path" not in x))
    files = [argument for name in names for argument in ("-f", str(tmp_path / name))]
    done = subprocess.run(
        ["docker-compose", "-p", "docker", *files, "config"],
        capture_output=True,
        text=True,
        check=True,
    )
    merged: dict[str, Any] = yaml.safe_load(done.stdout)["services"]["triton"]
    assert merged["read_only"] is True
    targets = {each if isinstance(each, str) else each["target"] for each in merged["volumes"]}
    assert targets == {"plans:/plans:rw", "state:/state:rw", "/models"}
    assert merged["deploy"]["resources"]["reservations"]["devices"]
    assert merged["build"]["args"]["TRITON_EXTRAS"] == "triton-gpu"
