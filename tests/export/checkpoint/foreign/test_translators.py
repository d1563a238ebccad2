"""Converted checkpoints compute what their own libraries compute.

`files/` was written by `write_files.py`, and so were the answers: tokens and log-probabilities of
CTranslate2 in float32.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from export.graphs.source_model import SourceModel
from export.parity.torch_runner import TorchRunner
from export.pipeline.manifest import Request, build_manifest
from inference.bundle.manifest import Manifest, Role
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
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
