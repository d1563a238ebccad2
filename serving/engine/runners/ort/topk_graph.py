"""Top-k graphs: the best tokens and their log-probabilities, without a copy of the logits.

The graphs apply no rules: `search.logits_processors` drops candidates that are not allowed. They
read the runner's own logits buffer; only (rows, k) numbers are returned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from serving.engine.runners.protocol import Candidates

LOGITS, COUNT, TOKEN_IDS, LOG_PROBS = "logits", "k", "token_ids", "log_probs"
TEMPERATURE, MASS = "temperature", "mass"
_LEAST_VOCABULARY = 8192  # below, calls and threads that wait for each other outweigh all savings
_USUAL_COUNT = 8


def topk_graph(
    vocabulary_size: int, block: int | None = None, *, with_mass: bool = False
) -> onnx.ModelProto:
    """The ONNX graph: logits (R, V) float32, k (1,) int64 → token ids and log-probs, both (R, k).

    Ranking is by logits, not by log-probabilities: rounding could merge two of those. TopK breaks
    ties by the lower index (ONNX operator specification, TopK).

    Args:
        block: Rank by blocks of so many tokens, which divide the vocabulary; then k may be as large
            as their number. The answer is the same, in less time.
        with_mass: Takes a temperature too, (R, 1), and tells the mass, (R, 1): the sum of
            exp((logit - largest) / temperature), which a draw at that temperature is out of.
    """
    nodes = _ranking() if block is None else _block_ranking()
    nodes += [
        helper.make_node("LogSoftmax", [LOGITS], ["normalised"], axis=-1),
        helper.make_node("GatherElements", ["normalised", TOKEN_IDS], [LOG_PROBS], axis=1),
    ]
    inputs = [_value(LOGITS, "R", "V"), _value(COUNT, 1, kind=TensorProto.INT64)]
    outputs = [_value(TOKEN_IDS, "R", "k", kind=TensorProto.INT64), _value(LOG_PROBS, "R", "k")]
    constants: dict[str, Any] = {}
    if block is not None:
        constants |= {"by_blocks": [0, vocabulary_size // block, block], "block": block}
        constants |= {"by_rows": [0, -1], "cell_axis": [2]}
    if with_mass:
        nodes += _mass()
        inputs.append(_value(TEMPERATURE, "R", 1))
        outputs.append(_value(MASS, "R", 1))
        constants["first"] = [0]
    initializers = [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "topk", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def block_size(vocabulary_size: int) -> int | None:
    """Tokens of a block; None where ranking the whole vocabulary at once is as good.

    Both the maxima of all blocks and the candidates of the best are ranked: about as many of each.
    """
    divisors = [size for size in range(16, 1024) if vocabulary_size % size == 0]
    if vocabulary_size < _LEAST_VOCABULARY or not divisors:
        return None
    return min(divisors, key=lambda size: vocabulary_size // size + _USUAL_COUNT * size)


class TopK:
    """Sessions of the topk graphs for one vocabulary."""

    def __init__(self, options: onnxruntime.SessionOptions, vocabulary_size: int) -> None:
        block = block_size(vocabulary_size)
        self._most_by_blocks = 0 if block is None else vocabulary_size // (2 * block)
        self._sessions = {
            (size is not None, with_mass): _session(
                topk_graph(vocabulary_size, size, with_mass=with_mass), options
            )
            for size in {None, block}
            for with_mass in (False, True)
        }

    def rank(
        self,
        logits: NDArray[np.float32],
        k: int,
        temperatures: NDArray[np.float32] | None = None,
    ) -> Candidates:
        """The k best tokens of each row of (R, V) contiguous logits; see `edits.Rank`."""
        count = k
        if logits.shape[1] >= _LEAST_VOCABULARY:
            count = max(k, 2)  # for k = 1, ONNX Runtime's TopK shares no rows among its threads
        feeds = {LOGITS: logits, COUNT: np.array([count], np.int64)}
        if temperatures is not None:
            feeds[TEMPERATURE] = temperatures
        session = self._sessions[count <= self._most_by_blocks, temperatures is not None]
        token_ids, log_probs, *masses = session.run(None, feeds)
        found = Candidates(token_ids[:, :k], log_probs[:, :k])
        return replace(found, masses=masses[0][:, 0]) if masses else found


def _ranking() -> list[NodeProto]:
    return [helper.make_node("TopK", [LOGITS, COUNT], ["best", TOKEN_IDS], largest=1, sorted=1)]


def _block_ranking() -> list[NodeProto]:
    """The k best tokens lie in the k blocks with the best maxima, of equal ones the first.

    A token outside has a better one, or an equal and lower one, in each of these. The blocks are
    put in the vocabulary's order before their tokens are ranked, so that ties fall alike.
    """
    node = helper.make_node
    return [
        node("Reshape", [LOGITS, "by_blocks"], ["cells"]),  # (R, blocks, block)
        node("ReduceMax", ["cells", "cell_axis"], ["maxima"], keepdims=0),
        node("TopK", ["maxima", COUNT], ["best_maxima", "by_rank"], largest=1, sorted=1),
        node("TopK", ["by_rank", COUNT], ["kept", "rank"], largest=0, sorted=1),
        node("Unsqueeze", ["kept", "cell_axis"], ["indices"]),
        node("GatherND", ["cells", "indices"], ["near"], batch_dims=1),
        node("Reshape", ["near", "by_rows"], ["candidates"]),  # (R, k x block)
        node("TopK", ["candidates", COUNT], ["best", "place"], largest=1, sorted=1),
        node("Div", ["place", "block"], ["nth"]),
        node("GatherElements", ["kept", "nth"], ["owner"], axis=1),
        node("Sub", ["owner", "nth"], ["skipped"]),
        node("Mul", ["skipped", "block"], ["offset"]),
        node("Add", ["place", "offset"], [TOKEN_IDS]),
    ]


def _mass() -> list[NodeProto]:
    """One over the best token's probability at that temperature.

    Log-probabilities are tempered, not logits: the best are near zero, where numbers are dense.
    """
    node = helper.make_node
    return [
        node("Div", ["normalised", TEMPERATURE], ["tempered"]),
        node("LogSoftmax", ["tempered"], ["renormalised"], axis=-1),
        node("Gather", [TOKEN_IDS, "first"], ["first_ids"], axis=1),
        node("GatherElements", ["renormalised", "first_ids"], ["first_log_prob"], axis=1),
        node("Neg", ["first_log_prob"], ["log_mass"]),
        node("Exp", ["log_mass"], [MASS]),
    ]


def _value(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _session(
    graph: onnx.ModelProto, options: onnxruntime.SessionOptions
) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
