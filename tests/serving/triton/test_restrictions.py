"""What others reach of a Triton server: peers of its ports, and users of its machine."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from serving.triton.runtime_files import SHARED_MEMORY
from serving.triton.server import TritonServer
from tests.serving.triton.tiny import (
    answer,
    brief_server,
    http,
    publish_times,
    runtime_files,
    settings,
)

pytestmark = pytest.mark.integration

READS = (
    "v2",
    "v2/health/live",
    "v2/health/ready",
    "v2/models/twice",
    "v2/models/twice/ready",
    "v2/models/twice/config",
    "v2/models/twice/stats",
)
GRPC_CHANGES: dict[str, Callable[[triton.InferenceServerClient], object]] = {
    "index": lambda client: client.get_model_repository_index(),
    "unload": lambda client: client.unload_model("twice"),
    "load": lambda client: client.load_model("twice"),
    "memory": lambda client: client.register_system_shared_memory("ours", "/ours", 64),
    "memory status": lambda client: client.get_system_shared_memory_status(),
    "cuda memory": lambda client: client.unregister_cuda_shared_memory(),
    "logging": lambda client: client.update_log_settings({"log_verbose_level": 1}),
    "trace": lambda client: client.update_trace_settings(settings={"trace_rate": "1"}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("repository")
    publish_times(repository, "twice", 2)
    with brief_server(settings(repository)) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc_address) as connected:
        yield connected


def test_http_has_no_port_and_no_other_user_can_connect(server: TritonServer) -> None:
    connections = psutil.Process(server.pid).net_connections("tcp")
    listening = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    ports = {int(a.rpartition(":")[-1]) for a in (server.grpc_address, server.metrics_address)}
    assert listening == ports
    connect = (
        "import socket, sys\n"
        "with socket.socket(socket.AF_UNIX) as one: one.connect(sys.argv[1]); print('connected')"
    )
    command = [sys.executable, "-c", connect, str(server.http_socket)]
    ours = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ours.stdout == "connected\n", ours.stderr
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    command[0] = str(shutil.which("python3", path="/usr/bin"))
    theirs = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, user=65534, group=65534
    )
    assert "PermissionError" in theirs.stderr


@pytest.mark.parametrize("change", GRPC_CHANGES)
def test_management_over_grpc_is_refused(
    server: TritonServer, client: triton.InferenceServerClient, change: str
) -> None:
    with pytest.raises(InferenceServerException, match="restricted"):
        GRPC_CHANGES[change](client)
    assert answer(server, "twice") == 2


def test_what_the_arguments_show_opens_nothing(
    server: TritonServer, client: triton.InferenceServerClient
) -> None:
    """Every user of the machine can read them."""
    arguments = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
    [restriction] = [a for a in arguments if "restricted" in a]
    name, value = restriction.rpartition(":")[-1].split("=")
    assert set(restriction.split("=")[1].split(":")[0].split(",")) == {
        *("model-repository", "shared-memory", "trace", "logging")
    }
    for header in (name, f"triton-grpc-protocol-{name}"):
        with pytest.raises(InferenceServerException, match="metadata size exceeds"):
            client.get_model_repository_index(headers={header: value})
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_model_repository_index(headers={header: value[:7000]})
    assert answer(server, "twice") == 2


@pytest.mark.parametrize("path", READS)
def test_what_clients_need_is_served_over_http(server: TritonServer, path: str) -> None:
    with http(server) as client:
        assert client.get(path).status_code == 200


def test_what_the_gateway_needs_is_open_over_grpc(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("twice")
    assert client.get_model_config("twice").config.name == "twice"
    assert client.get_model_metadata("twice").name == "twice"


def test_files_of_a_server_are_closed_to_other_users(server: TritonServer) -> None:
    assert server.pid is not None
    files = runtime_files(server.pid)()
    assert any(path.parent == SHARED_MEMORY and path.stat().st_size for path in files)
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_each_server_has_a_value_of_its_own(server: TritonServer, tmp_path: Path) -> None:
    publish_times(tmp_path, "other", 2)
    with brief_server(settings(tmp_path)) as second:
        theirs, ours = (
            {a for a in Path(f"/proc/{one.pid}/cmdline").read_text().split("\0") if "restr" in a}
            for one in (second, server)
        )
    assert len(theirs) == len(ours) == 1
    assert not theirs & ours


def test_secrets_of_the_environment_do_not_reach_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("TRIPTYCH_API_KEY", "TRIPTYCH_API_KEYS", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")
    kept = ("TOKENIZERS_PARALLELISM", "OTEL_EXPORTER_OTLP_HEADERS", "KEYBOARD")
    for name in (*secrets, *kept):
        monkeypatch.setenv(name, f"value-of-{name}")
    with brief_server(settings(tmp_path)) as server:
        environment = Path(f"/proc/{server.pid}/environ").read_text()
    assert all(f"value-of-{name}" in environment for name in kept)
    assert not [name for name in secrets if f"value-of-{name}" in environment]
