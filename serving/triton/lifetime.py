"""A `tritonserver` process from its start to its end: addresses, state, its models' processes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Set
from pathlib import Path

from inference.errors import SetupError
from serving.ports import free_ports, host_port, reachable
from serving.processes.process_table import is_running_child
from serving.processes.supervision import await_end, kill
from serving.settings.triton_settings import TritonSettings
from serving.triton.control import ModelControl, ServerStatus
from serving.triton.installation import find_installation
from serving.triton.runtime_files import RuntimeFiles
from serving.triton.server_process import READY_TIMEOUT_S, ServerProcess, command
from serving.triton.shutdown import ShutdownMonitor
from serving.triton.stubs import Stubs, StubWatch, running_stubs

Progress = Callable[[str], None]

log = logging.getLogger(__name__)


class ServerLifetime:
    """The process of a `TritonServer`, which may be started again once it has been stopped.

    Args:
        settings: Addresses, timeouts.
        progress: Called with one line for each step of a start.
    """

    def __init__(self, settings: TritonSettings, progress: Progress) -> None:
        self.settings = settings
        self._progress = progress
        self._cleanup = contextlib.ExitStack()
        self._process: ServerProcess | None = None
        self._files: RuntimeFiles | None = None
        self._control: ModelControl | None = None
        self._ports: dict[str, int] = {}
        self._shutdown = self._make_shutdown()
        self._stubs = StubWatch(self._running_stubs, self._is_running_stub)

    @property
    def http_socket(self) -> Path:
        """The Unix socket of KServe v2 over HTTP, of Triton's management endpoints too."""
        assert self._files is not None, "the server is not started"
        return self._files.socket

    @property
    def grpc_address(self) -> str:
        """`host:port` of KServe v2 over gRPC."""
        return self._address("gRPC")

    @property
    def metrics_address(self) -> str:
        """`host:port` of the Prometheus metrics (`/metrics`)."""
        return self._address("metrics")

    @property
    def pid(self) -> int | None:
        """The server's process, None before the start and after the stop."""
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        """Whether the process exists; its models may still be loading."""
        return self._process is not None and self._process.is_alive

    @property
    def last_output(self) -> str:
        """Exit reason and last lines of output; a crash leaves its stack trace there."""
        return self._process.last_output if self._process else "it was not started"

    @property
    def dead_stubs(self) -> int:
        """Model processes that died since the start; each keeps its shared memory."""
        return self._stubs.dead

    @property
    def is_missing_stubs(self) -> bool:
        """Whether a model's process has died since it was loaded."""
        return bool(self._stubs.missing())

    def await_loss(self, timeout_s: float) -> None:
        """Return as soon as the server or a model's process dies, or when the time is over."""
        pids = self._stubs.pids | ({self.pid} if self.pid else set())
        await_end(pids, timeout_s)

    def status(self) -> ServerStatus | None:
        """The server's status, None if it does not respond."""
        self._require_control()
        return self._read_status()

    def kill_stubs(self, model: str, pids: Set[int]) -> Set[int]:
        """Kill these processes of a model, for `heal` to find; their requests end with an error.

        Returns:
            Those that were the model's: the series of a dead process outlive it.
        """
        killed = self._stubs.running(model) & pids
        for pid in killed:
            kill(pid)
        return killed

    def stop(self, *, at_once: bool = False) -> None:
        """End the server and all its processes, and remove its files; harmless when repeated.

        Args:
            at_once: Without the time that requests in flight have otherwise.
        """
        if self._process:
            log.info("stopping Triton%s", " at once" if at_once else "")
        self._shutdown.begin(0.0 if at_once else self.settings.graceful_termination_timeout + 1.0)
        if self.dead_stubs:
            # Triton would wait in vain for a model whose stub is dead, so we wait ourselves.
            self._shutdown.await_idle()
            self._shutdown.shorten(1.0)
        if self._process:
            self._process.end(self._shutdown.is_over)
        self._cleanup.close()
        self._process, self._control = None, None
        self._shutdown = self._make_shutdown()
        self._stubs.clear()

    def stop_waiting(self) -> None:
        """End the grace period of a stop in progress; may be called by a signal handler."""
        self._shutdown.stop_waiting()

    def _launch(self) -> tuple[ModelControl, RuntimeFiles]:
        """Start the process."""
        installation = find_installation(self.settings.program)
        settings = self.settings
        wanted = {"gRPC": settings.grpc_port, "metrics": settings.metrics_port}
        # A restart keeps the ports that were chosen: clients are connected to them.
        self._ports = free_ports(settings.host, self._ports or wanted)
        files = self._files = RuntimeFiles()
        self._cleanup.callback(files.remove)
        installation.assemble(files.backends)
        self._progress(f"starting {installation.program.name}")
        arguments = command(installation, settings, self._ports, files)
        process = self._process = ServerProcess(installation, arguments, files, self._read_log)
        self._control = ModelControl(
            files.socket, self.metrics_address, READY_TIMEOUT_S, lambda: process.cause
        )
        return self._control, files

    def _await_live(self, deadline: float) -> None:
        while not self._require_control().is_live():
            if not self.is_alive:
                raise SetupError(f"tritonserver ended while starting: {self._last_error}")
            if time.monotonic() > deadline:
                raise SetupError(
                    f"tritonserver did not answer within {READY_TIMEOUT_S:g} s: {self._last_error}"
                )
            time.sleep(0.05)

    def _make_shutdown(self) -> ShutdownMonitor:
        return ShutdownMonitor(
            self._read_status,
            lambda: bool(self._running_stubs()),
            sends_spans=self.settings.otlp_endpoint is not None,
        )

    def _running_stubs(self) -> Stubs:
        if self._process is None:
            return {}
        return running_stubs(self._process.pid)

    def _is_running_stub(self, pid: int) -> bool:
        return self._process is not None and is_running_child(pid, self._process.pid)

    @property
    def _last_error(self) -> str:
        return self._process.last_error if self._process else ""

    def _read_log(self, line: str) -> None:
        self._shutdown.read_log(line)

    def _read_status(self) -> ServerStatus | None:
        status = self._control.status() if self._control else None
        if status is None:
            return None
        return status.of_processes(set(filter(self._is_running_stub, status.pids)))

    def _require_control(self) -> ModelControl:
        assert self._control is not None, "the server is not started"
        return self._control

    def _address(self, purpose: str) -> str:
        return host_port(reachable(self.settings.host), self._ports[purpose])
