"""A `tritonserver` process from its start to its end."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Set
from pathlib import Path

from pydantic import HttpUrl

from inference.errors import SetupError
from serving.ports import address_of, free_ports, host_port, reachable
from serving.processes.launcher import launch_command
from serving.processes.process_table import children, is_running_child, running_with
from serving.processes.supervision import await_end, end_session, exit_reason, kill
from serving.settings.triton_settings import GPU, TritonSettings
from serving.triton.control import ModelControl, ServerStatus, restrictions
from serving.triton.installation import Installation, find_installation
from serving.triton.runtime_files import RuntimeFiles
from serving.triton.stubs import Stubs, StubWatch, running_stubs

_UNLOAD_S = 3.0
"""Triton unloads within two seconds of its last response, or never: 2.51 loses track of some
requests that were cancelled at the moment they ended, and keeps their models loaded."""
_SENT_S = 0.3
"""Triton sends what it has for its clients within this time after the last model process ended."""
_POLL_S = 0.2
_IDLE_S = 1.2
"""Longer than two heartbeats, so that a request that arrived just before the last one is seen."""
_ALL_STOPPED = "All models are stopped"  # logged by Triton when it counts no request in flight


class ShutdownMonitor:
    """Tracks one server's shutdown.

    `stop_waiting` and `read_log` may be called from any thread or signal handler, the other methods
    from the stopping thread alone.

    Args:
        read_status: The server's status; None if it does not respond. Triton serves its metrics
            until it exits.
        has_stubs: Whether a model process runs.
        sends_spans: Whether Triton sends its last spans when it exits.
    """

    def __init__(
        self,
        read_status: Callable[[], ServerStatus | None],
        has_stubs: Callable[[], bool],
        *,
        sends_spans: bool = False,
    ) -> None:
        self._read_status = read_status
        self._has_stubs = has_stubs
        self._sends_spans = sends_spans
        self._is_cut_short = False
        self._all_stopped_s = math.inf
        self._unloaded_s = math.inf
        self._last_busy_s = 0.0
        self._deadline_s = 0.0

    def begin(self, timeout_s: float) -> None:
        """Start the clock: requests in flight get this much time."""
        self._last_busy_s = time.monotonic()
        self._deadline_s = self._last_busy_s + timeout_s

    def shorten(self, timeout_s: float) -> None:
        """Move the deadline to at most `timeout_s` from now."""
        self._deadline_s = min(self._deadline_s, time.monotonic() + timeout_s)

    def stop_waiting(self) -> None:
        """Treat the deadline as passed."""
        self._is_cut_short = True

    def read_log(self, line: str) -> None:
        """Note the line in which Triton reports that no request is in flight."""
        if _ALL_STOPPED in line:
            self._all_stopped_s = time.monotonic()

    def await_idle(self) -> None:
        """Block until the server has been idle for two heartbeats, or the deadline has passed."""
        while not self._is_late() and self._idle_s() < _IDLE_S:
            time.sleep(_POLL_S)

    def is_over(self) -> bool:
        """Whether the server may be killed.

        Triton counts a generator's request as finished once the backend has accepted it, so the
        engines' own statistics decide. It looks once a second whether its models are unloaded, and
        exits two seconds after its last response: nothing is left to do once their processes ended.
        """
        since_all_stopped_s = time.monotonic() - self._all_stopped_s
        if self._is_late() or (self._idle_s() > _UNLOAD_S and since_all_stopped_s > _UNLOAD_S):
            return True
        if since_all_stopped_s < 0 or self._sends_spans or self._has_stubs():
            return False
        self._unloaded_s = min(self._unloaded_s, time.monotonic())
        return time.monotonic() - self._unloaded_s > _SENT_S

    def _is_late(self) -> bool:
        return self._is_cut_short or time.monotonic() > self._deadline_s

    def _idle_s(self) -> float:
        """Seconds since a request was last seen in flight."""
        status = self._read_status()
        if status is not None and not status.is_idle:
            self._last_busy_s = time.monotonic()
        return time.monotonic() - self._last_busy_s


log = logging.getLogger(__name__)

_LEVELS = {"E": logging.ERROR, "W": logging.WARNING, "F": logging.CRITICAL}
# A stub killed while it holds a shared-memory lock crashes Triton 2.51, which then spends two
# seconds on a stack trace without symbols: killing it at once shortens the outage.
_CRASH = re.compile(r"Signal \((?!2\)|15\))\d+\) received")
_UNCAUGHT = re.compile(r"\s*what\(\):\s*(.+)")
"""What C++ prints of the exception by which a program ends."""
_NO_GPU = "CudaDriverHelper has not been initialized"  # an error line on each CPU-only start
_READER_S = 2.0
_SETTLED_S = 10.0
"""Triton waits at most three seconds for a process that has ended."""
_RESPONSE_THREADS = 2
"""Of each model process in Triton, which sends one response at a time; Triton's own default is 32.
They stay when it dies while it has sequences."""
READY_TIMEOUT_S = 120.0
"""For the start of the server, and again for the loading of all bundles."""
_ORPHAN_S = 5.0
"""For the server of a killed supervisor, beyond the time of its requests."""

_OUT_OF_MEMORY = 500
"""Without memory the kernel ends Triton or a model's process, which are started again, and not the
supervisor, without which their files would stay."""


class ServerProcess:
    """One process, from launch to exit. It ends with the thread that launched it.

    Args:
        installation: Of Triton.
        command: Program and arguments.
        files: The server's runtime files; its processes inherit the lock.
        on_line: Called with each line of output, from a reader thread.
    """

    def __init__(
        self,
        installation: Installation,
        command: list[str],
        files: RuntimeFiles,
        on_line: Callable[[str], None],
    ) -> None:
        self._tail: deque[str] = deque(maxlen=40)
        self._on_line = on_line
        self._process = subprocess.Popen(
            launch_command(command, is_private=True),
            cwd=files.current,
            env=installation.environment(files),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C does not reach it: we decide the order of stopping
            pass_fds=(files.lock,),
        )
        score = Path(f"/proc/{self.pid}/oom_score_adj")
        with contextlib.suppress(OSError):
            score.write_text(str(max(_OUT_OF_MEMORY, int(score.read_text()))))
        self._reader = threading.Thread(target=self._read, name="triton-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id, also after it has ended."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    @property
    def last_output(self) -> str:
        """Exit reason and last lines of output; a crash leaves its stack trace there."""
        return "\n".join([exit_reason(self._process.poll()), *self._tail])

    @property
    def cause(self) -> str | None:
        """Why it, or a model's process, has crashed; else the signal that ended it; else an error.

        The error is the last line that was logged as one.
        """
        signals = [line for line in self._tail if _CRASH.match(line)]
        crashes = [found[1] for line in self._tail if (found := _UNCAUGHT.fullmatch(line))]
        errors = [
            line
            for line in self._tail
            if line[:1] in ("E", "F") and line[1:5].isdecimal() and _NO_GPU not in line
        ]
        code = self._process.poll() or 0
        ended = [exit_reason(code)] if code < 0 else []
        return next(iter([*crashes[-1:], *signals[-1:], *ended, *errors[-1:]]), None)

    @property
    def last_error(self) -> str:
        """The cause of its end, else its last line."""
        return self.cause or next(filter(None, reversed(self._tail)), "it printed nothing")

    def end(self, is_over: Callable[[], bool]) -> None:
        """SIGTERM, then SIGKILL for the whole session once `is_over`."""
        end_session(self._process, is_over)
        self._reader.join(_READER_S)

    def _read(self) -> None:
        """Log each line at its own level, until the end of output."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                text = line.rstrip()
                self._tail.append(text)
                self._on_line(text)
                if _CRASH.match(text):
                    kill(self.pid)
                is_glog = len(text) > 5 and text[1:5].isdecimal()
                is_relevant = is_glog and _NO_GPU not in text
                level = _LEVELS.get(text[0], logging.DEBUG) if is_relevant else logging.DEBUG
                log.log(level, "%s", text)


def await_orphan(settings: TritonSettings) -> None:
    """Wait for the server of a supervisor that was killed: it ends by itself and has our ports.

    Its requests in flight may take `graceful_termination_timeout`. Call it when no living
    supervisor has these ports on this repository.
    """
    ports = _port_arguments({"gRPC": settings.grpc_port, "metrics": settings.metrics_port})
    fixed = {argument for argument in ports if not argument.endswith("=0")}
    repository = _repository_argument(settings.repository)
    until_s = time.monotonic() + settings.graceful_termination_timeout + _ORPHAN_S
    if pids := running_with(repository, fixed):
        log.warning("waiting for the server of a killed supervisor to end: %s", pids)
    while (pids := running_with(repository, fixed)) and time.monotonic() < until_s:
        await_end(pids, 1.0)


def _port_arguments(ports: Mapping[str, int]) -> list[str]:
    return [f"--{purpose.lower()}-port={port}" for purpose, port in ports.items()]


def _repository_argument(repository: Path) -> str:
    """Triton ignores it: the backend does not exist. `await_orphan` reads it."""
    return f"--backend-config=triptych,repository={repository.resolve()}"


def command(
    installation: Installation,
    settings: TritonSettings,
    ports: Mapping[str, int],
    files: RuntimeFiles,
) -> list[str]:
    """Program and arguments: explicit model control, no auto-completion, HTTP on a socket alone."""
    address = address_of(settings.host)  # the server of the metrics looks no name up
    is_ipv6 = ":" in address
    return [
        str(installation.program),
        f"--model-repository={files.models}",
        _repository_argument(settings.repository),
        f"--backend-directory={files.backends}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        f"--http-address=unix:{files.socket}",
        "--http-port=0",
        f"--grpc-address={f'[{address}]' if is_ipv6 else address}",
        f"--metrics-address={'ipv6:' * is_ipv6}{address}",
        *_port_arguments(ports),
        restrictions(),
        f"--exit-timeout-secs={max(1, int(settings.graceful_termination_timeout))}",
        f"--backend-config=python,shm-region-prefix-name={files.prefix}",
        f"--backend-config=python,stub-timeout-seconds={int(READY_TIMEOUT_S)}",
        f"--backend-config=python,thread-pool-size={_RESPONSE_THREADS}",
        *(
            []
            if GPU.exists()
            else ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]
        ),
        *_trace_arguments(settings.otlp_endpoint),
    ]


def _trace_arguments(endpoint: HttpUrl | None) -> list[str]:
    """A rate of 0 leaves the requests that have a trace context, which are always traced."""
    if endpoint is None:
        return []
    return [
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=0",
        f"--trace-config=opentelemetry,url={str(endpoint).rstrip('/')}/v1/traces",
        "--trace-config=opentelemetry,resource=service.name=triptych-triton",
    ]


Progress = Callable[[str], None]


class ServerLifetime:
    """The process of a `TritonServer`, which may be started again once it has been stopped.

    Args:
        settings: Addresses, timeouts.
        progress: Called with one line for each step of a start.
    """

    def __init__(self, settings: TritonSettings, progress: Progress) -> None:
        self.settings = settings
        self._progress = progress
        self._process: ServerProcess | None = None
        self._seen_dead = 0
        self._unused_since_s: dict[str, float] = {}
        """Regions of shared memory that dead processes left, and since when."""
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

    def shared_memory(self) -> tuple[int, int]:
        """Bytes that model processes which died still hold, and bytes of all shared memory."""
        if self._files is None or self.pid is None:
            return 0, 0
        return sum(self._unused_regions().values()), self._files.shared_bytes

    def free_memory(self) -> None:
        """Give back the shared memory of model processes that ended while they had sequences.

        Triton keeps it until it stops, because nothing ends those sequences there. Of others it
        frees all. After `_SETTLED_S` none of its threads reads or writes there any more.
        """
        seen, self._seen_dead = self._seen_dead, self.dead_stubs
        if self._files is None or not (self._unused_since_s or seen != self._seen_dead):
            return
        now_s = time.monotonic()
        unused = self._unused_regions()
        self._unused_since_s = {name: self._unused_since_s.get(name, now_s) for name in unused}
        for name, since_s in self._unused_since_s.items():
            if now_s > since_s + _SETTLED_S:
                self._files.free_region(name)

    def _unused_regions(self) -> dict[str, int]:
        """Bytes of each region of which no process of a model has the name among its arguments."""
        if self._files is None or self.pid is None:
            return {}
        used = "\n".join(each for command in children(self.pid).values() for each in command)
        return {name: size for name, size in self._files.regions().items() if name not in used}

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

        What a signal interrupts, or a thread that loads a model still writes, is removed when it is
        called again.

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
        if self._files is not None:
            self._files.remove()
        self._process, self._control = None, None
        self._unused_since_s.clear()
        self._shutdown = self._make_shutdown()
        self._stubs.clear()

    def stop_waiting(self) -> None:
        """End the grace period of a stop in progress; may be called by a signal handler."""
        self._shutdown.stop_waiting()

    def _launch(self) -> tuple[ModelControl, RuntimeFiles]:
        installation = find_installation(self.settings.program)
        settings = self.settings
        wanted = {"gRPC": settings.grpc_port, "metrics": settings.metrics_port}
        # A restart keeps the ports that were chosen: clients are connected to them.
        self._ports = free_ports(settings.host, self._ports or wanted)
        files = self._files = RuntimeFiles()
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
