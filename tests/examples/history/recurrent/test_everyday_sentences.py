"""Sentences of six languages: every slot is filled, and test sentences are not trained on."""

from collections import Counter
from itertools import islice
from random import Random

import pytest

from examples.history.recurrent.everyday_sentences import (
    LANGUAGES,
    everyday_sentences,
    typed,
    unrelated_sentences,
)
from examples.texts.splits import Split
from export.tokenizer.languages import THREE_LETTERS

COUNT = 300


def test_labels_are_iso_639_codes() -> None:
    assert set(LANGUAGES) <= set(THREE_LETTERS)
    assert len(LANGUAGES) == 6


@pytest.mark.parametrize("split", ["train", "held_out", "compositional"])
def test_languages_are_drawn_alike_and_every_slot_is_filled(split: Split) -> None:
    drawn = list(islice(everyday_sentences(split, 2), COUNT))
    assert set(Counter(one.language for one in drawn).values()) == {COUNT // 6}
    assert not any(set("{};*") & set(one.text) for one in drawn)
    assert drawn == list(islice(everyday_sentences(split, 2), COUNT))


def test_splits_share_no_sentence() -> None:
    train = {one.text.lower() for one in islice(everyday_sentences("train", 2), 5 * COUNT)}
    for split in ("held_out", "compositional"):
        assert not train & {one.text.lower() for one in islice(everyday_sentences(split), COUNT)}


def test_unrelated_sentences_are_ten_of_each_language() -> None:
    asked = unrelated_sentences()
    assert set(Counter(one.language for one in asked).values()) == {10}


def test_typing_changes_case_marks_and_accents_only() -> None:
    rng = Random(1)
    found = {typed("¿Dónde está el café?", rng) for _ in range(400)}
    assert {"¿Dónde está el café?", "¿dónde está el café?", "Dónde está el café"} <= found
    assert "¿Donde esta el cafe?" in found
