"""The examples' bundles without graphs: tokenizer, image recipe and manifest, in a second."""

from __future__ import annotations

from pathlib import Path

from export.checkpoint.checkpoint import load, open_checkpoint
from export.examples.bundles import CHECKPOINTS
from export.pipeline.manifest import Request, build_manifest, preprocessing
from export.registry import architecture
from inference.bundle.manifest import Bundle


def example_bundle(name: str, folder: Path) -> Bundle:
    """One example's bundle, staged in a folder."""
    checkpoint = open_checkpoint(str(CHECKPOINTS / name))
    declared = architecture(checkpoint.config.get("model_type"))
    config = declared.read_config(checkpoint.config)
    network = declared.build(config).eval()
    load(network, checkpoint, declared.rename(config))
    prepared = preprocessing(declared, checkpoint)
    graphs = declared.graphs(network, prepared.image)
    manifest, _ = build_manifest(Request(name), 1, declared, checkpoint, network, graphs, prepared)
    for file, content in prepared.files.items():
        (folder / file).write_bytes(content)
    return Bundle(folder, manifest)
