"""`triptych serve`: `triptych triton` and `triptych gateway` as two child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from serving.commands.flags import with_flags
from serving.draining import await_drained, readiness
from serving.ports import free_ports, host_port, reachable
from serving.processes.launcher import launch_command, module_command
from serving.processes.supervision import STOP_SIGNALS, end_session, exit_reason
from serving.settings.command_settings import FrontSettings
from serving.settings.triton_settings import ModelSettings, ServeSettings, TritonSettings
from triptych.errors import InvalidArgument, TriptychError

PROGRAM = module_command("triptych")


@with_flags(ServeSettings)
def serve(settings: ServeSettings) -> int:
    """Start Triton and the gateway, and report when they are ready; Ctrl-C stops both.

    \b
    triptych serve
    triptych serve --repository model_repository --http-port 9000 --grpc-port 9001
    triptych serve --max-rows 16 --state-memory 512MiB

    Triton listens on free loopback ports. Flags that are not given are taken from the environment;
    so are the other settings of both (see triptych gateway --help, triptych triton --help).
    """
    if not settings.repository.is_dir():
        raise InvalidArgument(f"no such folder: {settings.repository} (triptych export fills it)")
    wanted = {"http": settings.http_port, "grpc": settings.grpc_port}
    await_drained(settings.host, wanted, partial(_say, _STDERR))
    front = free_ports(settings.host, wanted)
    back = free_ports("127.0.0.1", {"grpc": 0, "metrics": 0}, front.values())
    listening = settings.model_copy(update={f"{name}_port": port for name, port in front.items()})
    processes = Processes(
        {
            "triton": [
                *(*PROGRAM, "triton", *settings.arguments(ModelSettings.model_fields)),
                *(f"--{name}-port={port}" for name, port in back.items()),
            ],
            "gateway": [
                *(*PROGRAM, "gateway", *listening.arguments(FrontSettings.model_fields)),
                *("--triton", f"127.0.0.1:{back['grpc']}"),
                *("--triton-metrics", f"127.0.0.1:{back['metrics']}"),
            ],
        }
    )
    address = host_port(reachable(settings.host), front["http"])
    try:
        return processes.run(
            lambda: _problem(address), lambda: _say(_STDOUT, f"ready at http://{address}")
        )
    finally:
        if processes.was_killed("triton"):
            _remove_server(settings, back)


def _remove_server(settings: ServeSettings, ports: dict[str, int]) -> None:
    """Wait for the server of a killed `triptych triton` to end, and remove its files."""
    from serving.triton.lifetime import await_orphan
    from serving.triton.runtime_files import remove_stale

    flags = {f"{name}_port": port for name, port in ports.items()}
    await_orphan(TritonSettings.model_validate({"repository": settings.repository, **flags}))
    remove_stale()


def _problem(address: str) -> str | None:
    """Why the gateway is not ready."""
    try:  # not our own client: it takes longer to import than all the rest of this command
        return readiness(address)
    except OSError as error:
        return f"the gateway does not respond on {address}: {error}"


_STDOUT, _STDERR = 1, 2


def _say(descriptor: int, line: str) -> None:
    """Print a line at once. A service does not end because the disk behind its log is full.

    Raises:
        BrokenPipeError: its reader has ended.
    """
    try:
        os.write(descriptor, f"{line}\n".encode())
    except BrokenPipeError:
        raise
    except OSError:
        pass  # there is no other place to say it


POLL_S = 0.1
LATE_S = 30.0
"""A start that takes longer says what it waits for, and again each time that has passed."""
STOP_TIMEOUT_S = 60.0
IMMEDIATE_STOP_TIMEOUT_S = 5.0
"""After a second SIGTERM."""


class Processes:
    """Commands that run side by side until a signal, or until one of them ends.

    Each child leads its own session: Ctrl-C reaches this process alone, which stops the children in
    order, and the children's remaining processes can be killed by session.

    Args:
        commands: Program and arguments by name; the name appears in messages.
    """

    def __init__(self, commands: dict[str, Sequence[str]]) -> None:
        self._commands = commands
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._signal: int | None = None
        self._is_immediate = False
        self._wake = threading.Event()

    def run(self, problem: Callable[[], str | None], on_ready: Callable[[], None]) -> int:
        """Start all, call `on_ready` once there is no problem, stop all on SIGINT or SIGTERM.

        A second signal is passed on; children that do not end soon after it are killed.

        Args:
            problem: Why they are not ready; None if they are.

        Returns:
            0 after SIGTERM.

        Raises:
            KeyboardInterrupt: After SIGINT, once all have ended.
            TriptychError: A child ended by itself, and the others have been stopped; or one did not
                stop and was killed.
        """
        overdue: list[str] = []
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)
        try:
            for name, command in self._commands.items():
                self._children[name] = subprocess.Popen(
                    launch_command(command), start_new_session=True
                )
            self._watch(problem, on_ready)
        finally:
            # Later children depend on earlier ones.
            for name, child in reversed(self._children.items()):
                if not self._end(child) and not self._is_immediate:
                    overdue.append(name)
            for number in STOP_SIGNALS:  # the program ends: its exit code is not to change now
                signal.signal(number, signal.SIG_IGN)
        if overdue:
            raise TriptychError(f"{', '.join(overdue)} did not stop in time: killed")
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        return 0

    def was_killed(self, name: str) -> bool:
        """Whether a command was ended by SIGKILL, so that it left its files."""
        child = self._children.get(name)
        return child is not None and child.returncode == -signal.SIGKILL

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_immediate = self._signal is not None
        self._signal = number
        self._wake.set()

    def _watch(self, problem: Callable[[], str | None], on_ready: Callable[[], None]) -> None:
        announced, began_s = False, time.monotonic()
        late_s = began_s + LATE_S
        while not self._wake.wait(POLL_S):
            for name, child in self._children.items():
                if child.poll() is not None:
                    raise TriptychError(
                        f"{name} ended ({exit_reason(child.returncode)}); stopped all"
                    )
            if announced:
                continue
            if (found := problem()) is None:
                announced = True
                on_ready()
            elif (now_s := time.monotonic()) > late_s:
                late_s = now_s + LATE_S
                _say(_STDERR, f"not ready after {now_s - began_s:.0f} s: {found}")

    def _end(self, child: subprocess.Popen[bytes]) -> bool:
        """End a child and what it started; whether it exited in time."""
        began_s, is_repeated = time.monotonic(), False
        deadline_s = began_s + STOP_TIMEOUT_S

        def is_over() -> bool:
            nonlocal deadline_s, is_repeated
            is_apart = time.monotonic() > began_s + POLL_S  # two at once would arrive as one
            if self._is_immediate and not is_repeated and is_apart:
                child.terminate()
                deadline_s, is_repeated = time.monotonic() + IMMEDIATE_STOP_TIMEOUT_S, True
            return time.monotonic() > deadline_s

        return end_session(child, is_over, writes_stacks=True)
