"""Language models: episodes and conversations, initial heads, committed folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from itertools import islice
from random import Random

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer, Qwen2Tokenizer

from examples.chat import dialogues as chat_dialogues
from examples.chat import scores as chat_scores
from examples.chat import train as chat_train
from examples.chat.dialogue_topics import BRIEF, PLAIN, SPANISH, TOPICS, Style
from examples.chat.train import OUTPUT as INDUCTION_HEADS_OUTPUT
from examples.chat.train import build_model
from examples.gpt import episodes
from examples.gpt.episodes import BOUND, COPYING, FAMILIES, FRESH, KNOWN, lessons, questions
from examples.gpt.scores import accuracy, answerer, continuer, mean, replier, swapped_accuracy
from examples.gpt.train import DISTANCES, OUTPUT, initialise_induction_heads
from examples.texts.bindings import Binding, is_withheld
from examples.texts.grammar import Split
from inference.tasks.generation import prompt_task
from tests.programs import run_with_other_hashes
from triptych.tasks.generate import Example

COUNT = 25  # questions a family


@pytest.fixture(scope="module")
def answer_all():
    return answerer(OUTPUT)


@pytest.fixture(scope="module")
def tokenizer():
    return GPT2Tokenizer.from_pretrained(OUTPUT)


def test_checkpoint_is_small():
    assert (OUTPUT / "model.safetensors").stat().st_size <= 4_000_000


def test_answers_need_the_examples_of_the_prompt(answer_all):
    shares = {
        shots: mean([accuracy(answer_all, family, shots, COUNT, seed=3) for family in FRESH])
        for shots in (0, 4, 8)
    }
    assert shares[4] >= shares[0] + 0.6
    assert shares[8] >= 0.85


def test_answers_come_from_the_examples_and_not_from_the_words(answer_all):
    shares = [swapped_accuracy(answer_all, family, 4, COUNT, seed=3) for family in FRESH]
    assert mean(shares) < 0.2


def test_trained_facts_are_answered_after_a_few_examples(answer_all):
    assert mean([accuracy(answer_all, family, 4, COUNT, seed=3) for family in KNOWN]) >= 0.7


def test_an_empty_prompt_is_continued():
    complete = continuer(OUTPUT)
    assert len(complete("").split()) >= 3
    assert complete("We are").startswith(" ")  # continues with another word


def test_pieces_of_lessons_tokenise_alone_as_they_do_together(tokenizer):
    for lesson in islice(lessons(5), 60):
        pieces = list(lesson.pieces())
        alone = [token for ids in tokenizer(pieces)["input_ids"] for token in ids]
        assert alone == tokenizer("".join(pieces))["input_ids"]


def test_prompts_of_one_header_share_its_tokens(tokenizer):
    for family in FRESH:
        for question in questions(family, 4, 10, seed=1):
            header, newline, _ = question.text.rpartition("\n")
            shared = tokenizer(header + newline)["input_ids"]
            assert tokenizer(question.text)["input_ids"][: len(shared)] == shared


def test_made_up_words_are_few_tokens(tokenizer):
    (family,) = (family for family in FRESH if family.name == "code words")
    asked = list(questions(family, 0, 200, seed=1))
    for words in ([one.prompt for one in asked], [f" {one.answer}" for one in asked]):
        counts = [len(ids) for ids in tokenizer(words)["input_ids"]]
        assert max(counts) <= 4
        assert sum(counts) / len(counts) < 2.6


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
    assert run_with_other_hashes(program) == [fingerprint()]


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
            header = prompt_task.header(question.instruction, examples)
            assert prompt_task.laid_out(header, question.prompt, "prompts.0") == question.text


def test_lessons_are_laid_out_as_questions_are():
    lesson = next(lessons(0))
    *shown, last = lesson.lines
    question = episodes.Question(lesson.instruction, tuple(shown), last.given, last.answer)
    assert "".join(lesson.pieces()) == f"{question.text} {question.answer}\n"


def test_mean_is_over_families():
    assert mean([0.5, 1.0]) == 0.75


ARROW, NEWLINE = 1, 2


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300,
        n_positions=256,
        n_embd=128,
        n_layer=2,
        n_head=4,
        initializer_range=0.06,
        attn_implementation="eager",  # the implementation that returns its weights
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    initialise_induction_heads(model)
    return model


def attentions(model, ids):
    with torch.no_grad():
        return model.transformer(ids, output_attentions=True).attentions


@pytest.mark.parametrize("start", [0, 150])
def test_first_heads_attend_at_their_distance_at_any_position(model, start):
    ids = torch.randint(3, 300, (2, 60))
    positions = start + torch.arange(60)[None]
    with torch.no_grad():
        first = model.transformer(ids, position_ids=positions, output_attentions=True).attentions[0]
    for head, distance in enumerate(DISTANCES):
        seen = first[:, head].diagonal(-distance, 1, 2)  # (B, T - distance)
        assert seen.min() > 0.9


@pytest.mark.parametrize(("head", "length"), [(0, 1), (1, 2)])
def test_next_layer_attends_to_the_answer_of_the_query_word(model, head, length):
    generator = torch.Generator().manual_seed(1)
    same, others = [], []
    for _ in range(40):
        words = torch.randint(3, 300, (4, length), generator=generator).tolist()
        answers = torch.randint(3, 300, (4,), generator=generator).tolist()
        ids, places = [], []
        for word, answer in zip(words, answers, strict=True):
            places.append(len(ids) + length + 1)
            ids += [*word, ARROW, answer, NEWLINE]
        ids += [*words[1], ARROW]
        looks = attentions(model, torch.tensor([ids]))[1][0, head, -1]
        same.append(looks[places.pop(1)].item())
        others += looks[places].tolist()
    assert sum(same) / len(same) > 4 * sum(others) / len(others)


def test_rotary_heads_attend_to_the_word_before_and_to_what_followed_it():
    torch.manual_seed(0)
    model = build_model(Qwen2Tokenizer.from_pretrained(INDUCTION_HEADS_OUTPUT)).eval()
    words = torch.randperm(900)[:60] + 100
    with torch.no_grad():
        ids = torch.cat([words, words])[None]
        first, second = model.model(ids, output_attentions=True).attentions[:2]
    assert first[0, 0].diagonal(-1).mean() > 0.95
    assert second[0, 0].diagonal(-59)[1:].mean() > 0.5


DIALOGUES_SPLITS: tuple[Split, ...] = ("train", "compositional", "held_out")
CONVERSATIONS = 200


def test_dialogues_and_questions_are_the_same_for_the_same_seed() -> None:
    def drawn(seed: int) -> list[object]:
        rows: list[object] = [
            one.with_turns(6) for one in islice(chat_dialogues.dialogues(seed), 20)
        ]
        return [*rows, *chat_dialogues.questions("held_out", 20, seed)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_training_tells_and_answers_no_withheld_fact() -> None:
    found = []
    for dialogue in islice(chat_dialogues.dialogues(5), 1000):
        dialogue.with_turns(7)
        found += [chat_dialogues.split_of(fact) for fact in dialogue.told]
    assert len(found) > 2000
    assert set(found) == {"train"}


@pytest.mark.parametrize("split", DIALOGUES_SPLITS)
def test_answers_follow_from_the_conversation(split: Split) -> None:
    for question in chat_dialogues.questions(split, CONVERSATIONS, 7, PLAIN):
        answer, said = question.answer, [one["content"] for one in question.messages[:-1]]
        value = re.sub(r"\W+$", "", answer).split()[-1]
        assert question.messages[-1]["role"] == "user"
        assert any(value in text for text in said if not text.endswith("?")) or "years" in answer
        assert not any(answer in text for text in said)


@pytest.mark.parametrize("style", [SPANISH, BRIEF], ids=["Spanish", "brief"])
def test_the_system_message_chooses_language_and_length(style: Style) -> None:
    plain = {one.answer for one in chat_dialogues.questions("train", CONVERSATIONS, 7, PLAIN)}
    asked = list(chat_dialogues.questions("train", CONVERSATIONS, 7, style))
    for question in asked:
        system = question.messages[0]
        assert system["role"] == "system"
        assert system["content"].endswith(style.instructions)
    assert not plain & {one.answer for one in asked}
    assert (max(len(one.answer.split()) for one in asked) <= 4) == style.is_brief


def test_what_was_told_twice_has_its_last_value() -> None:
    (dialogue,) = islice(chat_dialogues.dialogues(2), 1)
    name = next(topic for topic in TOPICS if topic.name == "name")
    rng = Random(1)
    first, second = (chat_dialogues.any_fact(rng, "train", name) for _ in range(2))
    dialogue.tell(first)
    dialogue.tell(second)
    answer = dialogue.ask(first).answer
    assert second.value.english in answer
    assert first.value.english not in answer


def test_scores_of_answers_that_are_known() -> None:
    truths = {str(one.messages): one.answer for one in chat_dialogues.questions("held_out", 40, 3)}

    def replies(conversations: list[Sequence[chat_dialogues.Message]]) -> list[str]:
        return [truths.get(str(tuple(one)), "") for one in conversations]

    assert chat_scores.accuracy(replies, "held_out", 40, 3) == 1.0
    assert chat_scores.accuracy(lambda asked: [""] * len(asked), "held_out", 40, 3) == 0.0
    assert chat_scores.swapped_accuracy(replies, "held_out", 40, 3) == 0.0
    assert chat_scores.honesty(lambda asked: ["You have not told me."] * len(asked), 100, 3) > 0.3


SCORES_COUNT = 30


@pytest.fixture(scope="module")
def reply_all():
    return replier(chat_train.OUTPUT)


def test_checkpoint_for_chat_is_small():
    files = [path for path in chat_train.OUTPUT.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 3_000_000


def test_answers_follow_from_earlier_turns(reply_all):
    for split in chat_scores.SPLITS:
        swapped = chat_scores.swapped_accuracy(reply_all, split, SCORES_COUNT, seed=3)
        assert swapped < 0.1
        assert chat_scores.accuracy(reply_all, split, SCORES_COUNT, seed=3) >= swapped + 0.5


def test_answers_are_spanish_where_the_system_message_asks_for_it(reply_all):
    assert chat_scores.accuracy(reply_all, "held_out", SCORES_COUNT, 3, SPANISH) >= 0.7


def test_what_was_not_told_is_not_invented(reply_all):
    assert chat_scores.honesty(reply_all, SCORES_COUNT, seed=3) >= 0.9
