"""Graphs in OpenVINO, as they will be served."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from export.parity.parity_inputs import Array, Feeds
from export.precision import Precision
from export.triton_config import stateless_config
from inference.bundle.manifest import Manifest
from inference.errors import SetupError


class CompiledRun:
    """The graphs in the same runtime, with the same configuration, as when they are served.

    A `Run`; a graph is compiled at its first call.

    Args:
        files: Graph → its file.
        precision: That of the files.
    """

    def __init__(self, manifest: Manifest, files: Mapping[str, Path], precision: Precision) -> None:
        self._manifest, self._files, self._precision = manifest, files, precision
        self._compiled: dict[str, Any] = {}

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        """Outputs of one graph.

        Raises:
            SetupError: OpenVINO is not installed.
        """
        if key not in self._compiled:
            self._compiled[key] = self._compile(key)
        outputs = [port.name for port in self._manifest.graphs[key].outputs]
        found: dict[str, Array] = self._compiled[key].run(outputs, feeds)
        return found

    def close(self) -> None:
        """Unloads all graphs; the next call loads its own again."""
        self._compiled.clear()

    def _compile(self, key: str) -> Any:
        try:
            from inference.stateless.compiled_graphs import CompiledGraphs
        except ImportError as error:
            raise SetupError(missing_package("openvino")) from error
        return CompiledGraphs(self._files[key], _config(self._manifest, key, self._precision))


def _config(manifest: Manifest, key: str, precision: Precision) -> dict[str, Any]:
    """The configuration of one graph, as Triton's JSON."""
    text = stateless_config(
        manifest.parts[key], manifest.graphs[key], runtime="openvino", precision=precision.value
    )
    message = text_format.Parse(text, pb.ModelConfig())
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def missing_package(package: str) -> str:
    """What to install for OpenVINO."""
    return f"--runtime openvino needs {package}: pip install 'triptych[openvino]'"
