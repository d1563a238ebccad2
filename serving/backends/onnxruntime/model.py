"""Triton backend `onnxruntime`: stateless graphs where Triton has no native one (decision D2).

Same repository, same answers as NVIDIA's backend for what it serves: one session run for a batch,
requested outputs only, thread counts from the configuration. Triton's core has already held each
request against `config.pbtxt`; the configuration is held against the graph when the model loads;
what fails only in the run is answered to the one request that caused it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb

from serving.backends.heartbeat import Heartbeat
from serving.backends.instance import TritonMetrics, assert_interpreter, text_parameters
from serving.backends.onnxruntime.binding import check_binding, element_type
from serving.backends.onnxruntime.options import session_options
from serving.backends.onnxruntime.session_stats import REPORTED, SessionStats

Arrays = dict[str, np.ndarray[Any, Any]]


class TritonPythonModel:
    """One instance: a session in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the graph and hold it against the configuration (Triton calls this once).

        Raises:
            ValueError: they do not fit; Triton reports it as the reason why the load failed.
        """
        assert_interpreter()
        if args["model_instance_kind"] == "GPU":
            raise ValueError("this backend runs on the CPU: KIND_GPU needs Triton's native one")
        config = json.loads(args["model_config"])
        self._batched = int(config["max_batch_size"]) > 0
        folder = Path(args["model_repository"]) / args["model_version"]
        file = folder / (config.get("default_model_filename") or "model.onnx")
        self._session = ort.InferenceSession(
            file, session_options(config), providers=["CPUExecutionProvider"]
        )
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        check_binding("input", config["input"], inputs, batched=self._batched)
        check_binding("output", config["output"], outputs, batched=self._batched)
        self._warm_up()
        self._stats = SessionStats()
        self._metrics = TritonMetrics(pb.MetricFamily, REPORTED, args, text_parameters(config))
        self._heartbeat = Heartbeat(self._stats, self._metrics.by_name)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer requests in their order; equal shapes share one run of the session."""
        answers: list[Any] = [None] * len(requests)
        groups: dict[object, list[int]] = {}
        arrays = [_inputs(request) for request in requests]
        for index, feed in enumerate(arrays):
            shapes = tuple((name, feed[name].shape[1:]) for name in sorted(feed))
            groups.setdefault(shapes if self._batched else index, []).append(index)
        for members in groups.values():
            results = self._answer([requests[i] for i in members], [arrays[i] for i in members])
            for index, answer in zip(members, results, strict=True):
                answers[index] = answer
        return answers

    def finalize(self) -> None:
        """Let the session go (Triton calls this once)."""
        self._heartbeat.close()
        self._metrics.close()
        del self._session

    def _answer(self, requests: list[Any], feeds: list[Arrays]) -> list[Any]:
        """One run for all; when it fails, one for each, so that only the culprit gets an error."""
        try:
            return self._run(requests, feeds)
        except Exception as error:  # the protocol's edge: ONNX Runtime's errors share no base
            if len(requests) == 1:
                return [pb.InferenceResponse(error=pb.TritonError(f"onnx runtime error: {error}"))]
        pairs = zip(requests, feeds, strict=True)
        return [self._answer([request], [feed])[0] for request, feed in pairs]

    def _run(self, requests: list[Any], feeds: list[Arrays]) -> list[Any]:
        asked = [list(request.requested_output_names()) for request in requests]
        names = sorted({name for some in asked for name in some})
        with self._stats.run(len(requests)):
            outputs = dict(zip(names, self._session.run(names, _joined(feeds)), strict=True))
        if not self._batched:
            return [_response(outputs, asked[0])]
        rows = [next(iter(feed.values())).shape[0] for feed in feeds]
        for name, output in outputs.items():
            if output.shape[:1] != (sum(rows),):
                raise ValueError(f"output {name!r} has shape {output.shape} for {sum(rows)} rows")
        answers, start = [], 0
        for count, some in zip(rows, asked, strict=True):
            own = {name: outputs[name][start : start + count] for name in some}
            answers.append(_response(own, some))
            start += count
        return answers

    def _warm_up(self) -> None:
        """Run once on zeros, so that the first request finds its memory and threads.

        Dynamic dimensions become 1; a graph that cannot take that warms up with its first request.
        """
        feed = {
            node.name: np.zeros(
                [n if isinstance(n, int) else 1 for n in node.shape], element_type(node)
            )
            for node in self._session.get_inputs()
        }
        try:
            self._session.run(None, feed)
        except Exception as error:  # as in `_answer`
            pb.Logger.log_verbose(f"no warm-up on zeros: {error}")


def _inputs(request: Any) -> Arrays:
    """A request's tensors: views of shared memory, valid until it is answered."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def _joined(feeds: list[Arrays]) -> Arrays:
    """The requests' rows below each other; a single request is not copied."""
    feed = feeds[0]
    if len(feeds) > 1:
        feed = {name: np.concatenate([other[name] for other in feeds]) for name in feed}
    return {name: _text(rows) if rows.dtype == np.object_ else rows for name, rows in feed.items()}


def _text(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Triton's strings are bytes, which ONNX Runtime would take as "b'…'"."""
    texts = [text.decode("utf-8") for text in rows.flat]
    return np.array(texts, dtype=np.object_).reshape(rows.shape)


def _response(outputs: Arrays, names: list[str]) -> Any:
    return pb.InferenceResponse([pb.Tensor(name, outputs[name]) for name in names])
