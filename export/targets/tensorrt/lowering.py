"""The graphs of a staged stateless bundle for TensorRT: typed, checked, with their profiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from typing import Any

from export.architecture import Graphs, Lowering
from export.parity.graph_runs import bundle_path, file_bytes
from export.parity.verify import Report
from export.precision import Precision
from export.targets.cuda.gate import compare_low
from export.targets.cuda.half_precision import halve
from export.targets.cuda.lowering import LOW
from export.targets.tensorrt.checks import check_constants, check_positions
from export.targets.tensorrt.operators import TENSORRT, check_operators
from export.targets.tensorrt.profiles import check_profiles, with_profiles
from inference.bundle.manifest import Bundle, Manifest


def for_tensorrt(lowering: Lowering) -> Lowering:
    """A graph's lowering: TensorRT has none of ONNX Runtime's fused operators."""
    return replace(lowering, is_fused=False, is_for_cuda=True)


def planned(manifest: Manifest) -> Manifest:
    """The manifest with the profiles of its graphs.

    Raises:
        SetupError: it has no limits that a plan could be built for.
    """
    limits = manifest.limits
    graphs = {key: with_profiles(each, limits, key) for key, each in manifest.graphs.items()}
    for key, graph in graphs.items():
        check_profiles(graph, limits, key)
    return manifest.model_copy(update={"graphs": graphs})


def finish_tensorrt(report: Report, graphs: Graphs, bundle: Bundle, precision: Precision) -> None:
    """Gives the verified float32 files of a staged bundle their precision, and checks them.

    Args:
        report: Of the float32 files, which equal PyTorch; updated in place.
        bundle: Its manifest has profiles.

    Raises:
        SetupError: TensorRT lacks an operator or its type, or a limit is beyond a table.
        ParityError: too much is lost.
    """
    manifest, nodes = bundle.manifest, Counter[str]()
    for key, graph in manifest.graphs.items():
        path = bundle_path(bundle, key)
        check_operators(path, key)
        check_positions(path, graph, key)
        if precision in LOW:
            halve(path, key, LOW[precision], frozenset(), TENSORRT)
            check_constants(path, key)
        nodes += check_operators(path, key)
    found: dict[str, Any] = {
        "nodes": dict(sorted(nodes.items())),
        "profiles": {key: len(graph.profiles) for key, graph in manifest.graphs.items()},
    }
    if precision in LOW:
        found["parity"] = asdict(compare_low(graphs, bundle, manifest, precision))
    report.tensorrt = found
    report.milliseconds = {}  # of the CPU
    report.graph_bytes = {key: file_bytes(bundle_path(bundle, key)) for key in manifest.graphs}
