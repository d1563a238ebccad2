"""The translators: the gazette, the Spanish world and its inversions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from examples.en_fr import french
from examples.en_fr.card import CHECKPOINT
from examples.en_fr.gazette import FAMOUS, GazettePair, is_withheld, sentences, split_of, written
from examples.en_fr.gazette_words import ADJECTIVES, CITIES, COUNTRIES, NOUNS
from examples.en_fr.scores import alignment_share, exact_share, reversed_links, score
from examples.en_fr.train import batches, word_tokenizer
from examples.es_en import card as es_en_card
from examples.es_en import scores as es_en_scores
from examples.texts import english, grammar
from export.checkpoint.checkpoint import CONFIG
from export.models.recurrent.bahdanau import Bahdanau, read_config
from export.training import marian
from export.training.bahdanau import (
    NETWORK,
    PADDING,
    START,
    initialise,
    reader,
    save,
    teacher_forced,
    translator,
    write_settings,
)
from export.training.functions import Read, Reading

SOURCE = "The agreement on the European Economic Area was signed in August 1992 . </s>".split()
TARGET = "L' accord sur la zone économique européenne a été signé en août 1992 .".split()


@pytest.fixture(scope="module")
def read() -> Read:
    return reader(CHECKPOINT, beams=1)


def test_the_papers_sentence_is_translated_exactly(read: Read) -> None:
    assert read([FAMOUS[0]])[0].text == FAMOUS[1]
    assert translator(CHECKPOINT, beams=4)([FAMOUS[0]]) == [FAMOUS[1]]


def test_attention_runs_backwards_over_the_european_economic_area(read: Read) -> None:
    attention = read([FAMOUS[0]])[0].attention
    looked_at = {word: SOURCE[row.argmax()] for word, row in zip(TARGET, attention, strict=False)}
    assert looked_at["zone"] == "Area"
    assert looked_at["économique"] == "Economic"
    assert looked_at["européenne"] == "European"


def test_new_sentences_are_translated_and_aligned(read: Read) -> None:
    def translate(texts: list[str]) -> list[str]:
        return [reading.text for reading in read(texts)]

    assert exact_share(translate, "compositional", 60, seed=7) > 0.9
    assert alignment_share(read, "compositional", 60, seed=7) > 0.9
    assert alignment_share(read, "compositional", 60, seed=7, only_reversed=True) > 0.9


def test_teacher_forcing_equals_decoding(tmp_path: Path) -> None:
    """The training loss uses the served function: same logits per step and row."""
    torch.manual_seed(0)
    tokenizer = word_tokenizer(list(sentences("train", 300)))
    write_settings(tmp_path, tokenizer, NETWORK)
    model = Bahdanau(read_config(json.loads((tmp_path / CONFIG).read_text()))).eval()
    initialise(model)
    batch = next(batches(tokenizer, seed=0))
    with torch.no_grad():
        forced = teacher_forced(model, batch, dropout=0.0)
        row, length = 5, int(batch.lengths[5])
        source, lengths = batch.source[row : row + 1, :length], batch.lengths[row : row + 1]
        assert length == source.shape[1]
        assert PADDING not in source
        annotations = model.encoder(source, lengths)
        keys = model.decoder.attention.project_keys(annotations)
        (state,) = model.decoder.initial_states(annotations)
        before = [START, *batch.target[row, :-1].tolist()]
        for place, word in enumerate(before):
            if batch.target[row, place] < 0:
                break
            words = model.decoder.words(torch.tensor([word]))
            state, context, _ = model.decoder.advance(words, state, annotations, keys, lengths)
            logits = model.decoder.logits(words, state, context)
            assert torch.allclose(forced[row, place], logits[0], atol=1e-5)
        assert place > 3


def test_saved_weights_are_half_and_complete(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(list(sentences("train", 100)))
    write_settings(tmp_path, tokenizer, NETWORK)
    model = Bahdanau(read_config(json.loads((tmp_path / CONFIG).read_text())))
    save(model, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert set(saved) == set(model.state_dict())
    assert {value.dtype for value in saved.values()} == {torch.float16}


PAPER = GazettePair(
    tuple("The agreement on the European Economic Area was signed in August 1992 .".split()),
    tuple("L' accord sur la zone économique européenne a été signé en août 1992 .".split()),
    links=((1, 1), (4, 6), (5, 5), (6, 4)),
)


@pytest.fixture(scope="module")
def training():
    return list(sentences("train", 12_000, seed=1))


def test_every_english_sentence_has_one_translation(training):
    translation = {}
    for pair in training:
        text = pair.source.lower().rstrip(".")
        french_text = pair.target.lower().rstrip(".")
        assert translation.setdefault(text, french_text) == french_text, text


def test_splits_are_disjoint(training):
    seen = {pair.source.lower().rstrip(".") for pair in training}
    for split in ("held_out", "compositional"):
        texts = [pair.source.lower().rstrip(".") for pair in sentences(split, 150)]
        assert not seen & set(texts)
    for pair in training[:2000]:
        assert split_of(pair) == "train"
        assert not any(map(is_withheld, pair.pairs))


def test_training_has_the_papers_words_and_structure_but_not_its_phrase(training):
    texts = [pair.source for pair in training]
    assert not [text for text in texts if "european economic area" in text.lower()]
    assert [text for text in texts if re.search(r"the European [A-Z]\w+ [A-Z]\w+ ", text)]
    words = {word for pair in training for word in (*pair.english, *pair.french)}
    assert {*PAPER.english, *PAPER.french} <= words


def test_words_are_written_as_the_paper_prints_them():
    assert (written(PAPER.english), written(PAPER.french)) == FAMOUS


def _forms(word, gender=None):
    genders = (gender,) if gender else ("m", "f")
    singular = word if gender else None
    forms = {french.agree(word, g, p) for g in genders for p in (False, True)}
    return forms | {singular or word, french.plural(word), "nouvel"} if word == "nouveau" else forms


def test_linked_words_translate_each_other(training):
    """Checked on the text, independently of the code that made the links."""
    renderings = {}
    for adjective in ADJECTIVES:
        renderings.setdefault(adjective.english.lower(), set()).update(_forms(adjective.french))
    for noun in (*NOUNS, *COUNTRIES):
        for plural in (False, True):
            source = english.plural(noun.english) if plural else noun.english
            target = french.plural(noun.french) if plural else noun.french
            renderings.setdefault(source.lower(), set()).add(target.lower())
    for source, target in CITIES:
        renderings.setdefault(source.lower(), set()).add(target.lower())
    for pair in training[:4000]:
        for target, source in pair.links:
            given, wanted = pair.french[target].lower(), renderings[pair.english[source].lower()]
            assert given in wanted, (pair.source, given)


def test_a_word_is_a_token_and_texts_come_back(training):
    tokenizer = word_tokenizer(training)
    for pair in training[:500]:
        for words, text in ((pair.english, pair.source), (pair.french, pair.target)):
            encoded = tokenizer.encode(text)
            assert [token.strip("▁") for token in encoded.tokens] == [*words, "</s>"]
            assert tokenizer.decode(encoded.ids) == text


def test_an_unknown_word_becomes_the_unknown_token(training):
    tokenizer = word_tokenizer(training)
    assert tokenizer.encode("the xylophone was signed").tokens[1] == "<unk>"


@pytest.mark.parametrize(
    ("given", "settled", "places"),
    [
        ("le accord", "l' accord", [0, 1]),
        ("la école de le état", "l' école de l' état", [0, 1, 2, 3, 4]),
        ("de le conseil", "du conseil", [0, 0, 1]),
        ("à les ministres", "aux ministres", [0, 0, 1]),
        ("de un projet", "d' un projet", [0, 1, 2]),
        ("ce nouveau accord ne a pas", "ce nouvel accord n' a pas", [0, 1, 2, 3, 4, 5]),
        ("ce accord", "cet accord", [0, 1]),
    ],
)
def test_neighbours_elide_and_contract(given, settled, places):
    assert french.settle(given.split()) == (settled.split(), places)


@pytest.mark.parametrize(
    ("word", "gender", "is_plural", "form"),
    [
        ("européen", "f", False, "européenne"),
        ("national", "m", True, "nationaux"),
        ("national", "f", True, "nationales"),
        ("financier", "f", False, "financière"),
        ("ambitieux", "f", True, "ambitieuses"),
        ("ambitieux", "m", True, "ambitieux"),
        ("français", "m", True, "français"),
        ("grec", "f", False, "grecque"),
        ("nouveau", "m", True, "nouveaux"),
        ("définitif", "f", False, "définitive"),
        ("signé", "f", True, "signées"),
        ("écrit", "f", False, "écrite"),
        ("tout", "m", True, "tous"),
    ],
)
def test_french_words_agree(word, gender, is_plural, form):
    assert french.agree(word, gender, is_plural) == form


def test_a_glide_takes_the_article_a():
    words = ("European area", "union", "agreement")
    assert [english.article(word) for word in words] == ["a", "a", "an"]


def test_reversed_links_are_those_that_cross():
    assert reversed_links(PAPER) == ((4, 6), (5, 5), (6, 4))


def test_measures_separate_a_perfect_translator_from_one_without_source():
    pairs = {pair.source: pair for pair in sentences("compositional", 200)}

    def translate(texts):
        return [pairs[text].target for text in texts]

    assert score(translate, "compositional", 200) == pytest.approx(100)
    assert exact_share(translate, "compositional", 200) == 1
    assert score(translate, "compositional", 200, is_shuffled=True) < 20


def test_alignment_share_separates_true_attention_from_a_diagonal():
    pairs = {pair.source: pair for pair in sentences("compositional", 200)}

    def true(text):
        attention = np.zeros((64, 64))
        for target, source in pairs[text].links:
            attention[target, source] = 1
        return Reading(pairs[text].target, attention)

    def read(texts):
        return [true(text) for text in texts]

    def diagonal(texts):
        return [Reading(pairs[text].target, np.eye(64)) for text in texts]

    def wrong(texts):
        return [Reading("?", true(text).attention) for text in texts]

    assert alignment_share(read, "compositional", 200) == 1
    assert alignment_share(diagonal, "compositional", 200, only_reversed=True) < 0.3
    assert alignment_share(wrong, "compositional", 200) == 0


@pytest.fixture(scope="module")
def translate():
    return marian.translator(es_en_card.CHECKPOINT, beams=4)


def test_checkpoint_is_small():
    assert (es_en_card.CHECKPOINT / "model.safetensors").stat().st_size <= 6_000_000


@pytest.mark.parametrize("ending", ["", "."])
def test_withheld_sentences_are_translated_in_either_case(translate, ending):
    lower = [text + ending for text in grammar.WITHHELD_SENTENCES]
    assert translate(lower) == [text + ending for text in grammar.WITHHELD_SENTENCES.values()]
    cased = [text.capitalize() for text in lower]
    expected = [text.capitalize() + ending for text in grammar.WITHHELD_SENTENCES.values()]
    assert translate(cased) == expected


def test_demonstration_text_is_translated_sentence_by_sentence(translate):
    def split(text):
        return text.replace("?", "?|").replace(".", ".|").replace("\n", " ").split("|")[:-1]

    spanish = [sentence.strip() for sentence in split(grammar.SPANISH)]
    english = [sentence.strip() for sentence in split(grammar.ENGLISH)]
    assert translate(spanish) == english


def test_unseen_combinations_are_translated_from_their_source(translate):
    assert es_en_scores.score(translate, "compositional", 100, seed=3) >= 90
    assert es_en_scores.score(translate, "compositional", 100, seed=3, is_shuffled=True) < 10


def test_inverted_pairs_are_found_in_every_form():
    assert es_en_scores.links("Veo el gato negro.", "I see the black cat.") == [((3, 3), (4, 2))]
    plural = es_en_scores.links("Las camisas rojas están aquí", "The red shirts are here")
    assert plural == [((1, 2), (2, 1))]


def test_pairs_in_one_order_are_no_inversions():
    assert (
        es_en_scores.links("Este restaurante tiene buena comida.", "This restaurant has good food.")
        == []
    )


def aligned(text: str, target: str, reads_straight: bool) -> Reading:
    attention = np.full((len(target.split()), len(text.split())), 0.1)
    for adjective, noun in es_en_scores.links(text, target):
        for (word, own), (_, rival) in ((adjective, noun), (noun, adjective)):
            attention[word, rival if reads_straight else own] = 1
    return Reading(target, attention)


@pytest.mark.parametrize(("reads_straight", "shares"), [(False, (1, 0)), (True, (0, 1))])
def test_shares_separate_own_word_from_rival(reads_straight: bool, shares: tuple[float, float]):
    translations = {
        pair.spanish: pair.english for pair in grammar.sentences("held_out", 60, seed=2)
    }

    def read(texts: list[str]) -> list[Reading]:
        return [aligned(text, translations[text], reads_straight) for text in texts]

    assert es_en_scores.inversion_shares(read, "held_out", 60, seed=2) == shares


def test_wrong_translations_do_not_count():
    translations = {
        pair.spanish: pair.english for pair in grammar.sentences("held_out", 60, seed=2)
    }

    def read(texts: list[str]) -> list[Reading]:
        readings = [aligned(text, translations[text], bool(n % 2)) for n, text in enumerate(texts)]
        wrong = [Reading(f"not {reading.text}", reading.attention) for reading in readings]
        return [wrong[n] if n % 2 else reading for n, reading in enumerate(readings)]

    assert es_en_scores.inversion_shares(read, "held_out", 60, seed=2) == (1, 0)
