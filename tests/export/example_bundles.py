"""The examples' bundles without graphs: tokenizer, image recipe and manifest, in a second."""

from __future__ import annotations

from pathlib import Path

from examples import CHECKPOINTS
from export.graphs.source_model import SourceModel
from export.pipeline.manifest import Request, build_manifest
from inference.bundle.manifest import Bundle


def example_bundle(name: str, folder: Path) -> Bundle:
    """One example's bundle, staged in a folder."""
    model = SourceModel.open(CHECKPOINTS / name)
    manifest, _ = build_manifest(Request(name), 1, model, model.graphs())
    for file, content in model.preprocessing.files.items():
        (folder / file).write_bytes(content)
    return Bundle(folder, manifest)
