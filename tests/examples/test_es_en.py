"""The Spanish translator and its inversions."""

from __future__ import annotations

import numpy as np
import pytest

from examples.es_en.card import CHECKPOINT
from examples.es_en.scores import inversion_shares, links, score
from examples.texts import grammar
from examples.texts.grammar import WITHHELD_SENTENCES, sentences
from export.training.functions import Reading
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

    spanish = [sentence.strip() for sentence in split(grammar.SPANISH)]
    english = [sentence.strip() for sentence in split(grammar.ENGLISH)]
    assert translate(spanish) == english


def test_unseen_combinations_are_translated_from_their_source(translate):
    assert score(translate, "compositional", 100, seed=3) >= 90
    assert score(translate, "compositional", 100, seed=3, is_shuffled=True) < 10


def test_inverted_pairs_are_found_in_every_form():
    assert links("Veo el gato negro.", "I see the black cat.") == [((3, 3), (4, 2))]
    plural = links("Las camisas rojas están aquí", "The red shirts are here")
    assert plural == [((1, 2), (2, 1))]


def test_pairs_in_one_order_are_no_inversions():
    assert links("Este restaurante tiene buena comida.", "This restaurant has good food.") == []


def aligned(text: str, target: str, reads_straight: bool) -> Reading:
    attention = np.full((len(target.split()), len(text.split())), 0.1)
    for adjective, noun in links(text, target):
        for (word, own), (_, rival) in ((adjective, noun), (noun, adjective)):
            attention[word, rival if reads_straight else own] = 1
    return Reading(target, attention)


@pytest.mark.parametrize(("reads_straight", "shares"), [(False, (1, 0)), (True, (0, 1))])
def test_shares_separate_own_word_from_rival(reads_straight: bool, shares: tuple[float, float]):
    translations = {pair.spanish: pair.english for pair in sentences("held_out", 60, seed=2)}

    def read(texts: list[str]) -> list[Reading]:
        return [aligned(text, translations[text], reads_straight) for text in texts]

    assert inversion_shares(read, "held_out", 60, seed=2) == shares


def test_wrong_translations_do_not_count():
    translations = {pair.spanish: pair.english for pair in sentences("held_out", 60, seed=2)}

    def read(texts: list[str]) -> list[Reading]:
        readings = [aligned(text, translations[text], bool(n % 2)) for n, text in enumerate(texts)]
        wrong = [Reading(f"not {reading.text}", reading.attention) for reading in readings]
        return [wrong[n] if n % 2 else reading for n, reading in enumerate(readings)]

    assert inversion_shares(read, "held_out", 60, seed=2) == (1, 0)
