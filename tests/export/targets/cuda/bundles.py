"""Twins' bundles for CUDA, from the graphs that all tests share where they are the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from export.graphs.to_onnx import to_onnx
from export.parity.graph_runs import bundle_path
from export.parity.verify import Report, verify
from export.precision import Precision
from export.targets.cuda.lowering import finish_cuda, for_cuda
from export.targets.cuda.substitutes import substitute
from inference.bundle.manifest import Bundle
from tests.export.conftest import Bundles, Twins
from tests.export.twin import EXPORTED

OWN_OPERATORS = {"bahdanau", "rnn-encoder", "rnn-seq2seq", "rnn-lm", "t5", "pix2struct"}
"""Whose graphs for CUDA are not those for the CPU in float32."""


def on_cuda(
    name: str, precision: Precision, twins: Twins, bundles: Bundles, folder: Path
) -> tuple[Bundle, Report]:
    """A twin's bundle for CUDA, through the gate."""
    given, graphs = bundles(name, EXPORTED), twins(name, EXPORTED).graphs()
    manifest = given.manifest.model_copy(update={"device": "cuda", "precision": precision.value})
    staged = Bundle(folder / "stage" / manifest.name, manifest)
    shutil.copytree(given.folder.parent, folder / "stage")
    report = Report()
    for key, lowering in graphs.lowerings.items():
        path, wanted = bundle_path(staged, key), for_cuda(key, lowering, precision)
        if name in OWN_OPERATORS or wanted.is_fused != lowering.is_fused:
            to_onnx(wanted, path)
        substitute(path, key)
    if name in OWN_OPERATORS or precision is Precision.FP32:
        verify(graphs, staged, report)
    return replace(staged, manifest=finish_cuda(report, graphs, staged, precision)), report
