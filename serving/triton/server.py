"""One Triton server: started with every complete bundle loaded, healed, stopped without remains."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from types import TracebackType

from serving import bundle
from serving.errors import SetupError
from serving.ports import free_ports
from serving.triton import process as processes
from serving.triton.control import ModelControl, ServerStatus, model_config, restrictions
from serving.triton.installation import Installation, find_installation
from serving.triton.runtime_files import RuntimeFiles
from serving.triton.server_process import ServerProcess, command
from serving.triton.settings import TritonSettings
from serving.triton.shutdown import ShutdownMonitor
from serving.triton.stubs import Living, StubWatch, living_stubs

Progress = Callable[[str], None]

log = logging.getLogger(__name__)

_LOADS_AT_ONCE = 4
_POLL_S = 0.2


class TritonServer:
    """A `tritonserver` process in explicit model control, with its models.

    Use it as a context manager, or call `start` and `stop`. The server ends with the *thread* that
    called `start` (Linux ties the death signal to threads), so start it from one that stays.

    Args:
        settings: Repository, addresses, timeouts.
        progress: Called with one line for each step of a start.
    """

    def __init__(self, settings: TritonSettings, progress: Progress = log.info) -> None:
        self.settings = settings
        self.dead_stubs = 0
        self._progress = progress
        self._cleanup = contextlib.ExitStack()
        self._process: ServerProcess | None = None
        self._control: ModelControl | None = None
        self._ports: dict[str, int] = {}
        self._loaded: set[str] = set()
        self._is_serving = False
        self._heals: Counter[str] = Counter()  # kept over restarts: clients compare it
        self._shutdown = ShutdownMonitor(self._read_status)
        self._stubs = StubWatch(self._living_stubs)

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def http_address(self) -> str:
        """`host:port` of KServe v2 over HTTP."""
        return self._address("HTTP")

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
        """Exit code and last lines of output; a crash leaves its stack trace there."""
        return self._process.last_output if self._process else "it was not started"

    @property
    def models(self) -> tuple[str, ...]:
        """Triton models that were loaded, further parts included."""
        return tuple(sorted(self._loaded))

    def start(self) -> None:
        """Start the server and load every complete bundle.

        Raises:
            SetupError: no Triton, a port in use, the server ended or was not ready in time, or a
                bundle does not load (Triton's reason in the message). Nothing is left running.
        """
        began = time.monotonic()
        found = list(bundle.bundles(self.settings.repository))
        try:
            self._launch(find_installation(self.settings.program))
            self._await_live(began + self.settings.ready_timeout_s)
            self._progress(f"Triton listens on {self.settings.host}:{self._ports['gRPC']} (gRPC)")
            self._run_all([partial(self._load_bundle, each) for each in found])
        except BaseException:
            self.stop()
            raise
        self._is_serving = True
        took = time.monotonic() - began
        self._progress(f"Triton ready with {len(self._loaded)} models in {took:.1f} s")

    def stop(self, *, at_once: bool = False) -> None:
        """End the server and all its processes, and remove its files; harmless when repeated.

        Args:
            at_once: Without the time that requests in flight have otherwise.
        """
        if self._process:
            log.info("stopping Triton%s", " at once" if at_once else "")
        self._shutdown.begin(0.0 if at_once else self.settings.stop_timeout_s + 1.0)
        if self.dead_stubs:
            # Triton would wait in vain for a model whose stub is dead, so we wait ourselves.
            self._shutdown.await_idle()
            self._shutdown.shorten(1.0)
        if self._process:
            self._process.end(self._shutdown.is_over)
        if self._control:
            self._control.close()
        self._cleanup.close()
        self._process, self._control, self.dead_stubs = None, None, 0
        self._is_serving = False
        self._loaded.clear()
        self._shutdown = ShutdownMonitor(self._read_status)
        self._stubs = StubWatch(self._living_stubs)

    def stop_waiting(self) -> None:
        """End the grace period of a stop in progress; may be called by a signal handler."""
        self._shutdown.stop_waiting()

    def load(self, name: str, version: int | None = None) -> int:
        """Load a bundle with all its parts, at its newest complete version or a given one.

        Returns:
            The version that is now served.

        Raises:
            SetupError: no such complete version, or Triton cannot load it.
        """
        folder = self.settings.repository / name
        chosen = (
            bundle.newest_bundle(self.settings.repository, name)
            if version is None
            else bundle.open_bundle(folder / str(version))
        )
        return self._load_bundle(chosen)

    @property
    def is_missing_stubs(self) -> bool:
        """Whether a model's process has died since it was loaded."""
        return bool(self._stubs.missing())

    def await_loss(self, timeout_s: float) -> None:
        """Return as soon as the server or a model's process dies, or when the time is over."""
        pids = self._stubs.pids | ({self.pid} if self.pid else set())
        processes.await_end(pids, timeout_s)

    def status(self) -> ServerStatus | None:
        """The server's status, None if it does not respond."""
        return self._require_control().status()

    def kill_stubs(self, model: str, pids: Set[int]) -> Set[int]:
        """Kill these processes of a model, for `heal` to find; their requests end with an error.

        Returns:
            Those that were the model's: the series of a dead process outlive it.
        """
        killed = self._stubs.running(model) & pids
        for pid in killed:
            processes.kill(pid)
        return killed

    def heal(self) -> list[str]:
        """Replace every model that lost a stub; returns their names.

        Triton neither restarts a dead stub nor stops calling its model ready, and what the stub had
        accepted hangs. So the model is unloaded first, by which clients know at once that their
        requests are lost, then loaded anew. The dead instance may keep its shared memory until the
        server ends, so it is counted.

        Raises:
            SetupError: a model cannot be loaded again.
        """
        lost: dict[str, int] = {}
        for model, count in self._stubs.missing().items():
            version = self._require_control().version(model)
            if version is None:
                self._stubs.forget(model)
                continue
            log.warning("model %s lost %d of its processes; loading it again", model, count)
            self.dead_stubs += count
            self._require_control().unload(model)
            lost[model] = version
        if not lost:
            return []
        self._heals.update(lost.keys())
        self._run_all([partial(self._load_model, model, lost[model]) for model in lost])
        return list(lost)

    def _launch(self, installation: Installation) -> None:
        settings = self.settings
        wanted = {
            "HTTP": settings.http_port,
            "gRPC": settings.grpc_port,
            "metrics": settings.metrics_port,
        }
        # A restart keeps the ports that were chosen: clients are connected to them.
        self._ports = free_ports(settings.host, self._ports or wanted)
        files = RuntimeFiles()
        self._cleanup.callback(files.remove)
        installation.assemble(files.backends)
        self._progress(f"starting {installation.program.name}")
        secret = secrets.token_hex()
        arguments = command(installation, settings, self._ports, files) + restrictions(secret)
        self._process = ServerProcess(installation, arguments, files, self._read_log)
        self._control = ModelControl(
            self.http_address, self.metrics_address, secret, self.settings.ready_timeout_s
        )

    def _await_live(self, deadline: float) -> None:
        while not self._require_control().is_live():
            if not self.is_alive:
                raise SetupError(f"tritonserver ended while starting: {self._last_error}")
            if time.monotonic() > deadline:
                raise SetupError(
                    f"tritonserver did not answer within {self.settings.ready_timeout_s:g} s: "
                    f"{self._last_error}"
                )
            time.sleep(0.05)

    def _run_all(self, loads: Sequence[Callable[[], object]]) -> None:
        """Load several models at once, as long as the server lives.

        Raises:
            SetupError: one cannot be loaded; the server is stopped, which ends the others too.
        """
        with ThreadPoolExecutor(_LOADS_AT_ONCE) as pool:
            running = {pool.submit(load) for load in loads}
            try:
                while running:
                    done, running = wait(running, _POLL_S, return_when=FIRST_EXCEPTION)
                    for load in done:
                        load.result()
                    if not self.is_alive:
                        raise SetupError(f"tritonserver ended while loading: {self._last_error}")
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                # The models' processes hold a dead server's connections open, so they go too. A
                # signal that comes while one model is healed leaves the others their time.
                self.stop(at_once=isinstance(error, Exception) or not self._is_serving)
                raise

    def _load_bundle(self, found: bundle.Bundle) -> int:
        manifest = found.manifest
        version = int(found.folder.name)
        for model in sorted({manifest.name, *manifest.parts.values()}):
            began = time.monotonic()
            self._load_model(model, version)
            took = time.monotonic() - began
            self._progress(f"loaded {model} version {version} in {took:.1f} s")
        return version

    def _load_model(self, model: str, version: int) -> None:
        config = model_config(
            self.settings.repository / model,
            version,
            self._heals[model],
            self.settings.capacity.parameters(),
        )
        before = self._stubs.running(model)
        self._require_control().load(model, config)
        self._loaded.add(model)
        self._stubs.expect(model, before)

    def _living_stubs(self) -> Living:
        if self._process is None:
            return {}
        return living_stubs(self._process.pid, self.settings.repository.resolve())

    @property
    def _last_error(self) -> str:
        return self._process.last_error if self._process else ""

    def _read_log(self, line: str) -> None:
        self._shutdown.read_log(line)

    def _read_status(self) -> ServerStatus | None:
        return self._control.status() if self._control else None

    def _require_control(self) -> ModelControl:
        assert self._control is not None, "the server is not started"
        return self._control

    def _address(self, purpose: str) -> str:
        host = "127.0.0.1" if self.settings.host == "0.0.0.0" else self.settings.host
        return f"{host}:{self._ports[purpose]}"
