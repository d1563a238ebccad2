"""Top-k graphs: the best tokens and their log-probabilities, without a copy of the logits.

The graphs apply no rules: `search.logits_processors` drops candidates that are not allowed. They
read bound logits on any device; only (rows, k) numbers are fetched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from inference.engine.runners.candidates import Candidates
from inference.engine.runners.ort.device import OrtDevice
from inference.engine.state.device import DeviceTensor

LOGITS, COUNT, TOKEN_IDS, LOG_PROBS = "logits", "k", "token_ids", "log_probs"
BEST_LOGITS, TEMPERATURE, MASS = "best_logits", "temperature", "mass"
_MIN_BLOCKED_VOCABULARY = 8192  # below, extra operators and thread synchronisation cost more
_USUAL_COUNT = 8
_OUTPUTS = {  # by whether masses and logits are needed: each output costs a microsecond
    (False, False): (TOKEN_IDS, LOG_PROBS),
    (False, True): (TOKEN_IDS, LOG_PROBS, BEST_LOGITS),
    (True, False): (TOKEN_IDS, LOG_PROBS, MASS),
    (True, True): (TOKEN_IDS, LOG_PROBS, MASS, BEST_LOGITS),
}


def topk_graph(
    vocabulary_size: int, block: int | None = None, *, with_mass: bool = False
) -> onnx.ModelProto:
    """Logits (R, V) float32, k (1,) int64 → token ids, log-probabilities and logits, each (R, k).

    Ranking is by logits, not by log-probabilities: rounding could make two of those equal. TopK
    breaks ties by the lower index (ONNX operator specification, TopK).

    Args:
        block: Rank by blocks of this many tokens, which must divide the vocabulary; k is then at
            most the number of blocks. Same result, less time.
        with_mass: Also take a temperature, (R, 1), and return the mass, (R, 1): the sum of
            exp((logit - largest) / temperature), the normaliser of a draw at that temperature.
    """
    nodes = _ranking() if block is None else _block_ranking()
    nodes += [
        helper.make_node("LogSoftmax", [LOGITS], ["normalised"], axis=-1),
        helper.make_node("GatherElements", ["normalised", TOKEN_IDS], [LOG_PROBS], axis=1),
    ]
    inputs = [_value(LOGITS, "R", "V"), _value(COUNT, 1, kind=TensorProto.INT64)]
    outputs = [
        _value(TOKEN_IDS, "R", "k", kind=TensorProto.INT64),
        _value(LOG_PROBS, "R", "k"),
        _value(BEST_LOGITS, "R", "k"),
    ]
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
    """Tokens of a block; None where ranking the whole vocabulary at once is as fast.

    The maxima of all blocks and the candidates of the best blocks are ranked: about as many of
    each.
    """
    divisors = [size for size in range(16, 1024) if vocabulary_size % size == 0]
    if vocabulary_size < _MIN_BLOCKED_VOCABULARY or not divisors:
        return None
    return min(divisors, key=lambda size: vocabulary_size // size + _USUAL_COUNT * size)


class TopK:
    """Sessions of the top-k graphs for one vocabulary."""

    def __init__(
        self, options: onnxruntime.SessionOptions, vocabulary_size: int, device: OrtDevice
    ) -> None:
        block = block_size(vocabulary_size)
        self._device = device
        self._is_large = vocabulary_size >= _MIN_BLOCKED_VOCABULARY
        self._max_blocked_count = 0 if block is None else vocabulary_size // (2 * block)
        self._sessions = {
            (size is not None, with_mass): device.open(
                topk_graph(vocabulary_size, size, with_mass=with_mass).SerializeToString(), options
            )
            for size in {None, block}
            for with_mass in (False, True)
        }

    def rank(
        self,
        logits: DeviceTensor,
        k: int,
        temperatures: NDArray[np.float32] | None = None,
        *,
        with_logits: bool = False,
    ) -> Candidates:
        """The k best tokens of each row of (R, V) logits; see `edits.Logits.rank`."""
        count = k
        if self._is_large:
            count = max(k, 2)  # for k = 1, ONNX Runtime's TopK does not share rows among threads
        arrays: dict[str, NDArray[Any]] = {COUNT: np.array([count], np.int64)}
        if temperatures is not None:
            arrays[TEMPERATURE] = temperatures
        outputs = _OUTPUTS[temperatures is not None, with_logits]
        session = self._sessions[count <= self._max_blocked_count, temperatures is not None]
        device = self._device
        found = device.run(session, outputs, arrays, {LOGITS: logits})
        token_ids, log_probs, *others = [device.fetch(tensor) for tensor in found]
        return Candidates(
            token_ids[:, :k],
            log_probs[:, :k],
            masses=None if temperatures is None else others[0][:, 0],
            logits=others[-1][:, :k] if with_logits else None,
        )


def _ranking() -> list[NodeProto]:
    return [
        helper.make_node("TopK", [LOGITS, COUNT], [BEST_LOGITS, TOKEN_IDS], largest=1, sorted=1)
    ]


def _block_ranking() -> list[NodeProto]:
    """The k best tokens lie in the k blocks with the best maxima, of equal ones the first.

    Each of these blocks has a better token, or an equal one of lower id, than any token outside.
    The blocks are sorted by position before their tokens are ranked, so that ties break equally.
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
        node("TopK", ["candidates", COUNT], [BEST_LOGITS, "place"], largest=1, sorted=1),
        node("Div", ["place", "block"], ["nth"]),
        node("GatherElements", ["kept", "nth"], ["owner"], axis=1),
        node("Sub", ["owner", "nth"], ["skipped"]),
        node("Mul", ["skipped", "block"], ["offset"]),
        node("Add", ["place", "offset"], [TOKEN_IDS]),
    ]


def _mass() -> list[NodeProto]:
    """The inverse of the best token's probability at the temperature.

    Log-probabilities are divided, not logits: the best are near zero, where floats are dense.
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
