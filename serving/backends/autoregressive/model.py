"""Triton backend `autoregressive`: hosts an engine beside its caches (decision D3).

One decoupled request is one sequence (`inference/engine/codec.py`). `execute` only queues
requests; the response thread sends what the engine emits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

from inference.bundle.manifest import Bundle, Role
from inference.bundle.reader import open_bundle
from inference.engine import codec
from inference.engine.codec import Arrays, decode_request
from inference.engine.engine import Engine
from inference.engine.request import Cancelled, EngineRequest, Failed
from inference.engine.runner_factory import SPARE_BYTES, bundle_validator, check_memory, make_runner
from inference.errors import BundleError
from inference.generation import Generation
from inference.load_check import load_check
from inference.stateless.sessions import text_parameters
from serving.backends.autoregressive.request_queue import (
    PendingQueue,
    PendingResponse,
    ResponseSender,
)
from serving.backends.instance import TritonMetrics, assert_interpreter, log_to_triton
from serving.liveness.heartbeat import COUNTERS, GAUGES, Heartbeat
from serving.settings.capacity_settings import CapacitySettings
from triptych.garbage import without_collection


class TritonPythonModel:
    """One instance: an engine in a process of its own."""

    @without_collection()
    def initialize(self, args: dict[str, str]) -> None:
        """Open the bundle, start the engine, check what it decodes (Triton calls this once).

        Raises:
            BundleError: the bundle cannot be served, or does not compute what it did at export;
                Triton reports it as the reason.
        """
        assert_interpreter()
        log_to_triton(pb.Logger)
        folder = Path(args["model_repository"]) / args["model_version"]
        bundle = open_bundle(folder)
        if bundle.manifest.generation is None:
            raise BundleError(f"{bundle.manifest.name} has no generation defaults: export again")
        self._defaults = bundle.manifest.generation
        parameters = text_parameters(json.loads(args["model_config"]))
        capacity = CapacitySettings.of(parameters).capacity()
        if self._defaults.rows > capacity.rows:
            raise BundleError(
                f"{bundle.manifest.name} uses {self._defaults.rows} rows per request by "
                f"default, max_rows is {capacity.rows}: raise max_rows"
            )
        threads = int(parameters.get("intra_op_thread_count", "0"))
        spare_bytes = min(SPARE_BYTES, capacity.state_bytes)
        warn = pb.Logger.log_warn
        with load_check(folder, args["model_name"], parameters, warn) as check:
            runner = make_runner(bundle, _device(args), threads=threads, spare_bytes=spare_bytes)
            check_memory(runner, bundle.manifest, capacity)
            self._engine = Engine(runner, bundle_validator(bundle), capacity)
            widths = {1, self._defaults.num_beams}
            if check.has_outputs:
                check.compare_tokens(self._engine.generate, self._defaults)
                widths -= {1}
            for beams in sorted(widths):
                self._engine.generate(_warm_up_request(bundle, self._defaults, beams))
        self._sender = ResponseSender()
        self._queue = PendingQueue(self._engine, self._sender)
        self._metrics = TritonMetrics(pb.MetricFamily, (*COUNTERS, *GAUGES), args, parameters)
        self._heartbeat = Heartbeat(self._engine, self._metrics.by_name)

    def execute(self, requests: list[Any]) -> None:
        """Queue requests; one that aborts an earlier one ends without a response."""
        for request in requests:
            response = self._sender.open(_TritonChannel(request))
            try:
                if codec.ABORT in json.loads(request.parameters() or "{}"):
                    self._queue.abort(request.request_id())
                    self._sender.send(response, Cancelled())
                else:
                    self._submit(request, response)
            except Exception as error:  # the protocol's edge: every request gets a final response
                self._sender.send(response, Failed(error))

    def finalize(self) -> None:
        """End every sequence with an error, free the model."""
        self._heartbeat.close()
        self._metrics.close()
        self._engine.close()
        self._queue.close()
        self._sender.close()

    def _submit(self, request: Any, response: PendingResponse) -> None:
        tensors = {
            name: tensor.as_numpy()
            for name in codec.INPUTS
            if (tensor := pb.get_input_tensor_by_name(request, name)) is not None
        }
        self._queue.submit(request.request_id(), response, decode_request(tensors, self._defaults))


class _TritonChannel:
    """A request's response sender; used by the response thread only."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()

    def send(self, arrays: Arrays, *, is_final: bool) -> None:
        tensors = [pb.Tensor(name, array) for name, array in arrays.items()]
        flags = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_final else 0
        self._sender.send(pb.InferenceResponse(tensors), flags=flags)

    def fail(self, message: str) -> None:
        response = pb.InferenceResponse(error=pb.TritonError(message))
        self._sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def end(self) -> None:
        self._sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())


def _device(args: dict[str, str]) -> str:
    """The device of this instance: Triton resolves `instance_group` to a kind and a number."""
    if args["model_instance_kind"] == "GPU":
        return f"cuda:{args['model_instance_device_id']}"
    return "cpu"


def _warm_up_request(bundle: Bundle, defaults: Generation, beams: int) -> EngineRequest:
    """A prefill and a step on the smallest input that the model accepts."""
    rules = defaults.model_copy(
        update={"max_new_tokens": 2, "num_beams": beams, "num_return_sequences": 1}
    )
    admit = bundle.manifest.graphs.get("admit")
    pixels = admit.input(Role.PIXELS) if admit else None
    has_source = admit is not None and admit.input(Role.SOURCE_TOKENS) is not None
    images = bundle.manifest.images
    if images is not None and bundle.manifest.image is not None:
        shape = (1, *bundle.manifest.image.shape)
        prompt_ids = tuple(images.expanded([images.token_id]))
        return EngineRequest(
            rules,
            source_ids=np.zeros(1, np.int64) if has_source else None,
            pixels=np.zeros(shape, np.uint8),
            prompt_ids=prompt_ids,
        )
    held = bundle.manifest.source_image
    source = np.array(held.expanded([held.token_id]) if held else [0], np.int64)
    one = (1,) if bundle.manifest.takes_image_lists else ()
    return EngineRequest(
        rules,
        source_ids=source if has_source else None,
        pixels=np.zeros((*one, *pixels.shape[1:]), pixels.dtype) if pixels else None,
        prompt_ids=() if rules.decoder_start_ids else (0,),
    )
