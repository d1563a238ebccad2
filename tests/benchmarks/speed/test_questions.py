"""Questions about pictures: one prompt for all systems, and a peer that is missing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from benchmarks.full_size.folders import save_byte_pairs
from benchmarks.harness.system import System
from benchmarks.speed import genai, report
from benchmarks.speed.questions import (
    EDGE,
    LETTERS,
    PICTURES,
    QWEN,
    SPECIAL,
    VOCABULARY,
    picture,
    question_text,
    special_id,
)
from benchmarks.speed.rounds import Cell, Result
from benchmarks.speed.work import Timing, Work, random_work


@pytest.mark.parametrize("model", PICTURES)
def test_a_question_holds_its_picture_and_differs_from_others(model: str) -> None:
    work = random_work(model, 8, 1, 0, 0, 64)
    assert Work.from_json(json.loads(json.dumps(asdict(work)))) == work
    assert len({item.prompt for item in work.items}) == 8
    assert len({item.image for item in work.items}) == 8
    for item in work.items:
        assert item.is_question
        assert item.prompt.count(PICTURES[model].token_id) == PICTURES[model].tokens
    warm = work.warm_up(4)
    assert [len(item.prompt) for item in warm.items] == [len(item.prompt) for item in work.items]
    assert not {item.image for item in work.items} & {item.image for item in warm.items}


def test_text_and_ids_of_a_question_are_the_same(tmp_path: Path) -> None:
    save_byte_pairs(tmp_path, VOCABULARY, SPECIAL)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == VOCABULARY
    for token in SPECIAL:
        assert tokenizer.convert_tokens_to_ids(token) == special_id(token)
    for item in random_work(QWEN, 4, 1, 0, 0, 64).items:
        text = question_text(item.prompt)
        assert len(text) == 2 * LETTERS
        assert tuple(tokenizer.encode(text)) == item.prompt[-2 * LETTERS :]


def test_a_picture_is_that_of_its_seed() -> None:
    assert picture(3).shape == (EDGE, EDGE, 3)
    assert np.array_equal(picture(3), picture(3))
    assert not np.array_equal(picture(3), picture(4))


def test_answers_agree_up_to_their_first_other_token() -> None:
    def answered(runtime: str, *answers: list[int]) -> Result:
        cell = Cell(QWEN, "w", (random_work(QWEN, len(answers), 1, 0, 0, 4),))
        return Result(cell, System(runtime, "fp32"), [Timing(answers=list(answers))])

    theirs = answered("transformers", [1, 2, 3, 4], [5, 6, 7, 8])
    ours = answered("triptych", [1, 2, 9, 4], [5, 6, 7, 8])
    assert report.same_tokens(ours, [ours, theirs]) == 6 / 8
    assert report.same_tokens(theirs, [ours, theirs]) == 1
    assert report.same_tokens(ours, [ours]) is None
    assert report.same_tokens(Result(ours.cell, ours.system, [Timing()]), [theirs]) is None


def test_a_peer_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(genai.importlib.util, "find_spec", lambda name: None)
    assert genai.missing(QWEN, "fp32", tmp_path) == "openvino_genai is not installed"
    monkeypatch.setattr(genai.importlib.util, "find_spec", lambda name: object())
    assert str(tmp_path) in (genai.missing(QWEN, "int8", tmp_path) or "")
    folder = genai.folder_of(QWEN, "bf16", tmp_path)
    assert folder == genai.folder_of(QWEN, "fp32", tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    assert genai.missing(QWEN, "bf16", tmp_path) is None
