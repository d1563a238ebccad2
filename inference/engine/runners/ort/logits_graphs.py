"""Small graphs of the engine's own over bound logits.

They do on a device what numpy does on the host, so that logits never leave the device.

The graphs apply no rules: `search.logits_processors` drops candidates that are not allowed. They
read bound logits on any device; only (rows, k) numbers are fetched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper

from inference.bundle.manifest import Dtype
from inference.engine.runners.candidates import Candidates, CellEdits
from inference.engine.state.device import Device, DeviceTensor


class OrtLogits:
    """Logits in a device's memory; see `inference.engine.runners.candidates.Logits`.

    Args:
        values: (rows, V) float32; edited in place.
    """

    def __init__(
        self, values: DeviceTensor, device: Device, topk: TopK, editor: CellEditor
    ) -> None:
        self.vocabulary_size = values.shape[1]
        self._values, self._device, self._topk, self._editor = values, device, topk, editor

    def edit(self, cells: CellEdits) -> NDArray[np.float32]:
        return self._editor.run(self._values, cells)

    def rank(
        self,
        count: int,
        temperatures: NDArray[np.float32] | None = None,
        *,
        with_logits: bool = False,
    ) -> Candidates:
        return self._topk.rank(self._values, count, temperatures, with_logits=with_logits)

    def row(self, index: int) -> OrtLogits:
        values = self._device.entries(self._values, index, index + 1)
        return OrtLogits(values, self._device, self._topk, self._editor)


class CellEditor:
    """Applies `CellEdits` in place, by a graph whose output is bound to its input."""

    def __init__(self, options: onnxruntime.SessionOptions, device: Device) -> None:
        self._device = device
        self._session = open_model(edit_graph(), options, device)

    def run(self, logits: DeviceTensor, cells: CellEdits) -> NDArray[np.float32]:
        """Edits (rows, V) logits; returns the cells' scores before, (n,)."""
        device, binding = self._device, self._session.io_binding()
        arrays: dict[str, NDArray[Any]] = {
            "cells": np.stack([cells.rows, cells.token_ids], axis=1),
            "bias": cells.bias,
            "factor": cells.factor,
            "offset": cells.offset,
        }
        held = device.bind_arrays(self._session, binding, arrays)
        raw = device.allocate(len(cells.rows), "float32")
        device.bind_input(binding, "logits", logits)
        device.bind_output(binding, "edited", logits)
        device.bind_output(binding, "raw", raw)
        device.run_bound(self._session, binding)
        del held
        return device.fetch_floats(raw)


class Float32Cast:
    """Converts logits of a lower precision to float32 on their device."""

    def __init__(self, options: onnxruntime.SessionOptions, device: Device, dtype: Dtype) -> None:
        self._device = device
        self._session = (
            None if dtype == "float32" else open_model(cast_graph(dtype), options, device)
        )

    def run(self, source: DeviceTensor, target: DeviceTensor) -> None:
        """Writes (rows, V) of `source` to `target` as float32."""
        assert self._session is not None
        binding = self._session.io_binding()
        self._device.bind_input(binding, "values", source)
        self._device.bind_output(binding, "floats", target)
        self._device.run_bound(self._session, binding)


def edit_graph() -> onnx.ModelProto:
    """Logits (R, V), cells (n, 2), bias, factor, offset (n,) → edited (R, V), raw (n,).

    The arithmetic is that of `Edit`. With `edited` bound to the memory of `logits`, ScatterND
    copies nothing but the cells.
    """
    return parse_graph(
        """edit (float[R, V] logits, int64[n, 2] cells,
                 float[n] bias, float[n] factor, float[n] offset)
        => (float[R, V] edited, float[n] raw) <float zero = {0}> {
            raw = GatherND (logits, cells)
            biased = Add (raw, bias)
            is_negative = Less (biased, zero)
            multiplied = Mul (biased, factor)
            divided = Div (biased, factor)
            penalised = Where (is_negative, multiplied, divided)
            final = Add (penalised, offset)
            edited = ScatterND (logits, cells, final)
        }"""
    )


def cast_graph(dtype: Dtype) -> onnx.ModelProto:
    """Values (R, V) of float16 or bfloat16 → floats (R, V) float32."""
    return parse_graph(
        f"cast ({dtype}[R, V] values) => (float[R, V] floats)"
        f"{{ floats = Cast <to = {onnx.TensorProto.FLOAT}> (values) }}"
    )


def open_model(
    model: onnx.ModelProto, options: onnxruntime.SessionOptions, device: Device
) -> onnxruntime.InferenceSession:
    """A session of a graph of our own."""
    return device.open(model.SerializeToString(), options)


LOGITS, COUNT, TOKEN_IDS, LOG_PROBS = "logits", "k", "token_ids", "log_probs"
BEST_LOGITS, TEMPERATURE, MASS = "best_logits", "temperature", "mass"
MIN_BLOCKED_VOCABULARY = 8192  # below, extra operators and thread synchronisation cost more
_USUAL_COUNT = 8
_OUTPUTS = {  # by whether masses and logits are needed: each output costs a microsecond
    (False, False): (TOKEN_IDS, LOG_PROBS),
    (False, True): (TOKEN_IDS, LOG_PROBS, BEST_LOGITS),
    (True, False): (TOKEN_IDS, LOG_PROBS, MASS),
    (True, True): (TOKEN_IDS, LOG_PROBS, MASS, BEST_LOGITS),
}


_RANKING = "best_logits, token_ids = TopK <largest = 1, sorted = 1> (scores, k)"
# The k best tokens lie in the k blocks with the best maxima, of equal ones the first. Each of these
# blocks has a better token, or an equal one of lower id, than any token outside. The blocks are
# sorted by position before their tokens are ranked, so that ties break equally.
_BLOCK_RANKING = """
    cells = Reshape (scores, by_blocks)  # (R, blocks, block)
    maxima = ReduceMax <keepdims = 0> (cells, cell_axis)
    best_maxima, by_rank = TopK <largest = 1, sorted = 1> (maxima, k)
    kept, rank = TopK <largest = 0, sorted = 1> (by_rank, k)
    indices = Unsqueeze (kept, cell_axis)
    near = GatherND <batch_dims = 1> (cells, indices)
    candidates = Reshape (near, by_rows)  # (R, k x block)
    best_logits, place = TopK <largest = 1, sorted = 1> (candidates, k)
    nth = Div (place, block)
    owner = GatherElements <axis = 1> (kept, nth)
    skipped = Sub (owner, nth)
    offset = Mul (skipped, block)
    token_ids = Add (place, offset)
"""
# The inverse of the best token's probability at the temperature. Log-probabilities are divided, not
# logits: the best are near zero, where floats are dense.
_MASS = """
    tempered = Div (normalised, temperature)
    renormalised = LogSoftmax <axis = -1> (tempered)
    first_ids = Gather <axis = 1> (token_ids, first)
    first_log_prob = GatherElements <axis = 1> (renormalised, first_ids)
    log_mass = Neg (first_log_prob)
    mass = Exp (log_mass)
"""


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
    constants: dict[str, Any] = {"first": [0]} if with_mass else {}
    temperature, mass = (
        (", float[R, 1] temperature", ", float[R, 1] mass") if with_mass else ("", "")
    )
    return _ranking_graph(
        f"""topk (float[R, V] logits, int64[1] k{temperature})
        => (int64[R, k] token_ids, float[R, k] log_probs, float[R, k] best_logits{mass}) {{
        {_ranking("logits", block)}
        normalised = LogSoftmax <axis = -1> (logits)
        log_probs = GatherElements <axis = 1> (normalised, token_ids)
        {_MASS if with_mass else ""}
        }}""",
        constants,
        vocabulary_size,
        block,
    )


def choice_graph(vocabulary_size: int, block: int | None = None) -> onnx.ModelProto:
    """Logits (R, V) float32 → the best token and its log-probability, each (R, 1).

    Two rows (1, V) are added to the logits: `bias` before log-softmax, `bans` after it. They are
    ranked as by `topk_graph`.
    """
    return _ranking_graph(
        f"""choice (float[R, V] logits, float[1, V] bias, float[1, V] bans)
        => (int64[R, 1] token_ids, float[R, 1] log_probs) {{
        biased = Add (logits, bias)
        allowed = Add (biased, bans)
        {_ranking("allowed", block)}
        normalised = LogSoftmax <axis = -1> (biased)
        log_probs = GatherElements <axis = 1> (normalised, token_ids)
        }}""",
        {"k": [1]},
        vocabulary_size,
        block,
    )


def _ranking(scores: str, block: int | None) -> str:
    return (_RANKING if block is None else _BLOCK_RANKING).replace("scores", scores)


def _ranking_graph(
    text: str, constants: dict[str, Any], vocabulary_size: int, block: int | None
) -> onnx.ModelProto:
    if block is not None:
        constants |= {"by_blocks": [0, vocabulary_size // block, block], "block": block}
        constants |= {"by_rows": [0, -1], "cell_axis": [2]}
    model = parse_graph(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in constants.items()
    )
    return model


def parse_graph(text: str) -> onnx.ModelProto:
    """The model of a graph in ONNX's text format."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')


def block_size(vocabulary_size: int) -> int | None:
    """Tokens of a block; None where ranking the whole vocabulary at once is as fast.

    The maxima of all blocks and the candidates of the best blocks are ranked: about as many of
    each. On CUDA one TopK is faster at any size (D70).
    """
    divisors = [size for size in range(16, 1024) if vocabulary_size % size == 0]
    if vocabulary_size < MIN_BLOCKED_VOCABULARY or not divisors:
        return None
    return min(divisors, key=lambda size: vocabulary_size // size + _USUAL_COUNT * size)


class TopK:
    """Sessions of the top-k graphs for one vocabulary."""

    def __init__(
        self, options: onnxruntime.SessionOptions, vocabulary_size: int, device: Device
    ) -> None:
        block = block_size(vocabulary_size) if device.is_host else None
        self._device = device
        self._is_large = vocabulary_size >= MIN_BLOCKED_VOCABULARY
        self._max_blocked_count = 0 if block is None else vocabulary_size // (2 * block)
        self._sessions = {
            (size is not None, with_mass): open_model(
                topk_graph(vocabulary_size, size, with_mass=with_mass), options, device
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
        token_ids, log_probs, *others = device.fetch_all(found)
        return Candidates(
            token_ids[:, :k],
            log_probs[:, :k],
            masses=None if temperatures is None else others[0][:, 0],
            logits=others[-1][:, :k] if with_logits else None,
        )
