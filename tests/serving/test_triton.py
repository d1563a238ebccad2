"""Finding, starting, supervising and healing a Triton server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from onnx import TensorProto, helper

from serving.errors import BundleError, SetupError
from serving.heartbeat import Vitals
from serving.triton import TritonServer, TritonSettings, process
from serving.triton.belongings import SHARED_MEMORY, Belongings
from serving.triton.control import Condition, model_config
from serving.triton.farewell import Farewell
from serving.triton.installation import BACKENDS, STUB, Installation, find_installation
from serving.triton.ports import claim_ports
from serving.triton.stubs import StubWatch, living_stubs
from serving.triton.supervisor import Supervisor
from tests.serving.tiny_bundles import graph, publish

CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input [{name: "x" data_type: TYPE_FP32 dims: [1]}]
output [{name: "y" data_type: TYPE_FP32 dims: [1]}]
instance_group [{kind: KIND_CPU count: 1}]
parameters {key: "intra_op_thread_count" value {string_value: "1"}}
"""


def times(factor: float) -> Any:
    """The graph y = factor · x."""
    return graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        [("x", TensorProto.FLOAT, ["B", 1])],
        [("y", TensorProto.FLOAT, ["B", 1])],
        [helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])],
    )


def publish_times(repository: Path, name: str, factor: float, **options: Any) -> Path:
    return publish(repository, name, times(factor), CONFIG, **options)


def answer(server: TritonServer, model: str) -> float:
    """What the model makes of 1."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    url = f"http://{server.http_address}/v2/models/{model}/infer"
    reply = httpx.post(url, json=body, timeout=30, trust_env=False).raise_for_status().json()
    return float(reply["outputs"][0]["data"][0])


def incarnation(server: TritonServer, model: str) -> str:
    """How often the model was healed, as a client of Triton can read it."""
    url = f"http://{server.http_address}/v2/models/{model}/config"
    parameters = httpx.get(url, trust_env=False).raise_for_status().json()["parameters"]
    return str(parameters["incarnation"]["string_value"])


def wait_until(claim: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def belongings(server: int) -> Callable[[], list[Path]]:
    """Looks for what a server has on the machine, also when it is gone."""
    arguments = Path(f"/proc/{server}/cmdline").read_text().split("\0")
    prefix = next(a.split("=")[-1] for a in arguments if "shm-region-prefix-name" in a)
    folders = (SHARED_MEMORY, Path(tempfile.gettempdir()))
    return lambda: [path for folder in folders for path in folder.glob(f"{prefix}*")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


# Ports


def test_port_in_use_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} on 127.0.0.1 for Triton's gRPC"):
            claim_ports("127.0.0.1", {"HTTP": 0, "gRPC": port})


def test_chosen_ports_differ_and_wanted_ones_are_kept() -> None:
    wanted = claim_ports("127.0.0.1", {"any": 0})["any"]
    chosen = claim_ports("127.0.0.1", {"HTTP": 0, "gRPC": wanted, "metrics": 0})
    assert chosen["gRPC"] == wanted
    assert len(set(chosen.values())) == 3


# Belongings


def test_left_over_belongings_are_removed_and_live_ones_kept(tmp_path: Path) -> None:
    memory, temporary = tmp_path / "shm", tmp_path / "tmp"
    for folder in (memory, temporary):
        folder.mkdir()
    living = Belongings(memory, temporary)
    region = memory / f"{living.prefix}region"
    strange = memory / "other_lock"
    dead = [memory / "triptych_dead_lock", memory / "triptych_dead_region"]
    for path in (region, strange, *dead):
        path.touch()
    backend = temporary / "triptych_dead_backends" / "python"
    backend.mkdir(parents=True)
    Belongings(memory, temporary).remove()
    assert not any(path.exists() for path in (*dead, backend.parent))
    assert region in living.paths()
    assert living.backends in living.paths()
    living.remove()
    assert [path for folder in (memory, temporary) for path in folder.iterdir()] == [strange]


# Stubs


def test_missing_stub_is_counted_until_the_model_is_noted_again() -> None:
    living = {"a": {1, 2}, "b": {3}}
    watch = StubWatch(lambda: living)
    watch.note("a")
    watch.note("b")
    assert watch.lost() == {}
    living = {"a": {1}, "b": {3}}
    assert watch.lost() == {"a": 1}
    assert watch.lost() == {"a": 1}
    living = {"a": {1, 4}, "b": {3}}
    watch.note("a")
    assert watch.lost() == {}


def test_reload_by_someone_else_is_no_loss() -> None:
    living = {"a": {1}}
    watch = StubWatch(lambda: living)
    watch.note("a")
    for now in ({1, 2}, {2}):  # while the old version finishes, and after
        living = {"a": now}
        assert watch.lost() == {}
    living = {"a": set()}
    assert watch.lost() == {"a": 1}


def test_model_without_stubs_is_never_missed() -> None:
    watch = StubWatch(dict)
    watch.note("native")
    assert watch.lost() == {}


# Configuration of a load


def test_load_is_narrowed_to_one_version(repository: Path) -> None:
    publish_times(repository, "a", 1)
    config = model_config(repository / "a", 3, incarnation=2)
    assert config["version_policy"] == {"specific": {"versions": ["3"]}}
    assert config["parameters"]["incarnation"] == {"string_value": "2"}
    assert config["input"][0] == {"name": "x", "data_type": "TYPE_FP32", "dims": ["1"]}


def test_capacity_is_laid_over_generators_alone(repository: Path) -> None:
    publish_times(repository, "encoder", 1)
    own = CONFIG.replace("onnxruntime", "autoregressive") + (
        'parameters {key: "max_rows" value {string_value: "9"}}'
        'parameters {key: "max_waiting" value {string_value: "8"}}'
    )
    publish(repository, "generator", times(1), own)
    said = {"max_rows": "4"}
    found = model_config(repository / "generator", 1, 1, said)["parameters"]
    assert {name: entry["string_value"] for name, entry in found.items()} == {
        "intra_op_thread_count": "1",
        "max_rows": "4",
        "max_waiting": "8",
        "incarnation": "1",
    }
    assert "max_rows" not in model_config(repository / "encoder", 1, 1, said)["parameters"]


def test_broken_configuration_is_named(repository: Path) -> None:
    publish(repository, "a", None, "max_batch_size: many")
    with pytest.raises(BundleError, match=r"config.pbtxt is not a model configuration"):
        model_config(repository / "a", 1)
    with pytest.raises(BundleError, match="cannot read"):
        model_config(repository / "absent", 1)


# Installation


def test_our_python_is_first_on_the_path_of_the_stubs() -> None:
    environment = find_installation().environment()
    assert shutil.which("python3", path=environment["PATH"]) == str(
        Path(sys.executable).parent / "python3"
    )


def test_native_backend_goes_before_ours(tmp_path: Path) -> None:
    native = tmp_path / "native"
    for name in ("python", "onnxruntime"):
        (native / name).mkdir(parents=True)
    assembled = tmp_path / "assembled"
    assembled.mkdir()
    Installation(tmp_path / "tritonserver", native, ()).assemble(assembled)
    assert (assembled / "onnxruntime").resolve() == native / "onnxruntime"
    assert {path.name for path in assembled.iterdir()} >= {
        path.parent.name for path in BACKENDS.glob("*/model.py")
    }


def test_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is not an executable tritonserver"):
        find_installation(tmp_path / "tritonserver")


# Supervisor


class FakeServer:
    """A server that dies, hangs or fails as told."""

    def __init__(self, *, is_alive: bool = True, dead_stubs: int = 0, starts: bool = True) -> None:
        self.settings = SimpleNamespace(
            max_dead_stubs=2, max_restarts=3, stuck_after_s=10, idle_before_restart_s=60
        )
        self.is_alive = is_alive
        self.dead_stubs = dead_stubs
        self.starts = starts
        self.has_lost_stubs = False
        self.last_words = "exit code -11"
        self.engines: dict[str, Vitals] | None = {"a": vitals(1)}
        self.calls: list[str] = []

    def heal(self) -> list[str]:
        self.calls.append("heal")
        return []

    def condition(self) -> Condition | None:
        return None if self.engines is None else Condition(self.engines, pending=0)

    def kill_stubs(self, model: str) -> None:
        self.calls.append(f"kill {model}")

    def stop(self, *, at_once: bool) -> None:
        assert at_once, "a broken server is waited for"
        self.calls.append("stop")
        self.is_alive, self.dead_stubs = False, 0

    def start(self) -> None:
        self.calls.append("start")
        if not self.starts:
            raise SetupError("no")
        self.is_alive = True


def vitals(beats: int, rows: int = 0) -> Vitals:
    return Vitals(0, {"beats": beats, "rows_in_use": rows})


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def supervise(server: FakeServer, clock: Clock | None = None) -> Supervisor:
    return Supervisor(cast(TritonServer, server), clock or Clock())


def watch(supervisor: Supervisor, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now_s += 1
        supervisor.check()


def test_healthy_server_is_left_alone() -> None:
    server = FakeServer(dead_stubs=2)
    supervise(server).check()
    assert server.calls == ["heal"]


def test_one_dead_stub_too_many_restarts_the_server_instead_of_healing() -> None:
    server = FakeServer(dead_stubs=2)
    server.has_lost_stubs = True
    supervise(server).check()
    assert server.calls == ["stop", "start"]


def test_supervisor_gives_up_after_restarts_in_a_row() -> None:
    server = FakeServer(is_alive=False, starts=False)
    supervisor = supervise(server)
    for _ in range(3):
        supervisor.check()
    with pytest.raises(SetupError, match="gave up after 3 restarts"):
        supervisor.check()
    assert server.calls == ["stop", "start"] * 3


def test_model_whose_heart_stands_still_is_killed() -> None:
    server, clock = FakeServer(), Clock()
    supervisor = supervise(server, clock)
    for beats in range(20):
        server.engines = {"a": vitals(beats), "b": vitals(7 if beats > 7 else beats)}
        watch(supervisor, clock, 1)
    assert {call for call in server.calls if "kill" in call} == {"kill b"}


def test_heart_that_is_slow_is_not_dead() -> None:
    server, clock = FakeServer(), Clock()
    supervisor = supervise(server, clock)
    for beats in range(5):
        server.engines = {"a": vitals(beats, rows=64)}
        watch(supervisor, clock, 9)
    assert set(server.calls) == {"heal"}


def test_time_in_which_nobody_looked_does_not_count() -> None:
    server, clock = FakeServer(), Clock()
    supervisor = supervise(server, clock)
    supervisor.check()
    clock.now_s += 3600  # the machine slept
    supervisor.check()
    assert set(server.calls) == {"heal"}


def test_server_that_does_not_answer_is_restarted() -> None:
    server, clock = FakeServer(), Clock()
    server.engines = None
    watch(supervise(server, clock), clock, 11)
    assert server.calls[-2:] == ["stop", "start"]


def test_dead_stubs_are_got_rid_of_when_nobody_asks_for_anything() -> None:
    server, clock = FakeServer(dead_stubs=1), Clock()
    supervisor = supervise(server, clock)
    for beats in range(100):
        server.engines = {"a": vitals(beats, rows=beats % 2)}
        watch(supervisor, clock, 1)
    assert set(server.calls) == {"heal"}, "it was restarted under load"
    for beats in range(100, 200):
        server.engines = {"a": vitals(beats)}
        watch(supervisor, clock, 1)
    assert server.calls.count("start") == 1
    assert server.dead_stubs == 0


def test_encoders_whose_runs_are_never_seen_are_busy_all_the_same() -> None:
    """A hundred runs a second end between two looks; canaries alone are nobody's business."""
    server, clock = FakeServer(dead_stubs=1), Clock()
    supervisor = supervise(server, clock)
    for second in range(100):
        server.engines = {"clip": Vitals(0, {"beats": second, "steps": 100.0 * second})}
        watch(supervisor, clock, 1)
    assert set(server.calls) == {"heal"}, "it was restarted under load"
    for second in range(100):
        figures = {"beats": 100.0 + second, "steps": 9900.0 + second // 10}
        server.engines = {"clip": Vitals(0, figures)}
        watch(supervisor, clock, 1)
    assert server.calls.count("start") == 1


# Farewell


class Ticking:
    """Stands for `time` in a module."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    clock = Ticking()
    monkeypatch.setattr("serving.triton.farewell.time", clock)
    return clock


def test_stop_waits_for_engines_and_not_for_models(ticking: Ticking) -> None:
    condition = Condition({"a": vitals(1, rows=1)}, pending=0)
    farewell = Farewell(lambda: condition)
    farewell.begin(30)
    farewell.read("I1121 All models are stopped, unloading models")
    ticking.now_s = 20
    assert not farewell.is_over(), "a sequence is still being decoded"
    condition = Condition({"a": vitals(2, rows=0)}, pending=0)
    ticking.now_s = 22
    assert not farewell.is_over()
    ticking.now_s = 24
    assert farewell.is_over(), "the model may be kept loaded for ever"


def test_stop_waits_while_triton_says_that_requests_are_in_flight(ticking: Ticking) -> None:
    farewell = Farewell(lambda: Condition({}, pending=0))
    farewell.begin(30)
    ticking.now_s = 29
    assert not farewell.is_over()
    ticking.now_s = 31
    assert farewell.is_over()


def test_stop_in_haste_waits_for_nobody(ticking: Ticking) -> None:
    farewell = Farewell(lambda: Condition({}, pending=9))
    farewell.begin(30)
    farewell.hurry()
    farewell.await_idle()
    assert farewell.is_over()


def test_quiet_server_is_idle_after_two_heartbeats(ticking: Ticking) -> None:
    looks = iter([9, 9, 0, 1])
    farewell = Farewell(lambda: Condition({}, pending=next(looks, 0)))
    farewell.begin(30)
    farewell.await_idle()
    assert 1.2 < ticking.now_s < 3


# A real server


@pytest.fixture
def server(repository: Path) -> Iterator[TritonServer]:
    publish_times(repository, "twice", 2)
    with TritonServer(TritonSettings(repository)) as started:
        yield started


@pytest.mark.integration
def test_half_written_version_is_never_loaded(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    publish_times(repository, "twice", 3, version=2, complete=False)
    publish_times(repository, "nothing", 3, complete=False)
    with TritonServer(TritonSettings(repository)) as server:
        assert server.models == ("twice",)
        assert answer(server, "twice") == 2


@pytest.mark.integration
def test_versions_go_forth_and_back_without_a_restart(server: TritonServer) -> None:
    publish_times(server.settings.repository, "twice", 20, version=2)
    assert answer(server, "twice") == 2, "a version is served before anyone asked for it"
    assert server.load("twice") == 2
    assert answer(server, "twice") == 20
    assert server.load("twice", 1) == 1
    assert answer(server, "twice") == 2


@pytest.mark.integration
def test_further_parts_are_loaded_with_their_bundle(repository: Path) -> None:
    publish_times(repository, "pair", 2, parts={"image": "pair", "text": "pair-text"})
    publish_times(repository, "pair-text", 5, complete=False)
    with TritonServer(TritonSettings(repository)) as server:
        assert server.models == ("pair", "pair-text")
        assert answer(server, "pair-text") == 5


@pytest.mark.integration
def test_killed_stub_is_replaced_at_the_version_it_served(server: TritonServer) -> None:
    repository = server.settings.repository
    publish_times(repository, "twice", 20, version=2)
    assert server.pid is not None
    [stub] = living_stubs(server.pid, repository)["twice"]
    assert incarnation(server, "twice") == "0"
    os.kill(stub, signal.SIGKILL)
    wait_until(lambda: not living_stubs(cast(int, server.pid), repository))
    assert server.heal() == ["twice"]
    assert server.dead_stubs == 1
    assert incarnation(server, "twice") == "1"
    assert answer(server, "twice") == 2
    assert server.heal() == []


@pytest.mark.integration
def test_encoder_that_hangs_is_killed_and_replaced(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    with TritonServer(TritonSettings(repository, stuck_after_s=2)) as server:
        supervisor = Supervisor(server)
        assert server.pid is not None
        [stub] = living_stubs(server.pid, repository)["twice"]
        os.kill(stub, signal.SIGSTOP)

        def is_healed() -> bool:
            supervisor.check()
            return incarnation(server, "twice") == "1"

        wait_until(is_healed)
        assert answer(server, "twice") == 2
        assert server.pid is not None
        assert living_stubs(server.pid, repository)["twice"] != {stub}


@pytest.mark.integration
def test_supervisor_restarts_a_killed_server_on_its_ports(server: TritonServer) -> None:
    address, first = server.http_address, server.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not server.is_alive)
    Supervisor(server).check()
    assert server.pid != first
    assert server.http_address == address
    assert answer(server, "twice") == 2


@pytest.mark.integration
def test_stop_leaves_no_process_and_no_file(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    server = TritonServer(TritonSettings(repository))
    server.start()
    session = cast(int, server.pid)
    files = belongings(session)
    assert len(process.session_members(session)) == 2, "the server and one stub"
    assert len(files()) == 3, "the lock, the stub's region, the backend directory"
    server.stop()
    server.stop()
    assert process.session_members(session) == []
    assert files() == []


@pytest.mark.integration
def test_two_servers_live_side_by_side(server: TritonServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    publish_times(other, "twice", 200)
    with TritonServer(TritonSettings(other)) as second:
        assert answer(second, "twice") == 200
        assert answer(server, "twice") == 2
    assert answer(server, "twice") == 2, "stopping one took the other's files"


@pytest.mark.integration
def test_bundle_that_does_not_load_stops_the_start_with_its_reason(repository: Path) -> None:
    publish_times(repository, "twice", 2)
    broken = publish_times(repository, "broken", 2)
    (broken / "model.onnx").write_bytes(b"not a graph")
    server = TritonServer(TritonSettings(repository))
    with pytest.raises(SetupError, match=r"Triton cannot load 'broken'.*model.onnx"):
        server.start()
    assert not server.is_alive


@pytest.mark.integration
def test_taken_port_is_refused_before_anything_starts(server: TritonServer) -> None:
    port = int(server.grpc_address.split(":")[1])
    second = TritonServer(TritonSettings(server.settings.repository, grpc_port=port))
    with pytest.raises(SetupError, match=f"port {port} "):
        second.start()
    assert second.pid is None


@pytest.mark.integration
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
    settings = TritonSettings(repository, program=root / "bin" / "tritonserver")
    with TritonServer(settings) as server:
        assert answer(server, "twice") == 2
        command = Path(f"/proc/{server.pid}/cmdline").read_text()
        assert command.startswith(str(root))


# `triptych triton`: a process of its own

KEEPER = """
import sys
from pathlib import Path
from serving.triton import TritonSettings, run_triton
sys.exit(run_triton(TritonSettings(Path(sys.argv[1]), "127.0.0.1", *map(int, sys.argv[2:]))))
"""


class Keeper:
    """`run_triton` in a child process, with the pid of its server."""

    def __init__(self, repository: Path) -> None:
        chosen = claim_ports("127.0.0.1", {"HTTP": 0, "gRPC": 0, "metrics": 0})
        self._ready = f"http://127.0.0.1:{chosen['HTTP']}/v2/models/twice/ready"
        command = [sys.executable, "-c", KEEPER, str(repository), *map(str, chosen.values())]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def server(self) -> int:
        """Pid of tritonserver, once it is there."""
        wait_until(lambda: bool(process.children(self.process.pid)))
        return process.children(self.process.pid)[0].pid

    def wait_until_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, "run_triton ended"
            try:
                return httpx.get(self._ready, trust_env=False).is_success
            except httpx.TransportError:
                return False

        wait_until(is_ready)


@pytest.fixture
def keeper(repository: Path) -> Iterator[Keeper]:
    publish_times(repository, "twice", 2)
    made = Keeper(repository)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_everything_with_exit_code_0(keeper: Keeper, number: signal.Signals) -> None:
    keeper.wait_until_ready()
    session = keeper.server()
    files = belongings(session)
    assert files()
    keeper.process.send_signal(number)
    assert keeper.process.wait(20) == 0
    assert process.session_members(session) == []
    assert files() == []


@pytest.mark.integration
def test_signal_during_the_start_stops_everything(keeper: Keeper) -> None:
    session = keeper.server()
    keeper.process.terminate()
    assert keeper.process.wait(20) == 0
    assert process.session_members(session) == []


@pytest.mark.integration
def test_killed_keeper_takes_its_server_along(keeper: Keeper) -> None:
    keeper.wait_until_ready()
    session = keeper.server()
    files = belongings(session)
    keeper.process.kill()
    keeper.process.wait()
    wait_until(lambda: not process.session_members(session))
    Belongings().remove()  # what the next server does first
    assert files() == []
