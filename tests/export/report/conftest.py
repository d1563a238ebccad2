"""Published bundles of twins, with the report that an export writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from export.parity.verify import Report
from export.pipeline.self_checks import write_self_checks
from export.report.file_checks import checksums
from inference.bundle.manifest import Bundle, SourceInfo
from tests.export.conftest import Bundles, Twins, lowered
from tests.export.twin import EXPORTED

Published = Callable[..., Bundle]


@pytest.fixture
def published(twins: Twins, bundles: Bundles, tmp_path: Path) -> Published:
    """(family, precision) → its twin's bundle in a repository, `location` of its checkpoint set."""

    def publish(family: str, precision: str = "fp32") -> Bundle:
        twin, staged = twins(family, EXPORTED), bundles(family, EXPORTED)
        if precision != "fp32":
            staged = lowered(staged, twin, tmp_path / precision, precision)
        repository = tmp_path / "repository"
        name = f"twin-{precision}"
        parts = {part: model.replace("twin", name) for part, model in staged.manifest.parts.items()}
        for part, model in staged.manifest.parts.items():
            target = repository / parts[part] / "1"
            shutil.copytree(staged.folder.parent / model, target)
        source = SourceInfo(
            name="twin",
            content_hash="x",
            location=str(twin.checkpoint.folder),
            checkpoint_hash=twin.checkpoint.content_hash,
        )
        update = {
            "name": name,
            "parts": parts,
            "precision": precision,
            "source": source,
            "tokenizer": None,
        }
        manifest = staged.manifest.model_copy(update=update)
        bundle = Bundle(repository / name / "1", manifest)
        (bundle.folder / "bundle.json").write_text(manifest.model_dump_json())
        write_report(bundle)
        return bundle

    return publish


def write_report(bundle: Bundle) -> None:
    """`report.json` with the checksums of the files as they are now, and the self-checks."""
    report = replace(Report(), files=checksums(bundle), warnings=["x < y is not supported"])
    bundle.path(bundle.manifest.report).write_text(json.dumps(report.as_json()))
    folders = bundle.folder.parents[1]
    write_self_checks(bundle, report, lambda model: folders / model / bundle.folder.name)
