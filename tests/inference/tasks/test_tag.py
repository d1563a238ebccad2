from dataclasses import replace

import numpy as np
import pytest

from inference.errors import InvalidRequest, TooLong
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.tag import TASK, TagPlan
from tests.inference.text_models import run, word_labeller
from tests.inference.tiny_models import WordTokenizer, served
from triptych.tasks.tag import TagRequest, Tags

LIMITS = TaskLimits(max_client_batch_size=20, max_input_tokens=60)
WORDS = "ib ob o ba ia bb"
"""Tokens 3 to 8; their number modulo 5 is their label: B-b, I-b, O, B-a, I-a, B-b."""


@pytest.fixture
def model() -> LoadedModel:
    tokenizer = WordTokenizer()
    tokenizer.encode(WORDS)
    return served(word_labeller(), tokenizer)


def plan(model: LoadedModel, **fields: object) -> TagPlan:
    return TASK.prepare(TagRequest(**fields), (), replace(model, task_limits=LIMITS))


def label(model: LoadedModel, **fields: object) -> list[Tags]:
    made = plan(model, **fields)
    return made.finish([run(call) for call in made.calls]).data


def found(item: Tags) -> list[tuple[str, int, int, str]]:
    return [(token.text, token.start, token.end, token.label) for token in item.tokens]


def test_tokens_have_their_place_in_the_text(model: LoadedModel) -> None:
    (item,) = label(model, texts="  ba  o ia 🙂")
    assert found(item) == [("ba", 2, 4, "B-a"), ("ia", 8, 10, "I-a"), ("🙂", 11, 12, "I-b")]
    score = np.exp(4) / (np.exp(4) + 4)
    assert [token.score for token in item.tokens] == pytest.approx([score] * 3)


def test_tokens_outside_are_returned_on_request(model: LoadedModel) -> None:
    (item,) = label(model, texts="ba o", return_outside=True)
    assert [token.label for token in item.tokens] == ["B-a", "O"]


def test_text_without_entities_has_no_tokens(model: LoadedModel) -> None:
    one, other = label(model, texts=["o o", "ba"])
    assert (one.tokens, one.error) == ([], None)
    assert len(other.tokens) == 1


def test_entities_are_joined(model: LoadedModel) -> None:
    (item,) = label(model, texts="ba ia ia o ba ba", aggregation="simple")
    assert found(item) == [("ba ia ia", 0, 8, "a"), ("ba", 11, 13, "a"), ("ba", 14, 16, "a")]


def test_words_have_the_label_of_their_first_token(model: LoadedModel) -> None:
    (item,) = label(model, texts="ba ##x ##y o", aggregation="first")
    assert found(item) == [("ba ##x ##y", 0, 10, "a")]


def test_long_text_is_refused_in_its_place(model: LoadedModel) -> None:
    good, bad = label(model, texts=["ba", "ba " * 12])
    assert good.tokens
    assert (bad.error.type, bad.error.field) == ("too_long", "texts.1")
    with pytest.raises(TooLong, match="61 tokens"):
        label(model, texts="ba " * 60, stride=2)


@pytest.mark.parametrize("stride", [0, 1, 4, 10])
@pytest.mark.parametrize("aggregation", ["none", "simple", "first"])
def test_windows_give_the_same_tokens_as_one_text(
    model: LoadedModel, stride: int, aggregation: str
) -> None:
    """Labels depend on the token alone, so that windows change nothing but an entity they cut."""
    text = " ".join(["ba", "ia", "o", "bb", "o"] * 6)
    (item,) = label(model, texts=text, aggregation=aggregation, stride=stride)
    whole = served(
        word_labeller().model_copy(update={"limits": model.manifest.limits.model_copy(
            update={"max_input_tokens": None})}),
        model.tokenizer,
    )  # fmt: skip
    (expected,) = label(whole, texts=text, aggregation=aggregation)
    assert len(plan(model, texts=text, stride=stride).items[0].windows) > 1
    if aggregation == "none" or stride > 1:
        assert found(item) == found(expected)
    covered = {place for token in item.tokens for place in range(token.start, token.end)}
    pieces = {place for token in expected.tokens for place in range(token.start, token.end)}
    assert {place for place in covered if text[place] != " "} == {
        place for place in pieces if text[place] != " "
    }


def test_stride_that_is_too_large_is_refused(model: LoadedModel) -> None:
    with pytest.raises(InvalidRequest, match="a window has 11 tokens") as caught:
        plan(model, texts="ba " * 20, stride=11)
    assert caught.value.field == "stride"


def test_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ValueError, match="aggregation"):
        TagRequest(texts="a", aggregation="last")


def test_size_and_canary(model: LoadedModel) -> None:
    assert TASK.size(TagRequest(texts=["ab", "c"])) == 3
    (call,) = TASK.canary(model)
    assert set(call.inputs) == {"token_ids", "lengths"}
