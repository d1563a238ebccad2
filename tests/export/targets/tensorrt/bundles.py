"""Twins' bundles for TensorRT."""

from __future__ import annotations

import shutil
from pathlib import Path

from export.graphs.to_onnx import to_onnx
from export.parity.verify import Report, bundle_path, verify
from export.precision import Precision
from export.targets.tensorrt.lowering import finish_tensorrt, for_tensorrt, planned
from export.twin import EXPORTED
from inference.bundle.manifest import Bundle, Limits
from tests.export.conftest import Bundles, Twins


def on_tensorrt(
    name: str, precision: Precision, twins: Twins, bundles: Bundles, folder: Path
) -> tuple[Bundle, Report]:
    """A twin's bundle for TensorRT, through the gate."""
    given, graphs = bundles(name, EXPORTED), twins(name, EXPORTED).graphs()
    fields = {"device": "cuda", "runtime": "tensorrt", "precision": precision.value}
    if given.manifest.limits.max_input_tokens is None:  # a rotary twin's
        fields["limits"] = Limits(max_input_tokens=40)
    manifest = planned(given.manifest.model_copy(update=fields))
    staged = Bundle(folder / "stage" / manifest.name, manifest)
    shutil.copytree(given.folder.parent, folder / "stage")
    for key, lowering in graphs.lowerings.items():
        to_onnx(for_tensorrt(lowering), bundle_path(staged, key))
    report = Report()
    verify(graphs, staged, report)
    finish_tensorrt(report, graphs, staged, precision)
    return staged, report
