"""One `tritonserver` process: its command line, its state, its output."""

from __future__ import annotations

import logging
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import HttpUrl

from serving.ports import address_of
from serving.processes.launcher import launch_command
from serving.processes.process_table import running_with
from serving.processes.supervision import await_end, end_session, exit_reason, kill
from serving.settings.served_device import GPU
from serving.settings.triton_settings import TritonSettings
from serving.triton.control import restrictions
from serving.triton.installation import Installation
from serving.triton.runtime_files import RuntimeFiles

log = logging.getLogger(__name__)

_LEVELS = {"E": logging.ERROR, "W": logging.WARNING, "F": logging.CRITICAL}
# A stub killed while it holds a shared-memory lock crashes Triton 2.51, which then spends two
# seconds on a stack trace without symbols: killing it at once shortens the outage.
_CRASH = re.compile(r"Signal \((?!2\)|15\))\d+\) received")
_UNCAUGHT = re.compile(r"\s*what\(\):\s*(.+)")
"""What C++ prints of the exception by which a program ends."""
_NO_GPU = "CudaDriverHelper has not been initialized"  # an error line on each CPU-only start
_READER_S = 2.0
READY_TIMEOUT_S = 120.0
"""For the start of the server, and again for the loading of all bundles."""
_ORPHAN_S = 5.0
"""For the server of a killed supervisor, beyond the time of its requests."""


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
        """Why it, or a model's process, has crashed; else the last line logged as an error."""
        crashes = [found[1] for line in self._tail if (found := _UNCAUGHT.fullmatch(line))]
        errors = [
            line
            for line in self._tail
            if line[:1] in ("E", "F") and line[1:5].isdecimal() and _NO_GPU not in line
        ]
        return next(iter([*crashes[-1:], *errors[-1:]]), None)

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
