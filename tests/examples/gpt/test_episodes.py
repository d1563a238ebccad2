"""Few-shot episodes: withheld bindings stay withheld; answers follow from the examples only."""

from hashlib import sha256
from itertools import islice

import pytest

from examples.gpt import episodes
from examples.gpt.episodes import BOUND, COPYING, FAMILIES, FRESH, KNOWN, lessons, questions
from examples.gpt.scores import accuracy, mean, swapped_accuracy
from examples.texts.bindings import Binding, is_withheld
from inference.tasks.generation import fewshot
from tests.examples.another_process import printed
from triptych.tasks.generate import Example

LOOKUPS = [family for family in FRESH if family.is_lookup]
ORDINARY = [family for family in LOOKUPS if family.name != "code words"]
MADE_UP = {"code words", "groups"}
FAMILY_OF = {text: family.name for family in FAMILIES for text in family.instructions}


def named(families):
    return pytest.mark.parametrize("family", families, ids=lambda family: family.name)


def fingerprint() -> str:
    """A hash over episodes of both splits."""
    digest = sha256()
    for lesson in islice(lessons(3), 200):
        digest.update(repr(lesson).encode())
    for family in FAMILIES:
        for question in questions(family, 4, 5, seed=3):
            digest.update(repr(question).encode())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def taught() -> list[tuple[str, Binding]]:
    """(family, binding) of every line of many lessons that have an instruction."""
    return [
        (FAMILY_OF[lesson.instruction], line)
        for lesson in islice(lessons(11), 6000)
        if lesson.instruction
        for line in lesson.lines
    ]


@pytest.fixture(scope="module")
def asked() -> list[tuple[str, Binding]]:
    """The same of held-out questions, examples and answers alike."""
    return [
        (family.name, binding)
        for family in FRESH
        for question in questions(family, 8, 150, seed=5)
        for binding in (*question.examples, Binding(question.prompt, question.answer))
    ]


def look_up(questions_asked):
    """The answer that can be read from the examples alone."""
    tables = [{one.given: one.answer for one in asked.examples} for asked in questions_asked]
    pairs = zip(tables, questions_asked, strict=True)
    return [table.get(question.prompt, "") for table, question in pairs]


def test_every_process_draws_the_same_episodes():
    program = f"from {__name__} import fingerprint; print(fingerprint())"
    assert printed(program) == [fingerprint()]


def test_training_never_contains_a_withheld_binding(taught, asked):
    assert not {line for name, line in taught if name not in MADE_UP} & {
        line for name, line in asked if name not in MADE_UP
    }
    for name, line in taught:
        if name in {family.name for family in ORDINARY}:
            assert not is_withheld(line.given, line.answer)


def test_training_never_contains_a_withheld_word(taught, asked):
    def words(lines, families):
        pairs = [(name, line) for name, line in lines if name in families]
        coined = [line.given for name, line in pairs if name == "code words"]
        return {*coined, *(line.answer for _, line in pairs)}

    copied = {
        word
        for name, line in taught
        if name in {family.name for family in COPYING}
        for word in line.given.split()
    }
    unseen = words(asked, MADE_UP)
    assert unseen
    assert all(is_withheld(word) for word in unseen)
    assert not (words(taught, MADE_UP) | copied) & unseen


@named(ORDINARY)
def test_every_word_and_every_answer_of_a_question_was_trained(family, asked):
    taught = [line for lesson in islice(lessons(1, (family,)), 1000) for line in lesson.lines]
    for part in ("given", "answer"):
        wanted = {getattr(line, part) for name, line in asked if name == family.name}
        assert wanted <= {getattr(line, part) for line in taught}


@named(LOOKUPS)
def test_answer_follows_from_examples_that_contain_every_bound_word(family):
    shares = {shots: accuracy(look_up, family, shots, 300, seed=2) for shots in (0, 1, BOUND, 8)}
    assert shares[0] == 0
    assert 0.15 < shares[1] < 0.35
    assert shares[BOUND] == shares[8] == 1
    assert swapped_accuracy(look_up, family, BOUND, 300, seed=2) < 0.05


def test_a_group_is_queried_by_a_member_in_no_example():
    (family,) = (family for family in FRESH if family.name == "groups")
    for question in questions(family, 8, 200, seed=1):
        assert question.prompt not in {example.given for example in question.examples}
        assert len({example.answer for example in question.examples}) <= 2


@named(KNOWN)
def test_a_word_of_a_fixed_mapping_has_one_answer(family, taught):
    answers: dict[str, set[str]] = {}
    for name, line in taught:
        if name == family.name:
            answers.setdefault(line.given, set()).add(line.answer)
    assert len(answers) > 20
    assert all(len(each) == 1 for each in answers.values())


@named(FAMILIES)
def test_questions_are_laid_out_as_the_served_api_does_it(family):
    for shots in (0, 3):
        for question in questions(family, shots, 20, seed=4):
            examples = [Example(input=one.given, output=one.answer) for one in question.examples]
            header = fewshot.header(question.instruction, examples)
            assert fewshot.laid_out(header, question.prompt, "prompts.0") == question.text


def test_lessons_are_laid_out_as_questions_are():
    lesson = next(lessons(0))
    *shown, last = lesson.lines
    question = episodes.Question(lesson.instruction, tuple(shown), last.given, last.answer)
    assert "".join(lesson.pieces()) == f"{question.text} {question.answer}\n"


def test_mean_is_over_families():
    assert mean([0.5, 1.0]) == 0.75
