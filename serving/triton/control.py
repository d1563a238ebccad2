"""Triton's repository control and metrics over HTTP: load and unload models, read the status.

HTTP itself is served on a Unix socket in a folder of mode 0700. It has no port, because Triton 2.51
dies at chunked requests (CVE-2025-23310), and its management endpoints can run code.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

from inference.bundle.self_check import OFF, PARAMETER
from inference.errors import SetupError
from inference.process_limits import thread_count
from serving.liveness.stall_detector import EngineStats, read_engine_stats
from serving.local_http import Response, request
from serving.model_config import read_config

_RESTRICTED = "model-repository,shared-memory,trace,logging"
_UNSENDABLE_BYTES = 16384
"""Of random data, as twice as many digits: gRPC refuses metadata of more than 16 KiB."""
_QUICK_S = 1.0
_TRACEBACK = "\n\nAt:\n"  # what the python backend puts behind the error of a model.py
_GENERATOR = "autoregressive"
_THREADS = "intra_op_thread_count"
_PENDING = re.compile(r"^nv_inference_pending_request_count\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class ServerStatus:
    """A server's load at one moment, from its metrics.

    Attributes:
        engines: By model; models of a native backend have none.
        pending: Requests in Triton's queues.
    """

    engines: dict[str, EngineStats]
    pending: int

    @property
    def pids(self) -> set[int]:
        """The processes that have series, dead ones too."""
        return {pid for stats in self.engines.values() for pid in stats.processes}

    def of_processes(self, pids: Set[int]) -> ServerStatus:
        """The status without the series that dead processes have left."""
        engines = {model: stats.of_processes(pids) for model, stats in self.engines.items()}
        return replace(self, engines=engines)

    @property
    def is_idle(self) -> bool:
        """Whether no request is queued or running."""
        return not self.pending and not any(stats.is_busy for stats in self.engines.values())

    @property
    def steps(self) -> dict[str, float]:
        """Steps that each engine has done so far: short runs end between two readings."""
        return {model: stats.figures.get("steps", 0.0) for model, stats in self.engines.items()}


class ServerLostError(SetupError):
    """The server has ended, or does not respond or go on: a new one may."""

    wire = "server_lost"


class ModelControl:
    """The control calls of one server.

    Args:
        socket: Of Triton's HTTP endpoints.
        metrics_address: `host:port` of its metrics.
        timeout_s: For one call; loading a model is one call.
        cause: Why the server has failed, if it is known.
    """

    def __init__(
        self,
        socket: Path,
        metrics_address: str,
        timeout_s: float,
        cause: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._cause = cause
        self._socket = socket
        self._timeout_s = timeout_s
        self._metrics_address = metrics_address

    def is_live(self) -> bool:
        """Whether the server responds."""
        try:
            return request(self._socket, "GET", "/v2/health/live", _QUICK_S).is_success
        except OSError:
            return False

    def status(self) -> ServerStatus | None:
        """The server's status, None if it does not respond."""
        try:
            # One connection a request: a stopping Triton waits for open ones, idle ones included.
            text = request(self._metrics_address, "GET", "/metrics", _QUICK_S).body.decode()
        except OSError:
            return None
        return ServerStatus(
            read_engine_stats(text), sum(int(float(n)) for n in _PENDING.findall(text))
        )

    def load(self, model: str, config: dict[str, Any]) -> None:
        """Load a model, or replace it by this configuration; returns when it is loaded.

        Raises:
            SetupError: Triton refused, with Triton's reason.
            ServerLostError: Triton does not respond.
        """
        self._change(model, "load", {"parameters": {"config": json.dumps(config)}})

    def unload(self, model: str) -> None:
        """Unload a model; returns before its last requests have ended.

        Raises:
            SetupError: Triton refused, with Triton's reason.
        """
        self._change(model, "unload", {})

    def ready(self) -> dict[str, set[int]] | None:
        """The versions that Triton reports as ready, by model; None if it does not respond."""
        try:
            response = request(self._socket, "POST", "/v2/repository/index", _QUICK_S, b"{}")
            entries = json.loads(response.body) if response.is_success else None
        except (OSError, ValueError):
            return None
        if entries is None:
            return None
        found: dict[str, set[int]] = {}
        for entry in entries:
            if entry.get("state") == "READY":
                found.setdefault(entry["name"], set()).add(int(entry["version"]))
        return found

    def _change(self, model: str, verb: str, body: dict[str, Any]) -> None:
        url = f"/v2/repository/models/{quote(model, safe='')}/{verb}"
        try:
            answer = request(self._socket, "POST", url, self._timeout_s, json.dumps(body).encode())
        except OSError as error:
            cause = self._cause() or type(error).__name__
            raise ServerLostError(f"Triton did not respond to {verb} {model!r}: {cause}") from error
        if not answer.is_success:
            raise SetupError(f"Triton cannot {verb} {model!r}: {_reason(answer)}")


def restrictions() -> str:
    """The argument of `tritonserver` that closes its management endpoints over gRPC to everyone.

    Inference, health, metadata, model configuration and statistics, which only read, stay open to
    every client that reaches the port. The others require a header, and users of this machine can
    read it among the arguments of the process. So its value is longer than what gRPC accepts: no
    client can send it, the supervisor included, which uses the socket. The value is random, so that
    clients without access to this machine do not know it should another Triton accept more.
    """
    value = secrets.token_hex(_UNSENDABLE_BYTES)
    return f"--grpc-restricted-protocol={_RESTRICTED}:closed={value}"


@dataclass(frozen=True)
class VersionPolicy:
    """The versions of a model that Triton loads.

    Triton keeps a running version as it is when only this policy changes, so two versions overlap
    during a switch without reloading either. Clients recognise the served one of several ready
    versions by the length of the list that it was loaded with: the longest was loaded last.

    Attributes:
        version: The served one.
        previous: Still loaded for the requests that began on it.
        switches: Switches of this model since Triton's start.
    """

    version: int
    previous: int | None = None
    switches: int = 0

    @property
    def versions(self) -> list[int]:
        """The list in the model configuration; Triton ignores repetitions."""
        if self.previous is None:
            return [self.version]
        return [self.version] + [self.previous] * max(1, self.switches)

    @property
    def alone(self) -> VersionPolicy:
        """The policy without the previous version."""
        return VersionPolicy(self.version)


def model_config(
    model_folder: Path,
    policy: VersionPolicy,
    incarnation: int = 0,
    generator_parameters: Mapping[str, str] = MappingProxyType({}),
    file: str | None = None,
    card: int | None = None,
    *,
    self_check: bool = True,
) -> dict[str, Any]:
    """A model's configuration with a version policy, as the body of Triton's load request.

    Without the policy Triton would choose the largest number, complete or not. The incarnation (how
    often the model was healed) goes into a parameter that no backend reads: Triton ignores a load
    whose configuration is unchanged, even when the model's process is dead. Clients read it there:
    a stream that began under an earlier incarnation never gets a response.

    Args:
        model_folder: Holds `config.pbtxt`, and one for each version beside its graph.
        policy: Which versions to load.
        incarnation: How often the model was healed.
        generator_parameters: Override the file's, if the model is a generator.
        file: What the model is loaded from, relative to its version's folder; None: as the
            configuration says.
        card: The GPU of instances on GPUs; None: as the configuration says.
        self_check: Whether the model checks what it computes.

    Raises:
        BundleError: the file is missing or is not a model configuration.
    """
    config = read_config(model_folder, policy.version)
    config.version_policy.specific.versions[:] = policy.versions
    overrides = generator_parameters if config.backend == _GENERATOR else {}
    for name, value in {**overrides, "incarnation": str(incarnation)}.items():
        config.parameters[name].string_value = value
    if not self_check:
        config.parameters[PARAMETER].string_value = OFF
    threads = config.parameters.get(_THREADS)
    if threads is not None and threads.string_value.isdigit():
        # Native backends take what they are given, and for 0 all cores of the machine.
        threads.string_value = str(thread_count(int(threads.string_value)))
    if file is not None:
        config.default_model_filename = file
    for group in config.instance_group:
        if card is not None and group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU:
            group.gpus[:] = [card]
    fields: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return fields


def _reason(answer: Response) -> str:
    """Triton's error message on one line."""
    try:
        reason = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError):
        reason = f"HTTP {answer.status}"
    reason = str(reason).partition(_TRACEBACK)[0]
    return " ".join(reason.split()).removesuffix(";")
