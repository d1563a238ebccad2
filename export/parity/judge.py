"""How exact a graph must be: as PyTorch's float32 is, measured from the float64 network.

Rounding moves the outputs of some networks by more than `TOLERANCE`, whatever computes them: scores
without a scale, for example, make attention a choice between near candidates. PyTorch and ONNX
Runtime then differ from each other although both are right. A mistake in a graph is amplified by
such a network as its rounding is, so that the multiple which is allowed stays a small one.

Decision D90.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TOLERANCE = 1e-5
"""Relative to the largest magnitude of an output; allowed to every float32 graph."""
MULTIPLE = 4
"""Of PyTorch's distance from float64 that is allowed, where that is more."""
SEEDS = (1, 2, 3)
"""Of further inputs that PyTorch's distance is taken from, before a doubtful graph is refused."""
CEILING = 1e-2
"""Most that is allowed. A network whose float32 is farther from float64 than a quarter of it cannot
be judged: its outputs are rounding."""
DIFFERS = "ONNX differs from the float64 network"


@dataclass
class Distance:
    """How far one output is from the float64 network, at worst over all inputs.

    Attributes:
        onnx: Of the exported graph, relative to the largest magnitude.
        torch: Of PyTorch in float32.
        place: Where the graph is farthest.
    """

    onnx: float = 0.0
    torch: float = 0.0
    place: str = ""

    @property
    def allowed(self) -> float:
        """What the graph may be away."""
        return allowed(self.torch)

    @property
    def is_allowed(self) -> bool:
        """Whether it is no farther than that; NaN is."""
        return self.onnx <= self.allowed

    def add(self, place: str, onnx: float, torch: float) -> None:
        """Adds one comparison."""
        if not self.place or worse(self.onnx, onnx) is not self.onnx:
            self.place = place
        self.onnx, self.torch = worse(self.onnx, onnx), worse(self.torch, torch)

    @property
    def is_doubtful(self) -> bool:
        """Whether more inputs may show that PyTorch is as far away."""
        return not self.is_allowed and self.onnx <= CEILING

    def refusal(self) -> str:
        """Why the graph is refused."""
        text = (
            f"{DIFFERS} at {self.place}: by {self.onnx:.1e} of the largest value, "
            f"{self.allowed:.0e} is allowed (PyTorch's float32 differs by {self.torch:.1e})"
        )
        if MULTIPLE * self.torch > CEILING:
            text += "; rounding alone decides what this network computes in float32"
        return text


def allowed(torch: float) -> float:
    """What a graph may be away from float64, where PyTorch's float32 is that far."""
    return max(TOLERANCE, min(MULTIPLE * torch, CEILING)) if math.isfinite(torch) else TOLERANCE


def worse(one: float, other: float) -> float:
    """The larger difference; NaN is larger than any."""
    return max(one, other, key=lambda value: (math.isnan(value), value))
