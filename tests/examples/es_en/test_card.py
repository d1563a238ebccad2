"""The committed translator is small, loads with transformers and translates held-out sentences."""

import pytest

from examples.es_en.card import CHECKPOINT
from examples.es_en.scores import score
from examples.texts import paragraphs
from examples.texts.grammar import WITHHELD_SENTENCES
from export.training.marian import translator


@pytest.fixture(scope="module")
def translate():
    return translator(CHECKPOINT, beams=4)


def test_checkpoint_is_small():
    assert (CHECKPOINT / "model.safetensors").stat().st_size <= 6_000_000


@pytest.mark.parametrize("ending", ["", "."])
def test_withheld_sentences_are_translated_in_either_case(translate, ending):
    lower = [text + ending for text in WITHHELD_SENTENCES]
    assert translate(lower) == [text + ending for text in WITHHELD_SENTENCES.values()]
    cased = [text.capitalize() for text in lower]
    expected = [text.capitalize() + ending for text in WITHHELD_SENTENCES.values()]
    assert translate(cased) == expected


def test_demonstration_text_is_translated_sentence_by_sentence(translate):
    def split(text):
        return text.replace("?", "?|").replace(".", ".|").replace("\n", " ").split("|")[:-1]

    spanish = [sentence.strip() for sentence in split(paragraphs.SPANISH)]
    english = [sentence.strip() for sentence in split(paragraphs.ENGLISH)]
    assert translate(spanish) == english


def test_unseen_combinations_are_translated_from_their_source(translate):
    assert score(translate, "compositional", 100, seed=3) >= 90
    assert score(translate, "compositional", 100, seed=3, is_shuffled=True) < 10
