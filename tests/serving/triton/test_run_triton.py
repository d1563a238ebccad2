"""`triptych triton`, a process of its own: signals, deaths, what is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from serving.liveness.stall_detector import read_engine_stats
from serving.local_http import request
from serving.ports import free_ports
from serving.processes import process_table
from serving.processes.supervision import kill
from serving.triton.lifetime import await_orphan
from serving.triton.runtime_files import RuntimeFiles
from serving.triton.server import TritonServer
from tests.inference.tiny_models import publish
from tests.serving.triton.tiny import (
    CONFIG,
    answer,
    living_stubs,
    publish_times,
    runtime_files,
    settings,
    wait_until,
)

pytestmark = pytest.mark.integration

SUPERVISOR = """
import sys
from serving.settings.triton_settings import TritonSettings
from serving.triton.supervisor import run_triton
grpc_port, metrics_port = map(int, sys.argv[2:])
settings = TritonSettings(repository=sys.argv[1], grpc_port=grpc_port, metrics_port=metrics_port)
sys.exit(run_triton(settings))
"""


# y = x, and it beats; while its version's folder has a file `loading` or `running`, it does that.
PATIENT = """
import json, time
from pathlib import Path
import triton_python_backend_utils as pb
from serving.liveness.heartbeat import Heartbeat
from inference.stateless.sessions import text_parameters
from serving.backends.instance import TritonMetrics
from serving.liveness.heartbeat import REPORTED, SessionStats

class TritonPythonModel:
    def initialize(self, args):
        self._folder = Path(args["model_repository"]) / args["model_version"]
        self._wait("loading")
        self._stats = SessionStats()
        parameters = text_parameters(json.loads(args["model_config"]))
        self._metrics = TritonMetrics(pb.MetricFamily, REPORTED, args, parameters)
        self._heartbeat = Heartbeat(self._stats, self._metrics.by_name)

    def execute(self, requests):
        with self._stats.run(len(requests)):
            self._wait("running")
        arrays = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("y", array)]) for array in arrays]

    def finalize(self):
        self._heartbeat.close()
        self._metrics.close()

    def _wait(self, name):
        while (self._folder / name).exists():
            time.sleep(0.01)
"""


def publish_patient(repository: Path, name: str) -> Path:
    """The folder in which files make the model wait."""
    version = publish(repository, name, None, CONFIG.replace("onnxruntime", "python"))
    (version / "model.py").write_text(PATIENT)
    return version


class SupervisorProcess:
    """`run_triton` in a child process, with the pid of its server."""

    def __init__(self, repository: Path) -> None:
        chosen = free_ports("127.0.0.1", {"gRPC": 0, "metrics": 0})
        self._grpc = f"127.0.0.1:{chosen['gRPC']}"
        self._metrics = f"127.0.0.1:{chosen['metrics']}"
        self._log = repository.parent / "supervisor.log"
        command = [sys.executable, "-c", SUPERVISOR, str(repository), *map(str, chosen.values())]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, model: str, x: float) -> float:
        """What a model makes of x; over gRPC, for a load occupies one of Triton's HTTP threads."""
        with triton.InferenceServerClient(self._grpc) as client:
            told = triton.InferInput("x", [1, 1], "FP32")
            told.set_data_from_numpy(np.array([[x]], np.float32))
            return float(client.infer(model, [told], client_timeout=60).as_numpy("y")[0, 0])

    def has_logged(self, text: str) -> bool:
        """Whether it has logged that."""
        return text in self._log.read_text()

    def is_busy(self, model: str) -> bool:
        """Whether a model is at work, by its own numbers."""
        stats = read_engine_stats(request(self._metrics, "GET", "/metrics", 5).body.decode())
        return model in stats and stats[model].is_busy

    def server(self) -> int:
        """Pid of tritonserver, once it is there."""
        wait_until(lambda: bool(process_table.children(self.process.pid)))
        return next(iter(process_table.children(self.process.pid)))

    def is_ready(self, model: str) -> bool:
        """Whether Triton has the model."""
        assert self.process.poll() is None, "run_triton ended"
        with triton.InferenceServerClient(self._grpc) as client:
            try:
                return bool(client.is_model_ready(model, client_timeout=5))
            except InferenceServerException:
                return False

    def wait_until_ready(self, model: str = "twice") -> None:
        wait_until(lambda: self.is_ready(model))


@pytest.fixture
def supervisor(repository: Path) -> Iterator[SupervisorProcess]:
    publish_times(repository, "twice", 2)
    made = SupervisorProcess(repository)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_everything_with_exit_code_0(
    supervisor: SupervisorProcess, number: signal.Signals
) -> None:
    supervisor.wait_until_ready()
    session = supervisor.server()
    files = runtime_files(session)
    assert files()
    supervisor.process.send_signal(number)
    assert supervisor.process.wait(20) == 0
    assert process_table.session_members(session) == []
    assert files() == []


def test_server_of_a_killed_supervisor_is_awaited_for_its_ports(
    supervisor: SupervisorProcess, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor.wait_until_ready()
    pid = supervisor.server()
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    flags = dict(argument.split("=", 1) for argument in arguments if "-port=" in argument)
    ports = {f"{name}_port": int(flags[f"--{name}-port"]) for name in ("grpc", "metrics")}
    await_orphan(settings(repository))
    assert "killed supervisor" not in caplog.text, "it has other ports"
    supervisor.process.kill()
    await_orphan(settings(repository, **ports))
    assert "killed supervisor" in caplog.text
    assert not Path(f"/proc/{pid}").exists() or not Path(f"/proc/{pid}/cmdline").read_text()
    with TritonServer(settings(repository, **ports)) as server:
        assert answer(server, "twice") == 2


def test_signal_during_the_start_stops_everything(supervisor: SupervisorProcess) -> None:
    session = supervisor.server()
    supervisor.process.terminate()
    assert supervisor.process.wait(20) == 0
    assert process_table.session_members(session) == []


def test_signal_while_a_model_is_healed_lets_the_others_finish(repository: Path) -> None:
    at_work, healed = (publish_patient(repository, name) for name in ("at-work", "healed"))
    supervisor = SupervisorProcess(repository)
    try:
        for model in ("at-work", "healed"):
            supervisor.wait_until_ready(model)
        session = supervisor.server()
        files = runtime_files(session)
        for file in (at_work / "running", healed / "loading"):
            file.touch()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(supervisor.ask, "at-work", 7.0)
            wait_until(lambda: supervisor.is_busy("at-work"))
            [stub] = living_stubs(session)["healed"]
            kill(stub)
            wait_until(lambda: not supervisor.is_ready("healed"))
            supervisor.process.terminate()
            wait_until(lambda: supervisor.has_logged("stopping Triton"))
            assert not answer.done(), "the server was stopped at once"
            (at_work / "running").unlink()
            assert answer.result() == 7
        assert supervisor.process.wait(30) == 0
        assert process_table.session_members(session) == []
        assert files() == []
    finally:
        supervisor.process.kill()
        supervisor.process.wait()


def test_server_ends_with_its_killed_supervisor(supervisor: SupervisorProcess) -> None:
    supervisor.wait_until_ready()
    session = supervisor.server()
    files = runtime_files(session)
    supervisor.process.kill()
    supervisor.process.wait()
    wait_until(lambda: not process_table.session_members(session))
    RuntimeFiles().remove()  # what the next server does first
    assert files() == []
