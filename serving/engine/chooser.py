"""The chooser graphs: best tokens and their log-probabilities, without copying the logits.

Policy-free on purpose: they answer "the k best of each row", and `choosing` drops what is not
allowed. They run on the runner's own logits buffer; only (rows, k) numbers come back.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serving.engine.runner import Candidates

LOGITS, COUNT, TOKEN_IDS, LOG_PROBS = "logits", "k", "token_ids", "log_probs"
TEMPERATURE, MASS = "temperature", "mass"


def chooser_graph() -> onnx.ModelProto:
    """The ONNX graph: logits (R, V) float32, k (1,) int64 → token ids and log-probs, both (R, k).

    Ranking is by logits, not by log-probabilities: rounding could merge two of those. TopK breaks
    ties by the lower index (ONNX operator specification, TopK).
    """
    nodes = [
        helper.make_node("TopK", [LOGITS, COUNT], ["best", TOKEN_IDS], largest=1, sorted=1),
        helper.make_node("LogSoftmax", [LOGITS], ["normalised"], axis=-1),
        helper.make_node("GatherElements", ["normalised", TOKEN_IDS], [LOG_PROBS], axis=1),
    ]
    inputs = [_value(LOGITS, "R", "V"), _value(COUNT, 1, kind=TensorProto.INT64)]
    outputs = [_value(TOKEN_IDS, "R", "k", kind=TensorProto.INT64), _value(LOG_PROBS, "R", "k")]
    return _model("chooser", nodes, inputs, outputs)


def mass_graph() -> onnx.ModelProto:
    """The ONNX graph: logits (R, V), temperature (R, 1) → mass (R,), all float32.

    mass = sum of exp((logit - largest) / temperature): what a draw at that temperature is out of.
    """
    nodes = [
        helper.make_node("ReduceMax", [LOGITS, "last_axis"], ["best"], keepdims=1),
        helper.make_node("Sub", [LOGITS, "best"], ["below"]),
        helper.make_node("Div", ["below", TEMPERATURE], ["tempered"]),
        helper.make_node("Exp", ["tempered"], ["weights"]),
        helper.make_node("ReduceSum", ["weights", "last_axis"], [MASS], keepdims=0),
    ]
    inputs = [_value(LOGITS, "R", "V"), _value(TEMPERATURE, "R", 1)]
    axis = numpy_helper.from_array(np.array([-1]), "last_axis")
    return _model("mass", nodes, inputs, [_value(MASS, "R")], axis)


class Chooser:
    """Sessions of the chooser graphs."""

    def __init__(self, options: onnxruntime.SessionOptions) -> None:
        self._chooser = _session(chooser_graph(), options)
        self._mass = _session(mass_graph(), options)

    def rank(
        self,
        logits: NDArray[np.float32],
        k: int,
        temperatures: NDArray[np.float32] | None = None,
    ) -> Candidates:
        """The k best tokens of each row of (R, V) contiguous logits; see `edits.Rank`."""
        token_ids, log_probs = self._chooser.run(
            [TOKEN_IDS, LOG_PROBS], {LOGITS: logits, COUNT: np.array([k], np.int64)}
        )
        found = Candidates(token_ids, log_probs)
        if temperatures is None:
            return found
        (masses,) = self._mass.run([MASS], {LOGITS: logits, TEMPERATURE: temperatures})
        return replace(found, masses=masses)


def _value(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    *constants: onnx.TensorProto,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _session(
    graph: onnx.ModelProto, options: onnxruntime.SessionOptions
) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
