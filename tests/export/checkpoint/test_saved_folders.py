"""Folders as `transformers` saves them today are read as those of older versions."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from export.graphs.source_model import SourceModel
from export.pipeline.cli import export
from export.pipeline.manifest import Request, build_manifest
from export.registry import families
from inference.bundle.reader import newest_bundle
from tests.export.saved_folders import make_older, save
from tests.export.twin import EXPORTED
from tests.export.twins import twin_of

_FURTHER = [
    ("idefics3", "smolvlm, tied"),
    ("blip-2", "flan-t5"),
    ("llava", "siglip and qwen2"),
    ("paligemma", "gemma2"),
    ("vision-encoder-decoder", "trocr"),
]
_KINDS = [(name, EXPORTED) for name in families() if twin_of(name).is_transformers]


def _planned(folder: Path) -> tuple[dict[str, Any], SourceModel]:
    """The manifest of a folder's bundle, without what its files' hashes say, and its warnings."""
    model = SourceModel.open(folder)
    manifest, warnings = build_manifest(Request("x"), 1, model, model.graphs())
    return manifest.model_dump(exclude={"source"}) | {"warnings": warnings}, model


def _as_text(configuration: object) -> str:
    """Functions by their names."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(configuration))


@pytest.mark.parametrize(("name", "config"), _KINDS + _FURTHER)
def test_saved_folder_is_read_as_its_older_form(name: str, config: str, tmp_path: Path) -> None:
    newer, older = tmp_path / "newer", tmp_path / "older"
    newer.mkdir()
    save(name, config, newer)
    shutil.copytree(newer, older)
    make_older(older)
    (manifest, model), (wanted, reference) = _planned(newer), _planned(older)
    assert manifest == wanted
    assert _as_text(model.configuration) == _as_text(reference.configuration)
    assert model.preprocessing.files == reference.preprocessing.files
    weights = reference.network.state_dict()
    for path, value in model.network.state_dict().items():
        assert torch.equal(value, weights[path]), path


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", ["idefics3", "llava", "bert", "bart", "altclip"])
def test_saved_folder_is_exported(name: str, tmp_path: Path) -> None:
    (tmp_path / "newer").mkdir()
    save(name, EXPORTED, tmp_path / "newer")
    export(str(tmp_path / "newer"), repository=tmp_path / "repository")
    manifest = newest_bundle(tmp_path / "repository", "newer").manifest
    assert set(manifest.tasks) == set(_planned(tmp_path / "newer")[0]["tasks"])
