"""A running `tritonserver`: how it is called, whether it lives, what it says."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from serving.triton import process as processes
from serving.triton.belongings import Belongings
from serving.triton.installation import Installation
from serving.triton.settings import TritonSettings

log = logging.getLogger(__name__)

_LEVELS = {"E": logging.ERROR, "W": logging.WARNING, "F": logging.CRITICAL}
# A stub that is killed while it holds a lock of the shared memory takes Triton 2.51 with it. Triton
# then works for two seconds on a trace without symbols; nobody needs to wait for it.
_CRASH = re.compile(r"Signal \((?!2\)|15\))\d+\) received")
_GPU = Path("/dev/nvidiactl")
_NO_GPU = "CudaDriverHelper has not been initialized"  # an error line on each CPU-only start
_READER_S = 2.0


class Program:
    """One process from its launch to its end. It ends with the thread that launched it.

    Args:
        installation: Of Triton.
        command: Program and arguments.
        belongings: Of this server; its processes inherit the lock.
        listen: Told each line that it prints, from a thread of its own.
    """

    def __init__(
        self,
        installation: Installation,
        command: list[str],
        belongings: Belongings,
        listen: Callable[[str], None],
    ) -> None:
        self._tail: deque[str] = deque(maxlen=40)
        self._listen = listen
        self._process = processes.launch(
            command, installation.environment(), inherited=(belongings.lock,)
        )
        self._reader = threading.Thread(target=self._read, name="triton-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process, dead or alive."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process exists."""
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """How it ended, and what it printed last; a crash leaves its trace there."""
        return "\n".join([f"exit code {self._process.poll()}", *self._tail])

    @property
    def last_error(self) -> str:
        """The last line that it marked as an error, else its last line."""
        lines = [line for line in self._tail if line]
        errors = [line for line in lines if line[0] in "EF" and line[1:5].isdecimal()]
        return (errors or lines or ["it printed nothing"])[-1]

    def end(self, is_over: Callable[[], bool]) -> None:
        """Ask it to end, end it with all its processes when the time is over."""
        processes.end(self._process, is_over)
        self._reader.join(_READER_S)

    def _read(self) -> None:
        """Passes its lines on at their own level, until the end."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                text = line.rstrip()
                self._tail.append(text)
                self._listen(text)
                if _CRASH.match(text):
                    processes.kill(self.pid)
                is_glog = len(text) > 5 and text[1:5].isdecimal()
                is_news = is_glog and _NO_GPU not in text
                level = _LEVELS.get(text[0], logging.DEBUG) if is_news else logging.DEBUG
                log.log(level, "%s", text)


def command(
    installation: Installation,
    settings: TritonSettings,
    ports: Mapping[str, int],
    belongings: Belongings,
) -> list[str]:
    """Program and arguments: explicit model control, nothing guessed, nothing public."""
    return [
        str(installation.program),
        f"--model-repository={settings.repository.resolve()}",
        f"--backend-directory={belongings.backends}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        f"--http-address={settings.host}",
        f"--http-port={ports['HTTP']}",
        f"--grpc-address={settings.host}",
        f"--grpc-port={ports['gRPC']}",
        f"--metrics-address={settings.host}",
        f"--metrics-port={ports['metrics']}",
        f"--exit-timeout-secs={max(1, int(settings.stop_timeout_s))}",
        f"--backend-config=python,shm-region-prefix-name={belongings.prefix}",
        f"--backend-config=python,stub-timeout-seconds={int(settings.ready_timeout_s)}",
        *(
            []
            if _GPU.exists()
            else ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]
        ),
    ]
