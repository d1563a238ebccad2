"""Small graphs of the engine's own over bound logits: the cast to float32, and sparse edits.

They do on a device what numpy does on the host, so that logits never leave the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from inference.bundle.manifest import Dtype
from inference.engine.runners.candidates import Candidates
from inference.engine.runners.edits import CellEdits
from inference.engine.runners.ort.device import OrtDevice, fetch_floats
from inference.engine.runners.ort.topk_graph import TopK, parse_graph
from inference.engine.state.device import DeviceTensor


class OrtLogits:
    """Logits in a device's memory; see `inference.engine.runners.edits.Logits`.

    Args:
        values: (rows, V) float32; edited in place.
    """

    def __init__(
        self, values: DeviceTensor, device: OrtDevice, topk: TopK, editor: CellEditor
    ) -> None:
        self.vocabulary_size = values.shape[1]
        self._values, self._device, self._topk, self._editor = values, device, topk, editor

    def edit(self, cells: CellEdits) -> NDArray[np.float32]:
        """See `Logits.edit`."""
        return self._editor.run(self._values, cells)

    def rank(
        self,
        count: int,
        temperatures: NDArray[np.float32] | None = None,
        *,
        with_logits: bool = False,
    ) -> Candidates:
        """See `Logits.rank`."""
        return self._topk.rank(self._values, count, temperatures, with_logits=with_logits)

    def row(self, index: int) -> OrtLogits:
        """See `Logits.row`."""
        values = self._device.entries(self._values, index, index + 1)
        return OrtLogits(values, self._device, self._topk, self._editor)


class CellEditor:
    """Applies `CellEdits` in place, by a graph whose output is bound to its input."""

    def __init__(self, options: onnxruntime.SessionOptions, device: OrtDevice) -> None:
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
        return fetch_floats(device, raw)


class Float32Cast:
    """Converts logits of a lower precision to float32 on their device."""

    def __init__(
        self, options: onnxruntime.SessionOptions, device: OrtDevice, dtype: Dtype
    ) -> None:
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
    model: onnx.ModelProto, options: onnxruntime.SessionOptions, device: OrtDevice
) -> onnxruntime.InferenceSession:
    """A session of a graph of our own."""
    return device.open(model.SerializeToString(), options)
