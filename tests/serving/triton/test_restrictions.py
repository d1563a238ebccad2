"""Triton's management endpoints accept its supervisor and no other peer of its ports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from serving.triton import TritonServer, TritonSettings
from tests.serving.triton.tiny import answer, publish_times

pytestmark = pytest.mark.integration

CHANGES = (
    "v2/repository/index",
    "v2/repository/models/twice/unload",
    "v2/repository/models/twice/load",
    "v2/systemsharedmemory/region/ours/register",
    "v2/systemsharedmemory/unregister",
    "v2/cudasharedmemory/unregister",
    "v2/logging",
    "v2/trace/setting",
    "v2/models/twice/trace/setting",
)
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
    with TritonServer(TritonSettings(repository)) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc_address) as connected:
        yield connected


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("headers", [{}, {"triptych-secret": "guessed"}], ids=["none", "wrong"])
def test_management_over_http_is_refused_without_the_secret(
    server: TritonServer, path: str, headers: dict[str, str]
) -> None:
    url = f"http://{server.http_address}/{path}"
    refused = httpx.post(url, json={}, headers=headers, trust_env=False)
    assert refused.status_code == 403, refused.text
    assert answer(server, "twice") == 2


@pytest.mark.parametrize("change", GRPC_CHANGES)
def test_management_over_grpc_is_refused_without_the_secret(
    server: TritonServer, client: triton.InferenceServerClient, change: str
) -> None:
    with pytest.raises(InferenceServerException, match="restricted"):
        GRPC_CHANGES[change](client)
    assert answer(server, "twice") == 2


@pytest.mark.parametrize("path", READS)
def test_what_clients_need_is_open_over_http(server: TritonServer, path: str) -> None:
    url = f"http://{server.http_address}/{path}"
    assert httpx.get(url, trust_env=False).status_code == 200


def test_what_the_gateway_needs_is_open_over_grpc(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("twice")
    assert client.get_model_config("twice").config.name == "twice"
    assert client.get_model_metadata("twice").name == "twice"


def test_supervisor_has_the_secret_and_logs_it_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish_times(tmp_path, "twice", 2)
    with caplog.at_level(logging.DEBUG), TritonServer(TritonSettings(tmp_path)) as server:
        command = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
        secret = next(a for a in command if "restricted-api" in a).rpartition("=")[-1]
        publish_times(tmp_path, "twice", 20, version=2)
        assert server.load("twice") == 2
        assert answer(server, "twice") == 20
    assert len(secret) == 64
    assert secret not in caplog.text


def test_each_server_has_a_secret_of_its_own(server: TritonServer, tmp_path: Path) -> None:
    publish_times(tmp_path, "other", 2)
    with TritonServer(TritonSettings(tmp_path)) as second:
        theirs, ours = (
            {a for a in Path(f"/proc/{one.pid}/cmdline").read_text().split("\0") if "restr" in a}
            for one in (second, server)
        )
    assert len(theirs) == len(ours) == 2
    assert not theirs & ours
