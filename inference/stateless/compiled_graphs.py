"""Compiled models over one ONNX graph, in OpenVINO.

int8 graphs have their activations' scales inside (`QuantizeLinear`, fixed at export), so what a row
gets does not depend on its batch. Where products of bytes saturate, float32 multiplies them.
OpenVINO computes int64 in 32 bits on the CPU, which is enough for token ids and positions.

OpenVINO multiplies weights by activations and, in attention, activations by activations in int8.
Weights of 7 bits (NNCF's `overflow_fix`) would leave the second kind wrong. So where products
saturate, a graph keeps all its roundings, and float32 multiplies what they leave (D123).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from cachetools import LRUCache
from numpy.typing import NDArray
from openvino import opset13 as ops
from openvino import passes

from inference.openvino_core import openvino_core, run_request, why_not_here
from inference.process_limits import thread_count
from inference.saturation import products_saturate
from inference.stateless.config_check import find_port
from inference.stateless.sessions import InvalidArgument, text_parameters


def multiply_in_float32(model: openvino.Model) -> None:
    """Changes a graph with fixed scales in place; its values differ by float32's roundings alone.

    Weights become float32, four times as large. Activations are rounded by the formula of
    `FakeQuantize` instead of the operator: OpenVINO 2026.4 multiplies what lies between two
    operators in int8, and without that (`LP_TRANSFORMS_MODE`) it computes attention otherwise
    than the graph states.
    """
    roundings = [each for each in model.get_ordered_ops() if each.get_type_name() == "FakeQuantize"]
    if not roundings:
        return
    manager = passes.Manager()
    manager.register_pass(passes.ConstantFolding())
    manager.run_passes(model)
    for node in roundings:
        node.output(0).replace(_round_to_levels(node))
    model.validate_nodes_and_infer_types()


def _round_to_levels(node: Any) -> Any:
    """What a `FakeQuantize` returns: levels from `low` to `high`, from `least` to `most` on."""
    value, *bounds = node.input_values()
    low, high, least, most = (each.get_node().data.astype(np.float64) for each in bounds)
    steps = node.get_attributes()["levels"] - 1
    clipped = ops.minimum(ops.maximum(value, _constant(low)), _constant(high))
    scaled = ops.multiply(ops.subtract(clipped, _constant(low)), _constant(steps / (high - low)))
    number = ops.round(scaled, "half_to_even")
    width = _constant((most - least) / steps)
    return ops.add(ops.multiply(number, width), _constant(least)).output(0)


def _constant(value: Any) -> Any:
    return ops.constant(np.asarray(value, np.float32))


MAX_MODELS = 4
"""Compiled models, one for each set of outputs; each has its own weights."""
_PLACE = re.compile(r"Exception from \S+:| at \S+:\d+:?")

Arrays = Mapping[str, NDArray[Any]]


class CompiledGraphs:
    """The compiled models of one instance. Used by one thread.

    Args:
        config: The model's configuration, as Triton's JSON. Its parameters:
            `intra_op_thread_count`; `inference_precision`, f32 or bf16, of what is not int8.

    Raises:
        InvalidArgument: the graph cannot be loaded, the configuration contradicts it, or its
            precision needs another processor.
    """

    def __init__(self, file: Path, config: dict[str, Any]) -> None:
        if not file.exists():
            raise InvalidArgument(f"unable to find '{file}' for model instance '{config['name']}'")
        self._options = _options(config)
        try:
            self._whole = openvino_core().read_model(file)
        except RuntimeError as error:
            raise InvalidArgument(self.error_text(error)) from error
        if products_saturate():
            multiply_in_float32(self._whole)
        self._outputs = {name: port for port in self._whole.outputs for name in port.names}
        inputs = {name: port for port in self._whole.inputs for name in port.names}
        for kind, ports in ("input", inputs), ("output", self._outputs):
            for entry in config[kind]:
                find_port(kind, entry, ports)
        self._requests: LRUCache[frozenset[str], Any] = LRUCache(MAX_MODELS)
        self._request(frozenset(entry["name"] for entry in config["output"]))

    def run(self, outputs: Collection[str], feed: Arrays) -> dict[str, NDArray[Any]]:
        """The named outputs.

        Raises:
            RuntimeError: the graph cannot take these inputs.
        """
        names = frozenset(outputs)
        request = self._request(names)
        try:
            run_request(request, feed)
        except RuntimeError:
            # A request that failed at a shape refuses further shapes: the next run makes another.
            del self._requests[names]
            raise
        found = request.results  # copies
        return {name: np.asarray(found[name]) for name in names}

    def warm_up(self) -> None:
        """Run the configured outputs on zeros; dynamic dimensions become 1.

        Raises:
            RuntimeError: the graph cannot take such inputs; its first request warms it up instead.
        """
        [request] = self._requests.values()
        run_request(
            request,
            {
                port.any_name: np.zeros(
                    [size.get_length() if size.is_static else 1 for size in port.partial_shape],
                    port.element_type.to_dtype(),
                )
                for port in self._whole.inputs
            },
        )

    def error_text(self, error: Exception) -> str:
        """An error of OpenVINO on one line, without the places in its source."""
        return f"openvino error {' '.join(_PLACE.sub(' ', str(error)).split())}"

    def _request(self, outputs: frozenset[str]) -> Any:
        """The infer request of the model that computes these outputs."""
        request = self._requests.get(outputs)
        if request is None:
            model = self._whole
            if outputs != frozenset(self._outputs):
                results = [self._outputs[name].node for name in sorted(outputs)]
                model = openvino.Model(results, self._whole.get_parameters(), "cut")
            compiled = openvino_core().compile_model(model, "CPU", self._options)
            request = self._requests[outputs] = compiled.create_infer_request()
        return request


def _options(config: dict[str, Any]) -> dict[str, Any]:
    """OpenVINO's properties for a model's configuration."""
    parameters = text_parameters(config)
    precision = parameters.get("inference_precision", "f32")
    if precision not in ("f32", "bf16"):
        raise InvalidArgument(f"inference_precision must be f32 or bf16, not {precision!r}")
    reason = why_not_here(precision, is_generator=False)
    if reason is not None:
        raise InvalidArgument(
            f"'{config['name']}' cannot be computed in {precision} with OpenVINO here: {reason} "
            "or int8, or serve it on a processor that has it"
        )
    return {
        "INFERENCE_NUM_THREADS": thread_count(int(parameters.get("intra_op_thread_count", "0"))),
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": precision,
    }
