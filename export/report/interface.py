"""A graph file's own inputs and outputs against those that the manifest declares."""

from __future__ import annotations

from typing import Any

from inference.bundle.manifest import Graph


def interface_problem(session: Any, graph: Graph) -> str | None:
    """How a file's inputs and outputs differ from the manifest's; None where they are equal."""
    for kind, found, declared in (
        ("inputs", session.get_inputs(), graph.inputs),
        ("outputs", session.get_outputs(), graph.outputs),
    ):
        have = [(port.name, _dtype(port.type), list(port.shape)) for port in found]
        want = [(port.name, port.dtype, list(port.shape)) for port in declared]
        if have != want:
            one = next((pair for pair in zip(have, want, strict=False) if pair[0] != pair[1]), None)
            return f"its {kind} are not the manifest's: {one or (len(have), len(want))}"
    return None


def _dtype(name: str) -> str:
    """ONNX Runtime's `tensor(float)` as the manifest names it."""
    plain = name.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(plain, plain)
