"""Weights of 8 or 4 bits (D99) as a rewrite of an exported graph, for OpenVINO.

The runtime expands no weights: it scales groups of activations to int8 as a graph runs, and
multiplies integers. Embedding tables and the layer of scores have 8 bits in both:

- `int8`: one scale an output.
- `int4`: a scale and a zero point for each group of 128 inputs (round to nearest, as in Frantar et
  al. 2022, "GPTQ", arXiv 2210.17323, §5, "RTN"). Groups with a zero point lose less than symmetric
  ones, and their products take the same time. Layers whose inputs are no multiple of 128 have 8,
  as have those that 4 would change by more than `MOST_LOSS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto

from export.graphs.external_data import values
from export.precision import Precision
from export.quantization.quantize import (
    BLOCK,
    Linear,
    Quantised,
    Rewrite,
    per_channel,
    rewrite_file,
)

ACTIVATION_GROUP = 64
"""Least activations that share a scale in OpenVINO (`compiled_decoder.QUANTISATION_GROUPS`)."""
WEIGHT_GROUP = 128
"""Weights of 4 bits that share a scale and a zero point."""
STEPS = 15
"""Of 4 bits."""
MOST_LOSS = 1 / 8
"""Of a layer of 4 bits (`Groups.loss`). Normally distributed weights lose 0.10; three layers of
`example-gpt` with outliers lose 0.16, and with them 4 bits take its scores from a cosine of 0.993
to one of 0.948."""


def quantize_weights(key: str, path: Path, precision: Precision) -> Quantised:
    """Rewrites an exported file in place.

    Args:
        key: Of the graph; 4 bits are for `step`, encoders have 8.
        path: float32; its interface stays as it is.
        precision: int8 or int4.
    """
    kind = FourBits if precision is Precision.INT4 and key == "step" else EightBits
    return rewrite_file(path, lambda graph: kind(graph, path.parent, precision))


@dataclass(frozen=True)
class Groups:
    """A weight of 4 bits: (numbers - zeros) · scales, numbers and zeros of 0 … 15.

    Attributes:
        numbers: (N, K).
        scales: (N, K / size).
        zeros: (N, K / size).
        loss: Root mean square of what rounding changes, relative to that of the weight.
    """

    numbers: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8]
    loss: float


def per_group(weight: NDArray[np.float32], size: int) -> Groups:
    """Rounds a weight (N, K), K a multiple of `size`; zero is represented exactly."""
    groups = weight.reshape(len(weight), -1, size)
    least, largest = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    width = largest - least
    scales = (np.where(width > 0, width, 1) / STEPS).astype(np.float32)
    zeros = np.rint(-least / scales)
    numbers = np.empty(groups.shape, np.uint8)
    changed = whole = 0.0
    for start in range(0, len(groups), BLOCK):  # copies of parts, not of the whole
        part = slice(start, start + BLOCK)
        scale, zero = scales[part, :, None], zeros[part, :, None]
        rounded = np.clip(np.rint(groups[part] / scale) + zero, 0, STEPS)
        numbers[part] = rounded
        changed += float(np.square((rounded - zero) * scale - groups[part]).sum())
        whole += float(np.square(groups[part]).sum())
    loss = (changed / whole) ** 0.5 if whole else 0.0
    return Groups(numbers.reshape(weight.shape), scales, zeros.astype(np.uint8), loss)


class EightBits(Rewrite):
    """Weights (N, K) with a scale for each output: the form whose product OpenVINO fuses.

    Layers of fewer than `ACTIVATION_GROUP` inputs stay float32: OpenVINO 2026.4 does not scale
    their activations in groups, and the bits of its other product depend on the number of rows.
    """

    def _as_linear(self, node: NodeProto) -> Linear | None:
        linear = super()._as_linear(node)
        return linear if linear and self._inputs(linear) >= ACTIVATION_GROUP else None

    def _inputs(self, linear: Linear) -> int:
        """K of a layer."""
        inputs: int = self.weights[linear.weight].dims[1 if linear.is_transposed else 0]
        return inputs

    def _multiply(self, linear: Linear) -> None:
        product = linear.y if linear.bias is None else f"{linear.y}_product"
        self._product(linear, product)
        if linear.bias is not None:
            self._node("Add", [product, linear.bias], linear.y)

    def _product(self, linear: Linear, y: str) -> None:
        """Y = x · weight."""
        weight, scale = self._weight(linear)
        turned = f"{weight}_float_transposed"
        if turned not in self._stored:
            self._stored.add(turned)
            scaled = self._node("DequantizeLinear", [weight, scale], f"{weight}_float", axis=0)
            self._node("Transpose", [scaled], turned, perm=[1, 0])
        self._node("MatMul", [linear.x, turned], y)

    def _weight(self, linear: Linear) -> tuple[str, str]:
        """Names of an int8 weight (N, K) and its scales (N,)."""
        if linear.weight in self.tables and linear.is_transposed:
            return self._table(linear.weight)
        name, scale = f"{linear.weight}_int8", f"{linear.weight}_scale"
        if name not in self._stored:
            quantised, scales = per_channel(self._transpose(linear), axis=1)
            self._constant(name, quantised)
            self._constant(scale, scales)
        return name, scale

    def _transpose(self, linear: Linear) -> NDArray[np.float32]:
        """A layer's weight as (N, K)."""
        weight: NDArray[np.float32] = values(self.weights[linear.weight], self.folder)
        return weight if linear.is_transposed else np.ascontiguousarray(weight.T)


class FourBits(EightBits):
    """Weights in groups with zero points, where they lose little."""

    least_opset, least_ir_version = 21, 10  # numbers of 4 bits, scales of groups

    def __init__(self, graph: onnx.GraphProto, folder: Path, precision: Precision) -> None:
        super().__init__(graph, folder, precision)
        self._outputs = {value.name for value in graph.output}
        self._turned: dict[str, str | None] = {}  # weight → its form (K, N); None with 8 bits

    def _product(self, linear: Linear, y: str) -> None:
        is_scores = linear.y in self._outputs
        if is_scores or linear.weight in self.tables or self._inputs(linear) % WEIGHT_GROUP:
            super()._product(linear, y)
            return
        if linear.weight not in self._turned:
            self._turned[linear.weight] = self._in_groups(linear)
        turned = self._turned[linear.weight]
        if turned is None:
            super()._product(linear, y)
        else:
            self.four_bits += 1
            self._node("MatMul", [linear.x, turned], y)

    def _in_groups(self, linear: Linear) -> str | None:
        """The weight in groups, as (K, N); None where it would lose too much."""
        groups = per_group(self._transpose(linear), WEIGHT_GROUP)
        if groups.loss > MOST_LOSS:
            return None
        names = [f"{linear.weight}_{part}" for part in ("int4", "scales", "zeros")]
        self._pairs(names[0], groups.numbers)
        self._constant(names[1], groups.scales)
        self._pairs(names[2], groups.zeros)
        sizes = {"axis": 1, "block_size": WEIGHT_GROUP}
        floats = self._node("DequantizeLinear", names, f"{names[0]}_float", **sizes)
        return self._node("Transpose", [floats], f"{names[0]}_transposed", perm=[1, 0])

    def _pairs(self, name: str, numbers: NDArray[np.uint8]) -> None:
        """Adds a constant of 4 bits, two numbers in a byte, the first in its low bits."""
        even = np.pad(numbers.reshape(-1), (0, numbers.size % 2))
        content = (even[0::2] | (even[1::2] << 4)).tobytes()
        uint4 = onnx.TensorProto.UINT4
        tensor = onnx.helper.make_tensor(name, uint4, numbers.shape, content, raw=True)
        self.graph.initializer.append(tensor)
