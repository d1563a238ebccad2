"""A published bundle's copy at a lower precision, without exporting it again."""

from __future__ import annotations

import shutil
from pathlib import Path

from export.parity.verify import open_sessions
from export.pipeline.publish import publish, staging
from export.precision import Precision
from export.quantization.calibrate import cache_scales
from export.quantization.quantize import quantize
from export.quantization.quantize_cache import quantize_cache
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle


def lowered(original: Bundle, precision: Precision, repository: Path) -> Bundle:
    """Copies every part, rewrites its graph, publishes it into another repository."""
    manifest = original.manifest.model_copy(update={"precision": precision.value})
    source = original.folder.parent.parent
    with staging(repository) as stage:
        for part in manifest.parts.values():
            folder = source / part / original.folder.name
            shutil.copytree(folder, stage.part(part), dirs_exist_ok=True)
        files = {
            key: stage.part(manifest.parts.get(key, manifest.name)) / graph.file
            for key, graph in manifest.graphs.items()
        }
        scales = cache_scales(manifest, open_sessions(files))
        for file in files.values():
            quantize(file, precision)
        if scales:
            manifest = quantize_cache(files["step"], manifest, scales)
        publish(stage, repository, manifest)
    return newest_bundle(repository, manifest.name)
