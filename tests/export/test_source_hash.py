"""Which edits of the exporter make published bundles out of date."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import export
from export.pipeline.manifest import Request, content_hash
from export.registry import ARCHITECTURES, module_of
from export.source_hash import PIPELINE, imported_sources, source_hash
from tests.export.conftest import Twins
from tests.export.twin import EXPORTED

ROOT = Path(export.__file__).parents[1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the exporter's source."""
    ignored = shutil.ignore_patterns("__pycache__", "*.json", "*.jinja")
    shutil.copytree(ROOT / "export", tmp_path / "export", ignore=ignored)
    return tmp_path


def edit(root: Path, module: str) -> None:
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    path.write_text(path.read_text(encoding="utf-8") + "\n# edited\n", encoding="utf-8")


@pytest.mark.parametrize(
    "edited",
    [
        "export.models.encoders.bert",
        "export.models.encoder_decoders.t5",
        "export.catalog.command",
    ],
)
def test_edit_of_what_an_architecture_does_not_import_leaves_its_hash(
    root: Path, edited: str
) -> None:
    before = source_hash("export.models.encoder_decoders.bart", root)
    edit(root, edited)
    assert source_hash("export.models.encoder_decoders.bart", root) == before


@pytest.mark.parametrize(
    "edited",
    [
        "export.models.captioners.florence2",
        "export.models.encoder_decoders.bart",  # imported
        "export.layers.attention.attention",  # imported by `bart`
        "export.layers.attention.rotary",  # imported by a layer
        PIPELINE,
        imported_sources.__module__,
    ],
)
def test_edit_of_what_an_architecture_imports_changes_its_hash(root: Path, edited: str) -> None:
    before = source_hash("export.models.captioners.florence2", root)
    edit(root, edited)
    assert source_hash("export.models.captioners.florence2", root) != before


def test_hash_covers_every_module_that_importing_loads() -> None:
    modules = ("export.models.captioners.vision_encoder_decoder", PIPELINE)
    code = (
        f"import sys, {', '.join(modules)}\n"
        "for name, module in sys.modules.items():\n"
        "    if name.split('.')[0] == 'export': print(module.__file__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {Path(line).read_bytes() for line in done.stdout.split() if line}
    assert loaded <= set(imported_sources(ROOT, *modules))


def test_hash_of_each_architecture_leaves_most_models_out() -> None:
    for module in set(map(module_of, ARCHITECTURES)):
        count = sum(b"ARCHITECTURE = " in each for each in imported_sources(ROOT, module, PIPELINE))
        assert count <= 6, module


def test_content_of_a_bundle_includes_the_code_of_its_architecture(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, request = twins("marian", EXPORTED).checkpoint, Request("x")
    before = content_hash(checkpoint, request)
    assert content_hash(checkpoint, request) == before
    monkeypatch.setattr("export.pipeline.manifest.source_hash", lambda module: f"edited {module}")
    edited = content_hash(checkpoint, request)
    monkeypatch.setattr(
        "export.pipeline.manifest.source_hash",
        lambda module: "edited export.models.encoder_decoders.bart",
    )
    assert content_hash(checkpoint, request) == edited != before
