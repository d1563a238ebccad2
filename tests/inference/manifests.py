"""Manifests and image recipes with what every one of them must have, and what a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Graph, Manifest, SourceInfo


def make_manifest(name: str, task: str, graphs: Mapping[str, Graph], **fields: Any) -> Manifest:
    """A manifest; `fields` are further ones, or take the place of those that are here."""
    required = {
        "version": 1,
        "architecture": "toy",
        "precision": "fp32",
        "tasks": {task: {}},
        "source": SourceInfo(name=name, content_hash="0"),
        "parts": {"generate": name},
    }
    return Manifest(name=name, graphs=graphs, **{**required, **fields})


def plain_recipe(size: tuple[int, int], rescale: float = 1.0) -> ImageSpec:
    """Pixels as they are, times a factor."""
    return ImageSpec(
        resize="exact", size=size, resample=2, mean=(0, 0, 0), std=(1, 1, 1), rescale=rescale
    )
