"""int8 graphs in float32, for processors whose products of bytes saturate (`saturation.py`, D123).

OpenVINO multiplies weights by activations and, in attention, activations by activations in int8.
Weights of 7 bits (NNCF's `overflow_fix`) would leave the second kind wrong. So where products
saturate, a graph keeps all its roundings, and float32 multiplies what they leave.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops
from openvino import passes


def multiply_in_float32(model: openvino.Model) -> None:
    """Changes a graph with fixed scales in place; its values differ by float32's roundings alone.

    Weights become float32, four times as large. Activations are rounded by the formula of
    `FakeQuantize` instead of the operator: OpenVINO 2026.4 multiplies what lies between two
    operators in int8, and without that (`LP_TRANSFORMS_MODE`) it computes attention otherwise
    than the graph states.
    """
    roundings = [each for each in model.get_ordered_ops() if _is_rounding(each)]
    if not roundings:
        return
    manager = passes.Manager()
    manager.register_pass(passes.ConstantFolding())
    manager.run_passes(model)
    for node in roundings:
        node.output(0).replace(_rounded(node))
    model.validate_nodes_and_infer_types()


def _is_rounding(node: Any) -> bool:
    """Whether a node rounds to fixed levels."""
    return bool(node.get_type_name() == "FakeQuantize")


def _rounded(node: Any) -> Any:
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
