"""Facts: wordings that agree in their roles, questions, near misses, disjoint splits."""

from itertools import islice
from random import Random

import pytest

from examples.bert.fact_wordings import question, sentence_of, text_of, wordings
from examples.bert.facts import ASKED, facts, near_misses
from examples.texts.bindings import FIRST_HALVES, SECOND_HALVES, is_withheld
from examples.texts.splits import Split

MADE_UP = {first + second for first in FIRST_HALVES for second in SECOND_HALVES}


def drawn(split: Split, count: int = 200, seed: int = 3):
    return list(islice(facts(split, seed), count))


def words_of(text: str) -> list[str]:
    return text.lower().replace(",", "").rstrip(".?").split()


def test_same_seed_draws_the_same_facts():
    assert drawn("train", 20) == drawn("train", 20) != drawn("train", 20, seed=4)


def test_wordings_are_different_sentences_with_the_same_roles():
    for fact in drawn("train"):
        told = [text_of(spans) for spans in wordings(fact)]
        assert len({text for text, _ in told}) == len(told)
        for text, roles in told:
            found = {(text[start:end].lower(), role) for start, end, role in roles}
            expected = {(fact.agent, "PERSON"), (fact.place, "PLACE"), (fact.time, "TIME")}
            expected.add((fact.patient, "PERSON" if fact.is_about_people else "THING"))
            assert {(words.lower(), role) for words, role in expected} < found
            assert sorted(role for _, role in found).count("ACTION") == 1


def test_known_fact_in_its_wordings():
    fact = next(one for one in facts("train", 1) if one.agent == "Carmen")
    assert sentence_of(wordings(fact)[0]) == (
        "Carmen read the dictionary on the farm last Thursday."
    )
    assert sentence_of(wordings(fact)[3]) == (
        "The dictionary was read by Carmen on the farm last Thursday."
    )
    assert sentence_of(question(fact, "place")) == (
        "Where did Carmen read the dictionary last Thursday?"
    )


@pytest.mark.parametrize("asked", ASKED)
def test_question_omits_the_role_that_it_asks_for(asked):
    omitted = {"agent": "agent", "patient": "patient", "place": "place", "time": "time"}[asked]
    for fact in drawn("held_out"):
        text = sentence_of(question(fact, asked))
        for role in ("agent", "patient", "place", "time"):
            value = getattr(fact, role)
            is_named = value.lower() in text.lower()
            assert is_named == (role != omitted) or value in (fact.agent, fact.patient, fact.place)


def test_near_misses_are_other_facts_with_almost_the_same_words():
    rng = Random(0)
    for fact in drawn("train"):
        for near in near_misses(fact, rng, "train"):
            assert near != fact
            here, there = (set(words_of(sentence_of(wordings(each)[0]))) for each in (fact, near))
            assert len(here & there) >= 3


def test_near_misses_differ_in_a_role_that_is_not_asked_for():
    rng = Random(0)
    for fact in drawn("compositional"):
        for asked in ASKED:
            for near in near_misses(fact, rng, "compositional", asked):
                assert question(near, asked) != question(fact, asked)


def test_training_has_no_withheld_pair_and_no_held_out_name():
    rng = Random(0)
    for fact in drawn("train", 1000):
        for each in (fact, *near_misses(fact, rng, "train")):
            assert not each.is_withheld
            names = {each.agent.lower(), each.patient.lower(), each.place.lower()} & MADE_UP
            assert not any(is_withheld(name) for name in names)


def test_held_out_facts_have_names_that_training_never_shows():
    for fact in drawn("held_out"):
        assert fact.agent.lower() in MADE_UP
        assert is_withheld(fact.agent.lower())


def test_every_compositional_fact_has_a_withheld_pair_of_ordinary_words():
    for fact in drawn("compositional"):
        assert fact.is_withheld
        assert fact.agent.lower() not in MADE_UP


def test_a_made_up_name_is_a_person_or_a_place():
    people, places = set(), set()
    for fact in drawn("train", 4000):
        people.add(fact.agent)
        places.add(fact.place)
    assert len(people & places) > 100
