"""The example world: correct Spanish and English, disjoint splits."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from random import Random

import pytest

from examples.en_fr import gazette
from examples.es_en.scores import exact_share, score
from examples.texts import english, grammar, spanish
from examples.texts.constructions import sentence
from examples.texts.grammar import WITHHELD_SENTENCES, bare, is_withheld, sentences, split_of
from tests.programs import run_with_other_hashes


@pytest.fixture(scope="module")
def training():
    return list(sentences("train", 12_000, seed=1))


def _words(texts):
    return {word for text in texts for word in bare(text).replace(",", "").split()}


@pytest.mark.parametrize("module", [grammar, gazette])
def test_same_arguments_give_the_same_sentences(module):
    one, again, other = (list(module.sentences("train", 200, seed=seed)) for seed in (5, 5, 6))
    assert one == again
    assert one != other


@pytest.mark.parametrize(
    ("module", "sides"), [(grammar, "pair.spanish, pair.english"), (gazette, "pair.target")]
)
def test_another_process_gives_the_same_sentences(module, sides):
    program = f"""from {module.__name__} import sentences
for pair in sentences("compositional", 50, 3):
    print({sides})"""
    with redirect_stdout(io.StringIO()) as here:
        exec(program, {})
    assert run_with_other_hashes(program) == here.getvalue().splitlines()


def test_each_side_has_four_hundred_word_types(training):
    def is_word(word):
        return not word.isdigit()

    assert len(list(filter(is_word, _words(pair.spanish for pair in training)))) >= 400
    assert len(list(filter(is_word, _words(pair.english for pair in training)))) >= 400


def test_every_spanish_sentence_has_one_translation(training):
    translation = {}
    for pair in training:
        text = bare(pair.spanish) + "?" * pair.spanish.endswith("?")
        assert translation.setdefault(text, bare(pair.english)) == bare(pair.english), text


def test_training_has_no_evaluation_sentence(training):
    """A statement and the question with the same words are two sentences, as in English."""

    def texts_of(pairs):
        return {(bare(pair.spanish), bare(pair.english)) for pair in pairs}

    for split, count in (("held_out", 150), ("compositional", 1000)):
        assert not texts_of(training) & texts_of(sentences(split, count, seed=1))


def test_evaluation_splits_repeat_nothing():
    for split, count in (("held_out", 100), ("compositional", 1000)):
        texts = [bare(pair.spanish) for pair in sentences(split, count)]
        assert len(set(texts)) == len(texts)


def test_training_has_no_withheld_pair():
    rng = Random(7)
    for _ in range(3000):
        phrase = sentence(rng).phrase
        withheld = {pair for pair in phrase.pairs if is_withheld(pair)}
        assert (split_of(phrase.spanish, phrase.pairs) == "compositional") == bool(withheld)


def test_a_withheld_pair_never_occurs_in_training_text(training):
    """Checked on the text, so that a construction that omits its pair is detected."""
    texts = [f" {bare(pair.spanish)} " for pair in training]
    for withheld in ("buena comida", "comida buena", "no nada ", "no juega", "no jugamos"):
        assert not [text for text in texts if f" {withheld}" in text], withheld
    assert is_withheld("verb:nadar|negated")
    assert is_withheld("verb:jugar|negated")


def test_words_of_withheld_pairs_do_occur_in_training(training):
    words = _words(pair.spanish for pair in training)
    assert {"buena", "comida", "mundo", "suficiente", "restaurante", "nada", "juega"} <= words


def test_the_two_sentences_are_never_in_training(training):
    texts = {bare(pair.spanish) for pair in training}
    assert not texts & set(WITHHELD_SENTENCES)
    for text in WITHHELD_SENTENCES:
        for dressed in (text, text.capitalize(), text.capitalize() + "."):
            assert split_of(dressed, frozenset()) == "held_out"


def test_both_sides_have_the_same_case_and_marks(training):
    for pair in training:
        if pair.spanish[0].islower():
            assert pair.english.islower()
        elif pair.spanish[0].isalpha():
            assert pair.english[0].isupper() or pair.english[0].isdigit()
        assert pair.spanish.endswith("?") == pair.english.endswith("?")
        assert pair.spanish.endswith(".") == pair.english.endswith(".")


@pytest.mark.parametrize(
    ("word", "gender", "is_plural", "expected"),
    [
        ("rojo", "f", True, "rojas"),
        ("verde", "f", False, "verde"),
        ("azul", "m", True, "azules"),
        ("marrón", "f", True, "marrones"),
        ("joven", "m", True, "jóvenes"),
        ("trabajador", "f", False, "trabajadora"),
        ("español", "f", True, "españolas"),
    ],
)
def test_adjectives_agree(word, gender, is_plural, expected):
    assert spanish.agree(word, gender, is_plural) == expected


@pytest.mark.parametrize(
    ("noun", "expected"),
    [("lápiz", "lápices"), ("león", "leones"), ("árbol", "árboles"), ("canción", "canciones")],
)
def test_spanish_nouns_form_their_plural(noun, expected):
    assert spanish.plural(noun) == expected


@pytest.mark.parametrize(
    ("infinitive", "tense", "person", "expected"),
    [
        ("comer", "present", 2, "come"),
        ("buscar", "preterite", 0, "busqué"),
        ("jugar", "preterite", 0, "jugué"),
        ("jugar", "present", 3, "jugamos"),
        ("leer", "preterite", 4, "leyeron"),
        ("dormir", "progressive", 2, "está durmiendo"),
        ("escribir", "perfect", 3, "hemos escrito"),
        ("ir", "near future", 0, "voy a ir"),
        ("tener", "future", 2, "tendrá"),
    ],
)
def test_spanish_verbs_conjugate(infinitive, tense, person, expected):
    assert spanish.verb_group(infinitive, tense, person) == expected


@pytest.mark.parametrize(
    ("forms", "tense", "person", "plain", "negated"),
    [
        (("eat", "ate", "eaten"), "present", 2, "eats", "does not eat"),
        (("eat", "ate", "eaten"), "preterite", 1, "ate", "did not eat"),
        (("study",), "present", 2, "studies", "does not study"),
        (("write", "wrote", "written"), "progressive", 0, "am writing", "am not writing"),
        (("look for", "looked for"), "present", 2, "looks for", "does not look for"),
        (("swim", "swam", "swum", "swimming"), "can", 1, "can swim", "cannot swim"),
        (("cook",), "have to", 2, "has to cook", "does not have to cook"),
    ],
)
def test_english_verbs_take_their_auxiliary(forms, tense, person, plain, negated):
    verb = english.verb_group(forms, tense, person)
    assert (verb.plain, verb.negated) == (plain, negated)


def test_articles_follow_the_sound():
    words = ("apple", "old house", "university", "honest man", "useful book", "big apple")
    assert [english.article(word) for word in words] == ["an", "an", "a", "an", "a", "a"]


def test_names_and_feminines_are_not_contracted():
    assert spanish.contract("a el médico de el pueblo") == "al médico del pueblo"
    assert spanish.contract("a ella de Elena") == "a ella de Elena"


def test_a_perfect_translator_scores_a_hundred_and_one_without_source_does_not():
    oracle = {pair.spanish: pair.english for pair in sentences("compositional", 300)}

    def translate(texts):
        return [oracle[text] for text in texts]

    assert score(translate, "compositional", 300) == pytest.approx(100)
    assert exact_share(translate, "compositional", 300) == 1
    assert score(translate, "compositional", 300, is_shuffled=True) < 10


def test_the_demonstration_text_has_as_many_sentences_in_both_languages():
    for text in (grammar.SPANISH, grammar.ENGLISH):
        assert [part.count(".") + part.count("?") for part in text.split("\n\n")] == [4, 4]
