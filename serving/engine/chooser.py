"""The chooser graph: best tokens and their log-probabilities, without copying the logits.

Policy-free on purpose: it answers "the k best of each row", and `choosing` drops what is not
allowed. Runs on the runner's own logits buffer; only (rows, k) numbers come back.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serving.engine.runner import Candidates

LOGITS, COUNT, TOKEN_IDS, LOG_PROBS = "logits", "k", "token_ids", "log_probs"


def chooser_graph(excluded: Collection[int] = (), vocabulary_size: int = 0) -> onnx.ModelProto:
    """The ONNX graph: logits (R, V) float32, k (1,) int64 → token ids and log-probs, both (R, k).

    Ranking is by logits, not by log-probabilities: rounding could merge two of those. TopK breaks
    ties by the lower index (ONNX operator specification, TopK).

    Args:
        excluded: Tokens that get no probability (`Generation.renormalize_logits`).
        vocabulary_size: V; needed where tokens are excluded.
    """
    bias = np.zeros(vocabulary_size, np.float32)
    bias[list(excluded)] = -np.inf
    scores = "allowed" if excluded else LOGITS
    nodes = [helper.make_node("Add", [LOGITS, "bias"], [scores])] if excluded else []
    nodes += [
        helper.make_node("TopK", [scores, COUNT], ["best", TOKEN_IDS], largest=1, sorted=1),
        helper.make_node("LogSoftmax", [scores], ["normalised"], axis=-1),
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
    constants = [numpy_helper.from_array(bias, "bias")] if excluded else []
    graph = helper.make_graph(nodes, "chooser", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


class Chooser:
    """A session of the chooser graph; arguments are those of `chooser_graph`."""

    def __init__(
        self,
        options: onnxruntime.SessionOptions,
        excluded: Collection[int] = (),
        vocabulary_size: int = 0,
    ) -> None:
        graph = chooser_graph(excluded, vocabulary_size).SerializeToString()
        self._session = onnxruntime.InferenceSession(
            graph, options, providers=["CPUExecutionProvider"]
        )

    def best(self, logits: NDArray[np.float32], k: int) -> Candidates:
        """The k best tokens of each row of (R, V) contiguous logits; at most V."""
        count = np.array([min(k, logits.shape[1])], np.int64)
        token_ids, log_probs = self._session.run(
            [TOKEN_IDS, LOG_PROBS], {LOGITS: logits, COUNT: count}
        )
        return Candidates(token_ids, log_probs)
