"""Triton backend `triptych_openvino`: stateless graphs of bundles exported with that runtime.

Not Triton's native `openvino` backend, which cannot set how activations are quantised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.stateless.compiled_graphs import CompiledGraphs
from inference.stateless.sessions import InvalidArgument
from serving.backends.stateless_model import StatelessModel


class TritonPythonModel(StatelessModel):
    """One instance; Triton requires this name."""

    def open_sessions(self, file: Path, config: dict[str, Any], card: int | None) -> CompiledGraphs:
        if card is not None:
            raise InvalidArgument("this backend runs on the CPU, not with KIND_GPU")
        return CompiledGraphs(file, config)
