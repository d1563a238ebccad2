"""A bundle that lacks what a task needs is refused at export, as it would be at load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from export.architecture import Architecture
from export.graphs.source_model import SourceModel
from export.pipeline.manifest import Request, build_manifest
from export.registry import architecture
from inference.bundle.manifest import Manifest
from inference.errors import BundleError
from tests.export.conftest import Twins
from tests.export.twins import twin_of

CONFIG = next(iter(twin_of("clip").configs))


def manifest_of(twins: Twins, declared: Architecture) -> Manifest:
    twin = twins("clip", CONFIG)
    source = SourceModel(twin.checkpoint, declared)
    source.preprocessing = twin.prepared
    return build_manifest(Request("twin"), 1, source, twin.graphs())[0]


def test_sections_are_those_that_the_task_reads(twins: Twins) -> None:
    manifest = manifest_of(twins, architecture("clip"))
    assert set(manifest.tasks["zero-shot"]) == {"logit_scale"}


@pytest.mark.parametrize(
    ("task", "section", "message"),
    [
        ("zero-shot", {}, "twin: tasks.zero-shot.logit_scale: Field required"),
        ("zero-shot", {"logit_scale": 1.0, "tempo": 2}, "tasks.zero-shot.tempo: Extra inputs"),
        ("generate", {}, "twin: generate needs a generator"),
        ("paint", {}, "unknown task 'paint'"),
    ],
)
def test_missing_need_is_named(twins: Twins, task: str, section: dict, message: str) -> None:
    declared = replace(architecture("clip"), tasks={task: lambda *_: section})
    with pytest.raises(BundleError, match=message):
        manifest_of(twins, declared)
