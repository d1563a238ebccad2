"""The chooser graph: best tokens and their log-probabilities, without copying the logits.

Policy-free on purpose: it answers "the k best of each row", and `choosing` drops what is not
allowed. Runs on the runner's own logits buffer; only (rows, k) numbers come back.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from serving.engine.runner import Candidates

LOGITS, COUNT, TOKEN_IDS, LOG_PROBS = "logits", "k", "token_ids", "log_probs"


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
    inputs = [
        helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["R", "V"]),
        helper.make_tensor_value_info(COUNT, TensorProto.INT64, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info(TOKEN_IDS, TensorProto.INT64, ["R", "k"]),
        helper.make_tensor_value_info(LOG_PROBS, TensorProto.FLOAT, ["R", "k"]),
    ]
    graph = helper.make_graph(nodes, "chooser", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


class Chooser:
    """A session of the chooser graph."""

    def __init__(self, options: onnxruntime.SessionOptions) -> None:
        self._session = onnxruntime.InferenceSession(
            chooser_graph().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def best(self, logits: NDArray[np.float32], k: int) -> Candidates:
        """The k best tokens of each row of (R, V) contiguous logits; at most V."""
        count = np.array([min(k, logits.shape[1])], np.int64)
        token_ids, log_probs = self._session.run(
            [TOKEN_IDS, LOG_PROBS], {LOGITS: logits, COUNT: count}
        )
        return Candidates(token_ids, log_probs)
