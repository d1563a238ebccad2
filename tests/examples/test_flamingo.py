"""Episodes over pictures, the inputs that `history-flamingo` is trained on, and what it learnt."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from transformers.models.idefics.processing_idefics import IdeficsProcessor

from examples.history.flamingo.card import answerer
from examples.history.flamingo.lessons import Lessons
from examples.history.flamingo.model import (
    AROUND,
    ATTRIBUTES,
    PLACE,
    AttributeTask,
    build_model,
    build_recipe,
    build_tokenizer,
    labels,
)
from examples.history.flamingo.picture_episodes import (
    MADE_UP_WORDS,
    PLAIN_WORDS,
    Episode,
    Pool,
    lessons,
    questions,
)
from examples.history.flamingo.scores import (
    Answer,
    PictureQuestion,
    accuracy,
    picture_questions,
    swapped_accuracy,
)
from examples.history.flamingo.train import OUTPUT
from examples.texts.bindings import is_withheld
from inference.tasks.generation.image_places import ImagePlaces

COUNT, SEED = 20, 3  # questions of a score
PLACES = ImagePlaces(place=PLACE, around=AROUND, begin="<s>")


@pytest.fixture(scope="module")
def pool() -> Pool:
    return Pool.drawn("train", 120, 0)


@pytest.fixture(scope="module")
def held_out() -> Pool:
    return Pool.drawn("heldout", 120, 5)


@pytest.fixture(scope="module")
def trained() -> Answer:
    return answerer(OUTPUT)


def taught(pool: Pool) -> Lessons:
    """Lessons of an untrained network, from latents that say nothing."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer) - 2)
    return Lessons(model, tokenizer, pool, torch.randn(len(pool.images), len(ATTRIBUTES), 96), 0)


def test_no_picture_or_word_of_a_question_is_in_training(pool: Pool, held_out: Pool) -> None:
    assert not any(thing.is_withheld for thing in pool.things)
    assert all(thing.is_withheld for thing in held_out.things)
    read = {word for one in islice(lessons(pool, 0), 300) for shot in one for word in shot.words}
    assert len(read & set(MADE_UP_WORDS)) > 300
    assert not any(map(is_withheld, read & set(MADE_UP_WORDS)))
    asked = questions(held_out, 4, "held_out", 20, 7)
    assert all(is_withheld(word) for one in asked for shot in one for word in shot.words)


@pytest.mark.parametrize("shots", [2, 4, 8])
def test_no_shot_has_both_words_of_the_answer(held_out: Pool, shots: int) -> None:
    for episode in questions(held_out, shots, "held_out", 20, 1):
        *above, asked = episode
        assert len(above) == shots
        sources = [[shot.words[index] == asked.words[index] for shot in above] for index in (0, 1)]
        assert [sum(one) for one in sources] == [1, 1]
        assert sources[0] != sources[1]
        for attribute, index in (("colour", 0), ("shape", 1)):
            shown = [getattr(held_out.things[shot.picture], attribute) for shot in episode]
            said = [shot.words[index] for shot in episode]
            assert len(set(zip(shown, said, strict=True))) == len(set(shown)) == shots


def test_training_reads_the_tokens_that_the_processor_and_the_gateway_write(
    held_out: Pool,
) -> None:
    lesson, tokenizer = taught(held_out), build_tokenizer()
    (episode,) = questions(held_out, 3, "train", 1, 3)
    ids = lesson.tokens(episode)
    question = PictureQuestion.of(episode, held_out)
    parts: list[Any] = []
    for image, text in zip(question.images, (*question.shots, ""), strict=True):
        parts += [image, text] if text else [image]
    written = IdeficsProcessor(build_recipe(), tokenizer)(text=[parts], return_tensors="pt")
    assert written["input_ids"][0].tolist() == ids[:-2]  # all but the answer
    layout = "".join(f"{PLACE} => {words}\n" for words in question.shots) + f"{PLACE} =>"
    laid_out = tokenizer.encode(PLACES.laid_out(layout), add_special_tokens=False)
    assert laid_out == ids[:-2]
    assert tokenizer.decode(ids[-2:]) == question.answer


def test_words_that_no_shot_has_named_are_no_labels(pool: Pool) -> None:
    lesson, tokenizer = taught(pool), build_tokenizer()
    for episode in islice(lessons(pool, 3), 40):
        ids, truth = lesson.tokens(episode), lesson.labels(episode)
        following = [*ids[1:], tokenizer.eos_token_id]
        seen = set(tokenizer.convert_tokens_to_ids(list(PLAIN_WORDS)))
        for place, (given, wanted) in enumerate(zip(following, truth, strict=True)):
            if wanted not in (-100, tokenizer.eos_token_id):
                assert wanted == given
                assert wanted in seen
            seen.add(ids[place])


def test_supervised_attention_is_to_the_same_words(pool: Pool) -> None:
    lesson = taught(pool)
    drawn: list[Episode] = list(islice(lessons(pool, 4), 12))
    longest = max(map(len, drawn))
    numbers = torch.tensor(
        [[shot.picture for shot in one] + [0] * (longest - len(one)) for one in drawn]
    )
    sources = lesson.sources(numbers, torch.tensor([len(one) for one in drawn]))
    assert sources.any()
    for row, episode in enumerate(drawn):
        ids = lesson.tokens(episode)
        for _, query, key in sources[row].nonzero().tolist():
            assert key < query
            assert ids[query + 1] == ids[key]


def test_steps_of_training_lower_the_loss(pool: Pool) -> None:
    first, again = taught(pool), taught(pool)
    model = first._model
    before = first.loss(4)
    before.backward()
    assert model.model.embed_tokens.weight.grad is None
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.02 * parameter.grad
    again._model = model
    assert again.loss(4) < before


def test_attributes_are_those_of_the_pictures(pool: Pool) -> None:
    torch.manual_seed(0)
    task = AttributeTask(build_model(600), build_recipe(), pool)
    truth = labels(pool)
    names = list(ATTRIBUTES.values())
    for thing, row in zip(pool.things, truth.tolist(), strict=True):
        shown = (thing.colour, thing.shape, thing.texture)
        assert [values[one] for values, one in zip(names, row, strict=True)] == list(shown)
    assert task.read(pool).shape == (len(pool.images), len(ATTRIBUTES), 96)
    loss = task.loss(8)
    loss.backward()
    assert all(one.grad is not None for one in task.tower.encoder.parameters())


def test_scores_count_right_answers_and_the_control_changes_the_last_picture() -> None:
    assert accuracy(lambda asked: [one.answer for one in asked], 2, None, 5, SEED) == 1.0
    assert accuracy(lambda asked: [""] * len(asked), 2, None, 5, SEED) == 0.0
    seen: list[PictureQuestion] = []
    swapped_accuracy(lambda asked: seen.extend(asked) or [""] * len(asked), 2, None, 5, SEED)
    for one, other in zip(seen, picture_questions(2, None, 5, SEED), strict=True):
        assert one.images[:-1] == other.images[:-1]
        assert one.images[-1] is not other.images[-1]


def test_checkpoint_is_small() -> None:
    assert sum(file.stat().st_size for file in OUTPUT.iterdir()) <= 1_500_000


def test_new_words_are_learnt_from_the_prompt_alone(trained: Answer) -> None:
    """Guessing among the words of the prompt is right in one of 16 questions with four shots."""
    shares = {shots: accuracy(trained, shots, "held_out", COUNT, SEED) for shots in (0, 2, 4)}
    assert shares[0] == 0.0
    assert shares[2] >= 0.8
    assert shares[4] >= 0.7
    assert swapped_accuracy(trained, 4, "held_out", COUNT, SEED) <= 0.2


def test_plain_words_need_no_shots(trained: Answer) -> None:
    assert accuracy(trained, 0, None, COUNT, SEED) >= 0.75
