"""Converted checkpoints compute what their own libraries compute.

`files/` was written by `write_files.py`, and so were the answers: tokens and log-probabilities of
CTranslate2 in float32. Packages of Argos Translate are read, and archives that are none, or
harmful, are refused.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from export.checkpoint.checkpoint import open_checkpoint
from export.checkpoint.foreign import argos
from export.graphs.source_model import SourceModel
from export.parity.torch_runner import TorchRunner
from export.pipeline.manifest import Request, build_manifest
from inference.bundle.manifest import Manifest, Role
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.errors import CheckpointError
from tests.export.checkpoint.foreign.write_files import (
    ANSWERS,
    BEAMS,
    FILES,
    LENGTH,
    REPEATS,
    SOURCES,
    TARGETS,
)
from tests.export.saved_folders import write_pieces
from tests.export.step_calls import teacher_forced

WITH_TOKENIZERS = ("bart-float16", "t5-int16")
CTRANSLATE2 = sorted(path.parent.name for path in FILES.glob("*/model.bin"))


@cache
def answers() -> dict[str, Any]:
    """Name of a file → what CTranslate2 computes."""
    found: dict[str, Any] = json.loads((FILES / ANSWERS).read_text(encoding="utf-8"))
    return found


def vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    """Tokens of source and target."""
    found = []
    for side in ("source", "target"):
        paths = (folder / f"{name}_vocabulary.{end}" for name in ("shared", side)
                 for end in ("json", "txt"))  # fmt: skip
        path = next(path for path in paths if path.is_file())
        text = path.read_text(encoding="utf-8")
        found.append(json.loads(text) if path.suffix == ".json" else text.splitlines())
    return found[0], found[1]


def folder_of(name: str, place: Path) -> Path:
    """A copy of one of the files, with a tokenizer."""
    folder = place / "en-de"
    shutil.copytree(FILES / name, folder)
    if name in WITH_TOKENIZERS:
        write_tokenizer(folder, vocabularies(folder)[0])
    elif name.startswith("m2m"):
        write_pieces(folder / "sentencepiece.bpe.model")
        settings = {"language_codes": "wmt21", "bos_token": "<s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    else:
        write_pieces(folder / "sentencepiece.model")
    return folder


def write_tokenizer(folder: Path, tokens: list[str]) -> None:
    ids = {text: number for number, text in enumerate(tokens)}
    Tokenizer(models.WordLevel(ids, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))


class Translator:
    """A checkpoint's network in PyTorch, with the tokens of its source library."""

    def __init__(self, folder: Path, source: list[str], target: list[str]) -> None:
        self.model = SourceModel.open(folder)
        self.graphs = self.model.architecture.graphs(self.model.network, None)
        self.manifest, self.notes = build_manifest(Request("m"), 1, self.model, self.graphs)
        assert self.manifest.generation is not None
        self.rules = self.manifest.generation
        self.source, self.target = source, target
        tokenizer = self.manifest.tokenizer
        assert tokenizer is not None
        assert tokenizer.eos_token_id is not None
        self.end = [tokenizer.eos_token_id] if adds_end(self.manifest, folder) else []

    def read(self, text: list[str]) -> list[int]:
        return [*map(self.source.index, text), *self.end]

    def translate(self, text: list[str], beams: int) -> list[list[str]]:
        rules = self.rules.model_copy(
            update={"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": LENGTH}
            | {"min_new_tokens": 1, "early_stopping": True}  # by default of CTranslate2
            | {
                "no_repeat_ngram_size": REPEATS[beams],
                "length_penalty": 1.0,
                "forced_eos_token_id": None,
            }
        )
        if self.manifest.architecture == "t5":
            rules = rules.model_copy(update={"bad_words_ids": ((rules.pad_token_id,),)})
        request = EngineRequest(rules, source_ids=np.array(self.read(text), np.int64))
        answer = decode(TorchRunner(self.graphs, self.manifest), [request])[0]
        ends = self.rules.eos_token_ids
        return [
            [self.target[token] for token in one.token_ids if token not in ends]
            for one in answer.hypotheses
        ]

    def log_probs(self, text: list[str], target: list[str]) -> torch.Tensor:
        """Of each token of a target and of its end."""
        source = torch.tensor([self.read(text)])
        inputs = {Role.SOURCE_TOKENS: source, Role.TOKENS: source}
        inputs[Role.SOURCE] = torch.tensor([source.shape[1]], dtype=torch.int32)
        wanted = [*map(self.target.index, target), *self.rules.eos_token_ids[:1]]
        given = torch.tensor([[*self.rules.decoder_start_ids, *wanted[:-1]]])
        with torch.no_grad():
            logits, _ = teacher_forced(self.graphs, inputs, given)
        scores = logits[0, :, : len(self.target)].log_softmax(dim=-1)
        return scores[torch.arange(len(wanted)), torch.tensor(wanted)]


def adds_end(manifest: Manifest, folder: Path) -> bool:
    """Whether CTranslate2 puts the end token behind a source."""
    if not (folder / "config.json").is_file():
        return bool(manifest.tokenizer and manifest.tokenizer.adds_end)
    return bool(json.loads((folder / "config.json").read_text())["add_source_eos"])


def check(name: str, translator: Translator) -> None:
    """Asserts that a translator's tokens and log-probabilities are those of the answers."""
    wanted = answers()[name]
    for text, target, scores in zip(SOURCES, TARGETS, wanted["log_probs"], strict=True):
        torch.testing.assert_close(
            translator.log_probs(text, target), torch.tensor(scores), rtol=0, atol=1e-4
        )
    for beams in (1, BEAMS):
        for text, hypotheses in zip(SOURCES, wanted[f"beams {beams}"], strict=True):
            assert translator.translate(text, beams) == hypotheses


@pytest.mark.parametrize("name", CTRANSLATE2)
def test_files_of_ctranslate2_translate_as_it_does(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    check(name, Translator(folder, *vocabularies(folder)))


@pytest.mark.parametrize(
    ("name", "has_end"), [("marian", True), ("opennmt-bfloat16", False), ("opennmt-1.20.1", False)]
)
def test_sources_end_as_those_of_the_training(name: str, *, has_end: bool, tmp_path: Path) -> None:
    """The file says the same of both: the tokenizers of `transformers` add the end themselves."""
    folder = folder_of(name, tmp_path)
    tokenizer = Translator(folder, *vocabularies(folder)).manifest.tokenizer
    assert tokenizer is not None
    assert tokenizer.adds_end is has_end


# ------------------------------------------------------------------------ packages of Argos

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
