"""A real server: loads, versions, healing, stopping without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import httpx
import numpy as np
import onnx
import pytest
from tritonclient.grpc import InferenceServerClient

from inference.bundle.repository import removable
from inference.bundle.self_check import SelfCheck, checksum
from inference.errors import SetupError
from serving.processes import process_table
from serving.triton.installation import STUB, find_installation
from serving.triton.served import read_record
from serving.triton.server import TritonServer
from serving.triton.supervisor import WATCH_PERIOD_S, Supervisor
from tests.serving.triton.tiny import (
    answer,
    brief_server,
    incarnation,
    living_stubs,
    publish_times,
    runtime_files,
    settings,
    wait_until,
)
from tests.serving.versioned_bundles import publish_version

pytestmark = pytest.mark.integration


@pytest.fixture
def server(repository: Path) -> Iterator[TritonServer]:
    publish_times(repository, "twice", 2)
    with brief_server(settings(repository)) as started:
        yield started


def test_half_written_version_is_never_loaded(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    publish_times(repository, "twice", 3, version=2, complete=False)
    publish_times(repository, "nothing", 3, complete=False)
    with brief_server(settings(repository)) as server:
        assert server.models == ("twice",)
        assert answer(server, "twice") == 2


def test_versions_go_forth_and_back_without_a_restart(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    with brief_server(settings(repository, retire_after=0)) as server:
        publish_times(repository, "twice", 20, version=2)
        assert answer(server, "twice") == 2, "a version is served before a reload"
        first = living_stubs(cast(int, server.pid))["twice"]
        assert server.load("twice") == 2
        assert (answer(server, "twice", 1), answer(server, "twice", 2)) == (2, 20)
        assert first < living_stubs(cast(int, server.pid))["twice"]
        assert server.load("twice", 1) == 1
        assert (answer(server, "twice", 1), answer(server, "twice", 2)) == (2, 20)
        assert server.heal() == []

        def is_retired() -> bool:
            assert server.heal() == []
            return len(living_stubs(cast(int, server.pid))["twice"]) == 1

        wait_until(is_retired)
        assert answer(server, "twice") == 2
        assert server.heal() == [], "the process of the retired version counts as lost"


def test_paths_may_have_blanks_quotes_and_letters_of_any_alphabet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the repository, the temporary folder, the environment and what its `.pth` files name."""
    strange = tmp_path / "mein 'projekt' é;$x \"ж\n"
    repository, environment = strange / "repository", strange / "environment"
    publish_times(repository, "twice", 2)
    publish_version(repository, "speaker")
    environment.symlink_to(sys.prefix)
    monkeypatch.setattr(tempfile, "tempdir", str(strange))
    monkeypatch.setattr(sys, "executable", str(environment / "bin" / "python3"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(strange)])
    with brief_server(settings(repository, retire_after=0)) as server:
        assert server.models == ("speaker", "twice")
        assert answer(server, "twice") == 2
        pid = cast(int, server.pid)
        for process in (pid, *process_table.children(pid)):
            paths = [text for text in process_table.arguments_of(process) if "/" in text]
            assert not [text for text in paths if str(strange) in text and "triptych," not in text]
        publish_times(repository, "twice", 20, version=2)
        assert server.load("twice") == 2
        with removable(repository / "twice" / "2") as is_removable:
            assert not is_removable
        wait_until(lambda: server.heal() == [] and len(living_stubs(pid)["twice"]) == 1)
        shutil.rmtree(repository / "twice" / "1")
        [stub] = living_stubs(pid)["twice"]
        os.kill(stub, signal.SIGKILL)
        wait_until(lambda: server.is_missing_stubs)
        assert server.heal() == ["twice"]
        assert answer(server, "twice") == 20


def test_further_parts_are_loaded_with_their_bundle(repository: Path) -> None:
    publish_times(repository, "pair", 2, parts={"image": "pair", "text": "pair-text"})
    publish_times(repository, "pair-text", 5, complete=False)
    with brief_server(settings(repository)) as server:
        assert server.models == ("pair", "pair-text")
        assert answer(server, "pair-text") == 5


def test_killed_stub_is_replaced_at_the_version_it_served(server: TritonServer) -> None:
    repository = server.settings.repository
    publish_times(repository, "twice", 20, version=2)
    assert server.pid is not None
    [stub] = living_stubs(server.pid)["twice"]
    assert incarnation(server, "twice") == "0"
    os.kill(stub, signal.SIGKILL)
    wait_until(lambda: server.is_missing_stubs)
    assert server.heal() == ["twice"]
    assert server.dead_stubs == 1
    assert incarnation(server, "twice") == "1"
    assert answer(server, "twice") == 2
    assert server.heal() == []


def test_processes_that_are_lost_together_are_replaced_together(repository: Path) -> None:
    names = ["a", "b", "c"]
    for number, name in enumerate(names):
        publish_times(repository, name, number)
    with brief_server(settings(repository)) as server:
        for [stub] in living_stubs(cast(int, server.pid)).values():
            os.kill(stub, signal.SIGKILL)
        wait_until(lambda: not living_stubs(cast(int, server.pid)))
        assert sorted(server.heal()) == names
        assert [answer(server, name) for name in names] == [0, 1, 2]


def test_process_that_is_killed_while_it_loads_is_replaced(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    server, killed = TritonServer(settings(repository)), set[int]()

    def kill_the_first() -> None:
        wait_until(lambda: server.pid is not None and bool(living_stubs(server.pid)))
        [stub] = living_stubs(cast(int, server.pid))["twice"]
        wait_until(lambda: "numpy" in Path(f"/proc/{stub}/maps").read_text())
        os.kill(stub, signal.SIGKILL)
        killed.add(stub)

    with ThreadPoolExecutor(1) as pool:
        kill = pool.submit(kill_the_first)
        with server:
            kill.result()
            assert answer(server, "twice") == 2
            assert living_stubs(cast(int, server.pid))["twice"].isdisjoint(killed)


def test_model_whose_process_is_killed_in_its_first_moments_returns(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.triton.server._MOST_UNSTARTED", 2)
    publish_times(repository, "twice", 2)
    with brief_server(settings(repository)) as server, ThreadPoolExecutor(1) as pool:
        supervisor, pid = Supervisor(server), cast(int, server.pid)
        [stub] = living_stubs(pid)["twice"]

        def kill_the_next() -> None:
            while not (found := living_stubs(pid).get("twice", {stub}) - {stub}):
                time.sleep(0.001)
            os.kill(found.pop(), signal.SIGKILL)

        kill = pool.submit(kill_the_next)
        os.kill(stub, signal.SIGKILL)

        def is_healed() -> bool:
            supervisor.check()
            return kill.done() and server.is_alive and not server.is_missing_stubs

        wait_until(lambda: server.is_missing_stubs)
        wait_until(is_healed)
        assert answer(server, "twice") == 2


def test_encoder_that_hangs_is_killed_and_replaced(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    with brief_server(settings(repository, stuck_after=2)) as server:
        supervisor = Supervisor(server)
        assert server.pid is not None
        [stub] = living_stubs(server.pid)["twice"]
        os.kill(stub, signal.SIGSTOP)

        def is_healed() -> bool:
            supervisor.check()
            return incarnation(server, "twice") == "1"

        wait_until(is_healed)
        assert answer(server, "twice") == 2
        assert server.pid is not None
        assert living_stubs(server.pid)["twice"] != {stub}


def test_supervisor_restarts_a_killed_server_on_its_ports(server: TritonServer) -> None:
    address, first = server.grpc_address, server.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not server.is_alive)
    Supervisor(server).check()
    assert server.pid != first
    assert server.grpc_address == address
    assert answer(server, "twice") == 2


def test_hung_server_is_killed_after_the_time_of_the_setting(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    stuck_after_s = 6.0
    with brief_server(settings(repository, stuck_after=stuck_after_s)) as server:
        supervisor, first = Supervisor(server), server.pid
        assert first is not None
        supervisor.check()
        os.kill(first, signal.SIGSTOP)
        hung_s = time.monotonic()
        while server.pid == first:
            server.await_loss(WATCH_PERIOD_S)
            supervisor.check()
        killed_s = time.monotonic() - hung_s
        assert stuck_after_s < killed_s < stuck_after_s + 5, "a restart takes two of them"
        assert answer(server, "twice") == 2


@pytest.mark.parametrize("bundles", [1, 3])
def test_server_that_ends_while_it_starts_is_started_again(repository: Path, bundles: int) -> None:
    for number in range(bundles):
        publish_times(repository, f"times{number}", number)
    killed: list[int | None] = []

    def kill(line: str) -> None:
        if "listens" in line and not killed:
            killed.append(server.pid)
            os.kill(cast(int, server.pid), signal.SIGKILL)

    server = TritonServer(settings(repository), kill)
    with server:
        assert server.pid not in (*killed, None)
        assert answer(server, "times0") == 0
        assert len(server.models) == bundles


def test_server_that_hangs_during_a_load_is_given_up(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    with brief_server(settings(repository, stuck_after=3)) as server:
        publish_times(repository, "twice", 20, version=2)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(SetupError, match="does not respond while loading"):
            server.load("twice")
        assert not server.is_alive


def test_chunked_request_ends_the_server_and_not_its_supervisor(server: TritonServer) -> None:
    """CVE-2025-23310, which only this user's processes can use."""
    supervisor, first = Supervisor(server), server.pid
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect(str(server.http_socket))
        head = "POST /v2/models/twice/infer HTTP/1.1\r\nHost: a\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(100):
            connection.sendall(b"1\r\nA\r\n" * 10_000)
        connection.sendall(b"0\r\n\r\n")
        connection.recv(1)
    wait_until(lambda: not server.is_alive)
    supervisor.check()
    assert server.pid not in (first, None)
    assert answer(server, "twice") == 2


def test_stop_leaves_no_process_and_no_file(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    server = TritonServer(settings(repository))
    server.start()
    session = cast(int, server.pid)
    files = runtime_files(session)
    assert len(process_table.session_members(session)) == 2, "the server and one stub"
    assert len(files()) == 3, "the lock, the stub's region, the backend directory"
    own = server.http_socket.parent
    made = [link.readlink() for link in own.glob("python_env_*")]
    assert made
    server.stop()
    server.stop()
    assert not any(folder.exists() for folder in made)
    assert process_table.session_members(session) == []
    assert files() == []


def test_two_servers_live_side_by_side(server: TritonServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    publish_times(other, "twice", 200)
    with TritonServer(settings(other)) as second:
        assert answer(second, "twice") == 200
        assert answer(server, "twice") == 2
    assert answer(server, "twice") == 2, "stopping one took the other's files"


def test_bundle_that_does_not_load_is_left_out_where_others_do(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = publish_times(repository, "broken", 2)
    graph = (broken / "model.onnx").read_bytes()
    (broken / "model.onnx").write_bytes(b"not a graph")
    server = TritonServer(settings(repository))
    reason = rf"Triton cannot load 'broken'.*{broken}/model.onnx"
    with pytest.raises(SetupError, match=reason):
        server.start()
    assert not server.is_alive
    publish_times(repository, "twice", 2)
    odd = publish_times(repository, "odd", 2)
    manifest = json.loads((odd / "bundle.json").read_text())
    for section in manifest["tasks"].values():
        section["unknown"] = 1
    (odd / "bundle.json").write_text(json.dumps(manifest))
    with brief_server(settings(repository)) as server:
        assert server.models == ("twice",)
        refused = read_record(repository / "served.json").refused
        assert refused.keys() == {"broken", "odd"}
        assert re.search(reason, refused["broken"].reason)
        assert re.search(rf"{odd}/bundle.json.*unknown.*export it again", refused["odd"].reason)
        (broken / "model.onnx").write_bytes(graph)
        assert server.load("broken") == 1
        assert answer(server, "broken") == 2
        assert read_record(repository / "served.json").refused.keys() == {"odd"}


def _write_check(folder: Path, factor: float) -> None:
    """What `publish_times` of another factor would compute, with the checksum of the file there."""
    x = np.array([[3]], np.float32)
    checksums = {"model.onnx": checksum(folder / "model.onnx")}
    outputs = {"y": np.array([3 * factor], np.float32)}
    SelfCheck(checksums, 1e-5, inputs={"x": x}, outputs=outputs).write(folder)


def test_models_that_fail_their_check_are_not_served_and_say_why(repository: Path) -> None:
    _write_check(publish_times(repository, "twice", 2), 2)
    _write_check(publish_times(repository, "other", 2), 2.5)
    changed = publish_times(repository, "changed", 2)
    _write_check(changed, 2)
    graph = (changed / "model.onnx").read_bytes()
    (changed / "model.onnx").write_bytes(graph.replace(b"twice", b"") + b" ")
    with brief_server(settings(repository)) as server:
        assert server.served == {"twice": 1}
        record = read_record(repository / "served.json")
        assert record.self_check
        assert set(record.refused) == {"other", "changed"}
        other, damaged = (record.refused[name].reason for name in ("other", "changed"))
        assert "other version 1 fails its self-check: y differs by 2.0e-01" in other
        assert "changed version 1: model.onnx changed since the export" in damaged
        _write_check(publish_times(repository, "other", 2, version=2), 2)
        server.load("other")
        assert server.served["other"] == 2
        assert set(read_record(repository / "served.json").refused) == {"changed"}


def test_check_can_be_switched_off(repository: Path) -> None:
    _write_check(publish_times(repository, "other", 2), 2.5)
    with brief_server(settings(repository, self_check=False)) as server:
        assert server.served == {"other": 1}
        record = read_record(repository / "served.json")
        assert (record.self_check, record.refused) == (False, {})


def test_taken_port_is_refused_before_anything_starts(server: TritonServer) -> None:
    port = int(server.grpc_address.split(":")[1])
    second = TritonServer(settings(server.settings.repository, grpc_port=port))
    with pytest.raises(SetupError, match=f":{port} "):
        second.start()
    assert second.pid is None


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="the kernel has no IPv6")
def test_server_on_ipv6_is_reached(repository: Path) -> None:
    with brief_server(settings(repository, host="[::1]")) as server:
        assert server.grpc_address.startswith("[::1]:")
        wait_until(lambda: server.status() is not None)  # late on a busy machine
        with InferenceServerClient(server.grpc_address) as client:
            assert client.is_server_live(client_timeout=10)


def test_installation_laid_out_like_nvidias_container_serves(
    repository: Path, tmp_path: Path
) -> None:
    wheel = find_installation()
    root = tmp_path / "tritonserver"
    shutil.copytree(wheel.backends / "python", root / "backends" / "python")
    shutil.copy2(cast(Path, wheel.stub), root / "backends" / "python" / STUB)
    (root / "bin").mkdir()
    shutil.copy2(wheel.program, root / "bin")
    (root / "lib").symlink_to(wheel.libraries[0])
    publish_times(repository, "twice", 2)
    chosen = settings(repository, program=root / "bin" / "tritonserver")
    with brief_server(chosen) as server:
        assert answer(server, "twice") == 2
        command = Path(f"/proc/{server.pid}/cmdline").read_text()
        assert command.startswith(str(root))


def test_previous_version_that_dies_leaves_the_served_one_alone(server: TritonServer) -> None:
    pid = cast(int, server.pid)
    [old] = living_stubs(pid)["twice"]
    publish_times(server.settings.repository, "twice", 20, version=2)
    server.load("twice")
    [new] = living_stubs(pid)["twice"] - {old}
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: server.is_missing_stubs)
    assert server.heal() == [], "the served version was loaded again"
    assert server.dead_stubs == 1
    assert living_stubs(pid)["twice"] == {new}
    assert answer(server, "twice", 2) == 20
    assert incarnation(server, "twice") == "0"
    wait_until(lambda: server._require_control().ready() == {"twice": {2}})
    assert server.heal() == []


def test_model_that_was_unloaded_comes_back(server: TritonServer) -> None:
    control = server._require_control()
    control.unload("twice")
    wait_until(lambda: not (control.ready() or {}).get("twice"))
    assert server.heal() == ["twice"]
    assert answer(server, "twice") == 2
    assert server.dead_stubs == 0
    assert server.heal() == []


def test_switch_whose_configurations_differ_replaces_the_version_at_once(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = publish_times(repository, "twice", 2)
    (folder / "config.pbtxt").write_text((repository / "twice" / "config.pbtxt").read_text())
    with brief_server(settings(repository)) as server:
        newer = publish_times(repository, "twice", 20, version=2)
        config = (repository / "twice" / "config.pbtxt").read_text()
        (newer / "config.pbtxt").write_text(config.replace('"y"', '"z"'))
        graph = onnx.load(newer / "model.onnx")
        graph.graph.output[0].name = graph.graph.node[0].output[0] = "z"
        onnx.save(graph, newer / "model.onnx")
        assert server.load("twice") == 2
        assert answer(server, "twice") == 20
        with pytest.raises(httpx.HTTPStatusError):
            answer(server, "twice", 1)
        assert server.load("twice", 1) == 1
        assert answer(server, "twice") == 2
    assert "failed to load" not in caplog.text, "Triton may end when one of two versions fails"


def test_parts_switch_together_or_not_at_all(repository: Path) -> None:
    parts = {"image": "pair", "text": "pair-text"}
    publish_times(repository, "pair-text", 5, complete=False)
    publish_times(repository, "pair", 2, parts=parts)
    with brief_server(settings(repository)) as server:
        publish_times(repository, "pair-text", 50, version=2, complete=False)
        broken = publish_times(repository, "pair", 20, version=2, parts=parts)
        graph = (broken / "model.onnx").read_bytes()
        (broken / "model.onnx").write_bytes(graph[:20])
        with pytest.raises(SetupError, match="Triton cannot load 'pair'"):
            server.load("pair")
        wait_until(lambda: server._require_control().ready() == {"pair": {1}, "pair-text": {1}})
        assert (answer(server, "pair"), answer(server, "pair-text")) == (2, 5)
        (broken / "model.onnx").write_bytes(graph)
        assert server.load("pair") == 2
        assert (answer(server, "pair", 2), answer(server, "pair-text", 2)) == (20, 50)
        assert (answer(server, "pair", 1), answer(server, "pair-text", 1)) == (2, 5)
