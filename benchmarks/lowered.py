"""A published bundle's copy for another runtime or precision, without exporting it again."""

from __future__ import annotations

import shutil
from pathlib import Path

from export.parity.graph_runs import LazySessions
from export.pipeline.publish import publish, staging
from export.precision import Precision, Runtime
from export.quantization.calibrate import cache_scales
from export.quantization.quantize import quantize
from export.quantization.quantize_cache import quantize_cache
from export.quantization.quantize_weights import quantize_weights
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle


def lowered(
    original: Bundle,
    precision: Precision,
    repository: Path,
    runtime: Runtime = Runtime.ONNXRUNTIME,
) -> Bundle:
    """Copies every part, rewrites its graph, publishes it into another repository.

    Args:
        runtime: OpenVINO decodes the graphs of generators that ONNX Runtime decodes.
    """
    update = {"precision": precision.value, "runtime": runtime.in_manifest}
    manifest = original.manifest.model_copy(update=update)
    is_openvino = runtime is Runtime.OPENVINO
    source = original.folder.parent.parent
    with staging(repository) as stage:
        for part in manifest.parts.values():
            folder = source / part / original.folder.name
            shutil.copytree(folder, stage.part(part), dirs_exist_ok=True)
        files = {
            key: stage.part(manifest.parts.get(key, manifest.name)) / graph.file
            for key, graph in manifest.graphs.items()
        }
        scales = {} if is_openvino else cache_scales(manifest, LazySessions(files))
        for key, file in files.items() if precision not in (Precision.FP32, Precision.BF16) else ():
            if is_openvino:
                quantize_weights(key, file, precision)
            else:
                quantize(file, precision)
        if scales:
            manifest = quantize_cache(files["step"], manifest, scales)
        publish(stage, repository, manifest)
    return newest_bundle(repository, manifest.name)
