"""The graphs of a staged bundle for CUDA: exported, checked and, if asked for, in a lower type."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from export.architecture import Graphs, Lowering
from export.parity.graph_runs import bundle_path, file_bytes
from export.parity.verify import Report
from export.precision import Precision
from export.quantization.quantize_cache import with_dtype
from export.targets.cuda.assignment import assign
from export.targets.cuda.gate import compare_low
from export.targets.cuda.half_precision import halve
from inference.bundle.manifest import Bundle, Dtype, Manifest

LOW: dict[Precision, Dtype] = {Precision.FP16: "float16", Precision.BF16: "bfloat16"}


def for_cuda(key: str, lowering: Lowering, precision: Precision) -> Lowering:
    """A graph's lowering: CUDA's GroupQueryAttention, which `step` has, takes no float32."""
    is_fused = lowering.is_fused and (key != "step" or precision in LOW)
    return replace(lowering, is_fused=is_fused, is_for_cuda=True)


def finish_cuda(report: Report, graphs: Graphs, bundle: Bundle, precision: Precision) -> Manifest:
    """Gives the verified float32 files of a staged bundle their precision, and checks them.

    Args:
        report: Of the float32 files, which equal PyTorch; updated in place.

    Returns:
        The manifest that fits the files.

    Raises:
        SetupError: CUDA has no kernel for a node; names operator, type and graph.
        ParityError: too much is lost.
    """
    original = bundle.manifest
    found: dict[str, Any] = {}
    if precision in LOW:
        bundle, changed = lower(bundle, LOW[precision])
        found |= changed
    assigned = {key: assign(bundle_path(bundle, key), key) for key in original.graphs}
    found["host_nodes"] = sum(sum(each.host.values()) for each in assigned.values())
    found["device_nodes"] = {
        dtype: sum(each.types[dtype] for each in assigned.values())
        for dtype in sorted({dtype for each in assigned.values() for dtype in each.types})
    }
    found["needs_cudnn"] = sorted({name for each in assigned.values() for name in each.cudnn})
    if precision in LOW:
        found["parity"] = asdict(compare_low(graphs, bundle, original, precision))
    report.cuda = found
    report.milliseconds = {}  # of the CPU
    report.graph_bytes = {key: file_bytes(bundle_path(bundle, key)) for key in original.graphs}
    return bundle.manifest


def lower(bundle: Bundle, low: Dtype) -> tuple[Bundle, dict[str, Any]]:
    """Rewrites the float32 files of a bundle in place.

    Returns:
        The bundle with the manifest that fits them, and figures for the report.
    """
    states = {
        name
        for state in bundle.manifest.states
        for name in (state.step_input, state.step_output, state.admit_output)
        if name is not None and state.dtype == "float32"
    }
    files = {key: bundle_path(bundle, key) for key in bundle.manifest.graphs}
    before = sum(map(file_bytes, files.values()))
    done = [halve(path, key, low, states) for key, path in files.items()]
    figures = {"original_bytes": before, "casts": sum(each.casts for each in done)}
    return replace(bundle, manifest=with_dtype(bundle.manifest, states, low)), figures
