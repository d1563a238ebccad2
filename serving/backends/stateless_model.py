"""What both backends of stateless graphs do: one Triton instance, its requests and responses.

Triton's core has already checked each request against `config.pbtxt`. A run that fails ends only
the request that caused it, and Triton counts that request as a success (its python backend reports
no other way), so failures are counted in `triptych_engine_failures`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

from inference.errors import DeviceError
from inference.load_check import load_check
from inference.model_errors import encode_error
from inference.stateless.sessions import Sessions, graph_file, text_parameters
from serving.backends.instance import TritonMetrics, assert_interpreter, log_to_triton
from serving.liveness.heartbeat import REPORTED, Heartbeat, SessionStats
from triptych.garbage import without_collection

Arrays = dict[str, np.ndarray[Any, Any]]


class StatelessModel(ABC):
    """One instance: its sessions in a process of their own."""

    @abstractmethod
    def open_sessions(self, file: Path, config: dict[str, Any], card: int | None) -> Sessions:
        """The runtime's sessions over a graph.

        Args:
            config: The model's configuration, as Triton's JSON.
            card: Number of the GPU; None on the CPU.

        Raises:
            InvalidArgument: the graph cannot be loaded, or the configuration contradicts it.
            DeviceError: the card cannot be used.
        """

    @without_collection()
    def initialize(self, args: dict[str, str]) -> None:
        """Load the graph, compare it with the configuration and check what it computes.

        Triton calls this once, and reports an error as the reason why the load failed.

        Raises:
            InvalidArgument: graph and configuration do not fit.
            BundleError: the graph does not compute what it did at export.
        """
        assert_interpreter()
        log_to_triton(pb.Logger)
        is_on_gpu = args["model_instance_kind"] == "GPU"
        card = int(args["model_instance_device_id"]) if is_on_gpu else None
        config = json.loads(args["model_config"])
        self._is_batched = int(config["max_batch_size"]) > 0
        parameters = text_parameters(config)
        folder = Path(args["model_repository"]) / args["model_version"]
        warn = pb.Logger.log_warn
        with load_check(folder, args["model_name"], parameters, warn) as check:
            self._sessions = self.open_sessions(graph_file(folder, config), config, card)
            if check.has_outputs:
                names = [entry["name"] for entry in config["output"]]
                check.compare_outputs(self._sessions.run, names)
            else:
                self._warm_up()
        self._stats = SessionStats()
        self._metrics = TritonMetrics(pb.MetricFamily, REPORTED, args, parameters)
        self._heartbeat = Heartbeat(self._stats, self._metrics.by_name)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Responses in the order of the requests, which Triton has joined by equal shapes."""
        # views of shared memory, valid until the requests are answered
        feeds = [{one.name(): one.as_numpy() for one in request.inputs()} for request in requests]
        if self._is_batched:
            return self._respond(requests, feeds)
        pairs = zip(requests, feeds, strict=True)
        return [response for one, feed in pairs for response in self._respond([one], [feed])]

    def finalize(self) -> None:
        """Free the sessions (Triton calls this once)."""
        self._heartbeat.close()
        self._metrics.close()
        del self._sessions

    def _warm_up(self) -> None:
        try:
            self._sessions.warm_up()
        except DeviceError:
            raise
        except Exception as error:  # the runtimes' errors share no base
            pb.Logger.log_verbose(f"no warm-up on zeros: {error}")

    def _respond(self, requests: list[Any], feeds: list[Arrays]) -> list[Any]:
        """One run for all; if it fails, one for each, so that only the culprit gets an error."""
        try:
            return self._run(requests, feeds)
        except Exception as error:  # the protocol's edge: the runtimes' errors share no base
            if len(requests) == 1:
                self._stats.metrics.failures += 1
                return [pb.InferenceResponse(error=pb.TritonError(encode_error(error)))]
        pairs = zip(requests, feeds, strict=True)
        return [self._respond([request], [feed])[0] for request, feed in pairs]

    def _run(self, requests: list[Any], feeds: list[Arrays]) -> list[Any]:
        requested = [list(request.requested_output_names()) for request in requests]
        names = {name for some in requested for name in some}
        with self._stats.run(len(requests)):
            outputs = self._sessions.run(names, _concatenate(feeds))
        if not self._is_batched:
            return [_response(outputs, requested[0])]
        rows = [next(iter(feed.values())).shape[0] for feed in feeds]
        for name, output in outputs.items():
            if output.shape[:1] != (sum(rows),):
                raise ValueError(f"output {name!r} has shape {output.shape} for {sum(rows)} rows")
        responses, start = [], 0
        for count, some in zip(rows, requested, strict=True):
            own = {name: outputs[name][start : start + count] for name in some}
            responses.append(_response(own, some))
            start += count
        return responses


def _concatenate(feeds: list[Arrays]) -> Arrays:
    """The requests' rows, concatenated; a single request is not copied."""
    feed = feeds[0]
    if len(feeds) > 1:
        feed = {name: np.concatenate([other[name] for other in feeds]) for name in feed}
    return {name: _text(rows) if rows.dtype == np.object_ else rows for name, rows in feed.items()}


def _text(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Triton's strings (bytes) as ONNX Runtime takes them.

    Python strings where they are UTF-8, else numpy's byte strings. In those each takes the size of
    the longest, and one byte more: ONNX Runtime 1.31 misreads a string without a final zero.
    """
    try:
        texts = [text.decode("utf-8") for text in rows.flat]
    except UnicodeDecodeError:
        texts = list(rows.flat)
        return np.array(texts, dtype=f"S{max(map(len, texts)) + 1}").reshape(rows.shape)
    return np.array(texts, dtype=np.object_).reshape(rows.shape)


def _response(outputs: Arrays, names: list[str]) -> Any:
    return pb.InferenceResponse([pb.Tensor(name, outputs[name]) for name in names])
