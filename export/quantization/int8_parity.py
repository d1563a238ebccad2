"""Int8 graphs against float32 ones, and their products against exact integers (D123).

The float32 graphs have passed `verify`, so they are the reference. Logits may differ within
`LEAST_COSINE`.

Scores that are close to float32 do not show whether products were exact: where pairs are added in
16 bits, the larger ones alone saturate. So the factors and the result of each product are made
outputs of the graph, and the result is computed again from the factors, in float64, where sums of
products of bytes are exact. The runtime multiplies the exact sum by its scale in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from export.graphs.external_data import open_graph, values
from export.parity.parity_inputs import Array, Feeds, Observation, Run
from export.parity.verify import ParityError, output_of
from inference.bundle.manifest import Graph, Role
from inference.saturation import EXTERNAL_DATA, open_cpu_session

LEAST_COSINE = 0.98
"""Between the logits or embeddings of one row; less means a layer that int8 cannot represent."""
_PROCESSORS = 0.01
"""What a cosine on random inputs may differ by between two processors."""


@dataclass
class Int8Parity:
    """How a rewritten bundle compares with its float32 original.

    Attributes:
        four_bits: Of the layers, those with weights of 4 bits.
        least_cosine: Of one row's logits, states or embeddings, over all observations: of random
            inputs, or of the user's samples that no scale was taken from.
        mean_cosine: Over all rows.
        same_best: Share of rows whose most likely token, or class of a user's sample, is the same;
            None where nothing is chosen.
        random_cosine: `least_cosine` of random inputs, where the user gave samples.
        calibration: The user's samples: names, how many, and how many were held out.
        products: Products of bytes that were computed again in float64; 0 where the
            runtime has them inside.
        product_error: The largest error of a product's value, relative to the largest of its row.
        rows_alone: Rows whose results equal, bit for bit, those of the row alone.
        hypotheses_alone: Hypotheses whose tokens equal those of the request alone.
        original_bytes: Of the float32 files.
        cache: dtype of the self-attention cache, int8 or float32; None without a cache.
        cache_cosine: Least cosine between logits with an int8 cache and without, on held-out runs.
        cache_clipped: Share of those runs' keys and values that the int8 scales clipped.
    """

    precision: str
    layers: int = 0
    tables: int = 0
    four_bits: int = 0
    least_cosine: float = 1.0
    mean_cosine: float = 1.0
    same_best: float | None = None
    random_cosine: float | None = None
    calibration: dict[str, Any] | None = None
    products: int = 0
    product_error: float = 0.0
    rows_alone: int = 0
    hypotheses_alone: int = 0
    original_bytes: int = 0
    cache: str | None = None
    cache_cosine: float | None = None
    cache_clipped: float | None = None


def compared_outputs(graph: Graph) -> list[str]:
    """Outputs without the caches, whose cells beyond a row's length are undefined."""
    kept = {port.name for port in graph.inputs if port.role is Role.STATE}
    return [p.name for p in graph.outputs if p.role is not Role.STATE or not kept]


def share(value: Array, index: int, count: int) -> Array:
    """The rows of one of `count` sequences; scalars belong to all."""
    if not value.ndim:
        return value
    each = len(value) // count
    return value[index * each : (index + 1) * each]


def compare(
    parity: Int8Parity, wanted: list[Observation], given: list[Observation], remedy: str = ""
) -> None:
    """Adds cosines to the report.

    Args:
        remedy: Ends the error.

    Raises:
        ParityError: one is below `LEAST_COSINE`.
    """
    worst, place = least_cosine(wanted, given)
    if not worst >= LEAST_COSINE:  # NaN must fail
        raise ParityError(
            f"{parity.precision} changes {place} too much: cosine {worst:.4f}, "
            f"{LEAST_COSINE} is required; nothing was published{remedy}"
        )
    pairs = list(pairs_of(join_numbers(wanted), join_numbers(given)))
    cosines = np.concatenate([row_cosines(a, b) for a, b in pairs])
    parity.least_cosine, parity.mean_cosine = float(cosines.min()), float(cosines.mean())
    is_sampled = parity.calibration is not None
    same = [
        a.argmax(axis=-1) == b.argmax(axis=-1)
        for want, (a, b) in zip(wanted, pairs_of(wanted, given), strict=True)
        if want.place.startswith(("step", "prefill", "chunk"))
        or (is_sampled and want.place.endswith(" logits") and a.shape[-1] > 1)
    ]
    parity.same_best = float(np.concatenate(same).mean()) if same else None


def least_cosine(wanted: list[Observation], given: list[Observation]) -> tuple[float, str]:
    """The least cosine of two rows, and where it is; NaN if any is NaN."""
    wanted, given = join_numbers(wanted), join_numbers(given)
    found = [float(row_cosines(a, b).min()) for a, b in pairs_of(wanted, given)]
    index = int(np.argmin(found))  # the first NaN, if there is one
    return found[index], wanted[index].place


def join_numbers(observations: Sequence[Observation]) -> list[Observation]:
    """Outputs of one number a text (its relevance) as one row: a single number has no angle."""
    kept: list[Observation] = []
    numbers: dict[str, list[Array]] = {}
    for observation in observations:
        if observation.value.shape[-1] > 1:
            kept.append(observation)
        else:
            name = output_of(observation.place)
            numbers.setdefault(name, []).append(observation.value.reshape(-1))
    return kept + [Observation(name, np.concatenate(each)) for name, each in numbers.items()]


def pairs_of(
    wanted: Sequence[Observation], given: Iterable[Observation]
) -> Iterator[tuple[Array, Array]]:
    """Both values of each observation, (rows, last dimension)."""
    for want, got in zip(wanted, given, strict=True):
        yield rows_of(want.value), rows_of(got.value)


def rows_of(value: Array) -> Array:
    """(…, D) → (rows, D)."""
    return value.reshape(-1, value.shape[-1])


def row_cosines(a: Array, b: Array) -> Array:
    """Of each pair of rows, in float64; 1 where one is of zeros, NaN where one has a NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.where(lengths == 0, 1.0, (a * b).sum(axis=-1) / np.maximum(lengths, 1e-300))


def least_cosines(wanted: Sequence[Observation], given: Sequence[Observation]) -> dict[str, float]:
    """Graph and output → the least cosine of a row with its original; NaN if any is."""
    found: dict[str, float] = {}
    for want, got in zip(join_numbers(wanted), join_numbers(given), strict=True):
        least = float(row_cosines(rows_of(want.value), rows_of(got.value)).min())
        output = output_of(want.place)
        found[output] = min(found.get(output, 1.0), least) if least == least else least
    return found


def required_cosine(recorded: Mapping[str, Any]) -> tuple[float, str]:
    """The least cosine on random inputs, and why it is not the gate's own.

    A bundle that was calibrated on a user's samples was compared on samples. They are not in the
    bundle, so on random inputs it must be as close as it was then.

    Args:
        recorded: The report that was written at export.
    """
    int8 = recorded.get("int8", {})
    if not int8.get("calibration"):
        return LEAST_COSINE, ""
    names = ", ".join(int8["calibration"]["from"])
    why = f" on random inputs; {int8['least_cosine']:.4f} on samples of {names} at export"
    return min(LEAST_COSINE, int8["random_cosine"] - _PROCESSORS), why


ROUNDING = 1e-6
"""Relative: three roundings of float32, at most 1.8e-7."""
_BLOCK_BYTES = 64 << 20
"""Of a weight in float64."""
_OPERATORS = ("MatMulIntegerToFloat", "DynamicQuantizeMatMul")


@dataclass(frozen=True)
class ProductError:
    """The result of a graph's products.

    Attributes:
        products: How many the graph has.
        worst: The largest error of a value, relative to the largest exact value of its row.
        name: Of the worst product's result.
    """

    products: int
    worst: float
    name: str

    @property
    def is_exact(self) -> bool:
        """Whether all errors are those of rounding; NaN is none."""
        return self.worst <= ROUNDING

    def refusal(self) -> str:
        """Why such a graph is not served."""
        return (
            f"the product {self.name} of bytes is off by {self.worst:.1e} of its largest value, "
            f"{ROUNDING:.0e} is allowed: this processor or ONNX Runtime does not multiply exactly"
        )


class RecordedCalls:
    """A `Run` that keeps the inputs of two calls of each graph: the first and the largest.

    A single row has kernels of its own, and the first call has one.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.calls: dict[str, list[Feeds]] = {}

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        """The outputs of a call."""
        kept = self.calls.setdefault(key, [feeds])
        if _size(feeds) > _size(kept[-1]):
            kept[1:] = [feeds]
        return self._run(key, feeds)


def _size(feeds: Feeds) -> int:
    return sum(value.nbytes for value in feeds.values())


def check_products(files: Mapping[str, Path], calls: Mapping[str, Sequence[Feeds]]) -> ProductError:
    """Computes each product of some graphs again.

    Args:
        files: By the graph's name.
        calls: Inputs of each graph.
    """
    found = [_check_graph(files[key], calls[key]) for key in calls]
    worst = found[int(np.argmax([each.worst for each in found]))]  # the first NaN, if there is one
    return replace(worst, products=sum(each.products for each in found))


def _check_graph(path: Path, calls: Sequence[Feeds]) -> ProductError:
    model = open_graph(path)
    products = list(_with_visible_factors(model.graph))
    if not products:
        return ProductError(0, 0.0, "")
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry(EXTERNAL_DATA, str(path.parent))
    session = open_cpu_session(model.SerializeToString(), options)
    names = list(dict.fromkeys(name for product in products for name in product.outputs))
    found = [dict(zip(names, session.run(names, feeds), strict=True)) for feeds in calls]
    del session
    weights = _Weights(model.graph, path.parent)
    errors = [product.error(found, weights) for product in products]
    worst = int(np.argmax(errors))  # the first NaN, if there is one
    return ProductError(len(products), errors[worst], products[worst].y)


class _Weights:
    """Constants of a graph by the names that products read."""

    def __init__(self, graph: onnx.GraphProto, folder: Path) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._turned = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Transpose"}
        self._folder = folder

    def __call__(self, name: str) -> Array:
        tensor = self._tensors.get(name)
        if tensor is None:
            return self(self._turned[name]).T
        return values(tensor, self._folder)


@dataclass(frozen=True)
class _Product:
    """One product: y = (x - zero) · weight · x_scale · weight_scale (+ bias).

    Attributes:
        x: Bytes, (…, K).
        weight: (K, N).
        x_scale: A number.
        zero: A byte.
        weight_scale: (N,).
        y: (…, N).
    """

    x: str
    weight: str
    x_scale: str
    zero: str
    weight_scale: str
    bias: str
    y: str
    has_dynamic_scale: bool

    @property
    def outputs(self) -> tuple[str, ...]:
        """What a run must return."""
        return (self.x, self.y, *((self.x_scale, self.zero) if self.has_dynamic_scale else ()))

    def error(self, runs: Sequence[Feeds], weights: _Weights) -> float:
        """The largest error of all runs, relative to the largest value of its row."""
        weight, weight_scale = weights(self.weight), weights(self.weight_scale)
        bias = weights(self.bias) if self.bias else np.zeros(len(weight_scale), np.float32)
        given = [
            _subtract_zero_point(run[self.x], self._constant(run, self.zero, weights))
            for run in runs
        ]
        scales = [float(self._constant(run, self.x_scale, weights)) for run in runs]
        got = [run[self.y].reshape(-1, weight.shape[1]) for run in runs]
        width = max(1, _BLOCK_BYTES // (8 * len(weight)))
        errors, largest = [np.zeros(len(x)) for x in given], [np.zeros(len(x)) for x in given]
        for start in range(0, weight.shape[1], width):
            part = slice(start, start + width)
            block = weight[:, part].astype(np.float64)
            for index, (x, scale, y) in enumerate(zip(given, scales, got, strict=True)):
                want = (x @ block) * (scale * weight_scale[part].astype(np.float64)) + bias[part]
                difference = np.abs(y[:, part] - want).max(axis=1)
                errors[index] = np.maximum(errors[index], difference)
                largest[index] = np.maximum(largest[index], np.abs(want).max(axis=1))
        ratios = [
            error / np.maximum(size, 1e-30) for error, size in zip(errors, largest, strict=True)
        ]
        return float(np.max([ratio.max(initial=0.0) for ratio in ratios]))  # no row: no image

    def _constant(self, run: Feeds, name: str, weights: _Weights) -> Array:
        return run[name] if self.has_dynamic_scale else weights(name)


def _subtract_zero_point(x: Array, zero: Array) -> NDArray[np.float64]:
    """Rows (R, K) of bytes without their zero point."""
    return x.reshape(-1, x.shape[-1]).astype(np.float64) - float(zero)


def _with_visible_factors(graph: onnx.GraphProto) -> Iterator[_Product]:
    """Makes the factors and the result of each product outputs of the graph."""
    nodes = [(i, n) for i, n in enumerate(graph.node) if n.op_type in _OPERATORS]
    visible = {value.name for value in graph.output}
    for index, node in reversed(nodes):  # positions in front of an added node stay
        product = _product(node)
        if product.has_dynamic_scale:
            parts = [product.x, product.x_scale, product.zero]
            graph.node.insert(
                index, helper.make_node("DynamicQuantizeLinear", node.input[:1], parts)
            )
        kinds = (TensorProto.UINT8, TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.UINT8)
        for name, kind in zip(product.outputs, kinds, strict=False):
            if name not in visible:
                visible.add(name)
                graph.output.append(helper.make_tensor_value_info(name, kind, None))
        yield product


def _product(node: NodeProto) -> _Product:
    inputs = [*node.input, *[""] * 7]
    y = node.output[0]
    if node.op_type == "DynamicQuantizeMatMul":
        x, weight, scale, _, bias = inputs[:5]
        return _Product(
            f"{y}_bytes", weight, f"{y}_scale", f"{y}_zero", scale, bias, y, has_dynamic_scale=True
        )
    x, weight, x_scale, scale, zero, _, bias = inputs[:7]
    return _Product(x, weight, x_scale, zero, scale, bias, y, has_dynamic_scale=False)
