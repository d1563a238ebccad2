"""Packages of Argos Translate are read, and archives that are none, or harmful, are refused."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from export.checkpoint.checkpoint import open_checkpoint
from export.checkpoint.foreign import argos
from export.graphs.source_model import SourceModel
from export.pipeline.manifest import Request, build_manifest
from inference.errors import CheckpointError
from tests.export.checkpoint.foreign.test_translators import Translator, check, vocabularies
from tests.export.checkpoint.foreign.write_files import FILES
from tests.export.saved_folders import write_pieces

METADATA = {"package_version": "1.9", "from_code": "en", "to_code": "zt", "type": "translate"}
NAME = "translate-en_zt-1_9"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An unpacked package."""
    found = tmp_path / NAME
    shutil.copytree(FILES / "opennmt-2.24.0", found / "model")
    write_pieces(found / "sentencepiece.model")
    (found / "metadata.json").write_text(json.dumps(METADATA))
    (found / "stanza").mkdir()
    (found / "stanza" / "resources.json").write_text("{}")
    return found


@pytest.fixture
def package(folder: Path, tmp_path: Path) -> Path:
    return zipped(folder, tmp_path / f"{NAME}.argosmodel")


def zipped(folder: Path, package: Path) -> Path:
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder.parent))
    return package


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        _ = SourceModel.open(path).network
    assert "\n" not in caught.value.message
    return caught.value.message


def test_package_translates_as_its_library_does(package: Path, folder: Path) -> None:
    check("opennmt-2.24.0", Translator(package, *vocabularies(folder / "model")))


@pytest.mark.parametrize("kind", ["package", "folder"])
def test_languages_and_search_are_those_of_the_package(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model = SourceModel.open(request.getfixturevalue(kind))
    graphs = model.architecture.graphs(model.network, None)
    manifest, warnings = build_manifest(Request("m"), 1, model, graphs)
    assert manifest.tasks["translate"]["languages"] == (("en", "zt"),)
    assert manifest.source.name == NAME
    assert manifest.generation is not None
    assert (manifest.generation.num_beams, manifest.generation.length_penalty) == (4, 0.2)
    assert manifest.tokenizer is not None
    assert not manifest.tokenizer.adds_end
    assert any("Argos" in line for line in warnings)


def test_only_what_is_read_is_unpacked(package: Path, tmp_path: Path) -> None:
    found = argos.unpack(package, tmp_path / "unpacked")
    names = {path.relative_to(found).as_posix() for path in found.rglob("*") if path.is_file()}
    assert {"metadata.json", "sentencepiece.model", "model/model.bin"} < names
    assert not any("stanza" in name for name in names)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"type": "sbd"}, "type translate"),
        ({"from_code": None}, "from_code"),
        ({"target_prefix": "__de__"}, "target_prefix"),
        ({"to_code": ["de", "fr"]}, "to_code"),
    ],
)
def test_other_packages_are_refused_by_name(
    changes: dict[str, object], named: str, folder: Path
) -> None:
    (folder / "metadata.json").write_text(json.dumps(METADATA | changes))
    assert named in refusal(folder)


def test_package_without_sentencepiece_is_refused_by_name(folder: Path) -> None:
    (folder / "sentencepiece.model").rename(folder / "bpe.model")
    assert "bpe.model" in refusal(folder)


@pytest.mark.parametrize("name", ["../../out", "/out", "a/../../out", "a\\..\\out"])
def test_paths_outside_the_package_are_refused(name: str, package: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr(name, "x")
    assert "outside" in refusal(package)
    assert not list(tmp_path.glob("**/out"))


@pytest.mark.parametrize("name", ["model.bin/model/x", "x" * 300])
def test_names_that_no_folder_can_hold_are_refused(name: str, package: Path) -> None:
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr(f"{NAME}/model/{name}", "x")
    refusal(package)


def test_package_of_any_name_is_unpacked_beside_what_it_becomes(package: Path) -> None:
    checkpoint = open_checkpoint(str(package.rename(package.with_stem("unpacked"))))
    assert not (checkpoint.folder / "model").exists()


def test_links_are_refused(package: Path) -> None:
    link = zipfile.ZipInfo(f"{NAME}/model/link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert "a link" in refusal(package)


def test_bombs_are_refused_before_they_are_unpacked(package: Path) -> None:
    with (
        zipfile.ZipFile(package, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{NAME}/model/more.bin", "w") as file,
    ):
        for _ in range(64):
            file.write(bytes(1 << 20))
    assert "unpacks to over" in refusal(package)


def test_archives_of_very_many_files_are_refused(package: Path) -> None:
    with zipfile.ZipFile(package, "a") as archive:
        for number in range(10_001):
            archive.writestr(f"{NAME}/{number}", b"")
    assert "files" in refusal(package)


def test_damaged_archives_are_refused(package: Path) -> None:
    content = package.read_bytes()
    for changed in (b"", content[:-40], content[: len(content) // 2], b"text" * 100):
        package.write_bytes(changed)
        assert "damaged" in refusal(package)
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 255
    package.write_bytes(flipped)
    refusal(package)


def test_archive_without_metadata_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "m.argosmodel"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("model/model.bin", b"")
    assert "metadata.json" in refusal(package)


def test_archive_without_a_model_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "m.argosmodel"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("m/metadata.json", json.dumps(METADATA))
    assert "model.bin" in refusal(package)


def test_failed_conversion_leaves_no_folder(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    package.write_bytes(b"")
    with pytest.raises(CheckpointError):
        open_checkpoint(str(package))
    assert not list(place.iterdir())
