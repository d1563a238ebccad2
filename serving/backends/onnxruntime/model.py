"""Triton backend `onnxruntime`: stateless graphs where Triton has no native one (decision D1).

Same repository, same outputs and same refusals as NVIDIA's backend; the configuration is compared
with the graph when the model loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.stateless.graph_sessions import GraphSessions
from serving.backends.stateless_model import StatelessModel


class TritonPythonModel(StatelessModel):
    """One instance; Triton requires this name."""

    def open_sessions(self, file: Path, config: dict[str, Any], card: int | None) -> GraphSessions:
        return GraphSessions(file, config, card)
