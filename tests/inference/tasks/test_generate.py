from dataclasses import replace

import numpy as np
import pytest

from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Limits
from inference.errors import DeadlineExceeded, InvalidRequest, TooLong
from inference.generation import Generation
from inference.sequences import TokenChunk
from inference.tasks.generate import TASK
from inference.tasks.generation.continuation import ContinuationPlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import ended_early
from tests.inference.tiny_models import (
    IMAGE,
    WordTokenizer,
    finished,
    image_file,
    manifest,
    served,
)
from tests.tasks.models import generator
from triptych.tasks.generate import Example, GenerateRequest

LIMITS = TaskLimits(max_input_tokens=30, max_client_batch_size=3)
SHOTS = [Example(input="uno", output="one")]


@pytest.fixture
def model() -> LoadedModel:
    return generator()


def plan(model: LoadedModel, *prompts: str, **fields: object) -> ContinuationPlan:
    return TASK.prepare(
        GenerateRequest(prompts=list(prompts), **fields), (), replace(model, task_limits=LIMITS)
    )


def test_requested_stops_replace_the_line_break(model: LoadedModel) -> None:
    made = plan(model, "dos", examples=SHOTS, stop="three")
    (item,) = made.finish([finished(((4, 3, 6, 5),), (-1.0,), ("length",))]).data
    assert (item.text, item.finish_reason, item.score) == ("one \n ", "stop", None)


def test_call_that_ended_early_gives_the_text_of_the_whole(model: LoadedModel) -> None:
    made = plan(model, "dos", stop="two", logprobs=1)
    (call,) = made.calls
    whole = TokenChunk((4, 5, 6, 1), (-0.5, -0.25, -1.0, -1.0), (((4, -0.5),),) * 4)
    live = call.read()
    live.add(whole[:1])
    live.add(whole[1:])
    assert live.is_stopped
    early = made.finish([ended_early(call, live)])
    late = made.finish(
        [
            finished(
                (whole.token_ids,), (-2.75,), ("stop",), call.prompt_tokens,
                log_probs=(whole.log_probs,), top=(whole.top,),
            )
        ]
    )  # fmt: skip
    assert early == late
    (item,) = early.data
    assert [(entry.token, entry.logprob) for entry in item.logprobs] == [
        ("one", -0.5), ("two", -0.25),
    ]  # fmt: skip
    assert item.logprobs[0].top[0].token == "one"
    assert item.score == pytest.approx(-0.75 / 4)
    assert early.usage.prompt_tokens == 2  # the word, and the end that this tokenizer adds


def test_only_one_row_can_end_early(model: LoadedModel) -> None:
    assert plan(model, "a", stop="x").calls[0].read is not None
    assert plan(model, "a", stop="x", n=2).calls[0].read is None
    assert plan(model, "a", stop="x", best_of=2).calls[0].read is None
    assert plan(model, "a", stop="x", num_beams=2).calls[0].read is None


@pytest.mark.parametrize(
    ("prompt", "own", "gateway", "told"),
    [
        ("x " * 40, Limits(max_total_tokens=16), 30, "has 41 tokens, tiny-generate holds 16 with"),
        ("x " * 40, Limits(max_input_tokens=9, max_total_tokens=16), 30, "takes at most 9:"),
        ("x " * 40, Limits(max_input_tokens=9, max_total_tokens=16), 5, "at most 5 are taken"),
        ("x" * 4000, Limits(max_total_tokens=16), 30, "at most 16 tokens"),
        ("x" * 4000, Limits(max_input_tokens=9, max_total_tokens=16), 30, "at most 9 tokens"),
        ("x" * 4000, Limits(max_total_tokens=16), 5, "at most 5 tokens"),
    ],
)
def test_prompt_over_several_limits_names_the_tightest(
    model: LoadedModel, prompt: str, own: Limits, gateway: int, told: str
) -> None:
    bounded = served(model.manifest.model_copy(update={"limits": own}), model.tokenizer)
    bounded = replace(bounded, task_limits=TaskLimits(max_input_tokens=gateway))
    with pytest.raises(TooLong, match=told):
        TASK.prepare(GenerateRequest(prompts=[prompt]), (), bounded)


def test_an_empty_prompt_needs_a_token_to_begin_with(model: LoadedModel) -> None:
    class Plain(WordTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return super().encode(text, add_special_tokens=False)

    bare = served(model.manifest, Plain())
    with pytest.raises(InvalidRequest, match=r"prompts.0 is empty"):
        plan(bare, "")
    spec = model.manifest.tokenizer.model_copy(update={"bos_token_id": 7})
    opened = served(model.manifest.model_copy(update={"tokenizer": spec}), Plain())
    assert plan(opened, "").calls[0].inputs["prompt_ids"].tolist() == [7]
    starts = model.generation.model_copy(update={"decoder_start_ids": (2,)})
    begun = served(model.manifest.model_copy(update={"generation": starts}), Plain())
    assert plan(begun, "").calls[0].inputs["prompt_ids"].size == 0
    with pytest.raises(TooLong, match="15 with its output"):
        plan(begun, "x " * 15)


def test_echo_returns_the_prompt_with_its_log_probabilities(model: LoadedModel) -> None:
    made = plan(model, "one two three", "one", echo=True, logprobs=1, n=2, num_beams=2)
    first, scoring, second, short = made.calls
    assert first.inputs["prompt_ids"].tolist() == [4, 5, 6, 1]
    assert scoring.inputs["prompt_ids"].tolist() == [4]
    assert scoring.options.given_ids == (5, 6, 1)
    assert (scoring.options.max_new_tokens, scoring.options.num_beams) == (3, 1)
    assert second.inputs["prompt_ids"].tolist() == [4, 1]
    assert short.options.given_ids == (1,)
    assert first.options.given_ids is None


def test_echo_fails_with_the_call_that_scores_it(model: LoadedModel) -> None:
    made = plan(model, "one two", echo=True, logprobs=0)
    whole = finished(((6,),), (-0.5,), ("length",), 1, log_probs=((-0.125,),))
    with pytest.raises(DeadlineExceeded):
        made.finish([whole, DeadlineExceeded("late")])


def test_prompts_read_in_both_directions_are_echoed_without_scores(model: LoadedModel) -> None:
    graphs = {"step": model.manifest.graphs["step"].model_copy(update={"whole_prompts": True})}
    manifest = model.manifest.model_copy(update={"graphs": graphs})
    prefix_lm = replace(model, manifest=manifest)
    assert len(plan(prefix_lm, "one two", echo=True).calls) == 1


def test_prompts_whose_images_are_read_in_both_directions_are_not_scored(
    model: LoadedModel,
) -> None:
    graphs = {"step": model.manifest.graphs["step"].model_copy(update={"whole_images": True})}
    manifest = model.manifest.model_copy(update={"graphs": graphs})
    reads_images = replace(model, manifest=manifest)
    assert len(plan(reads_images, "one two", echo=True, logprobs=1).calls) == 2
    with pytest.raises(InvalidRequest, match="does not score their prompts"):
        plan(reads_images, "one two", echo=True, logprobs=1, images=["beside"])


def test_examples_count_once_for_each_prompt() -> None:
    example = Example(input="ab", output="c")
    request = GenerateRequest(prompts=["a", "b"], instruction="do", examples=[example])
    assert TASK.size(request) == 2 + 2 * 5


PLACES = {"images": {"place": "<image>", "around": "<around>", "begin": "<s> "}}
TEXT_AND_IMAGES = TaskLimits(max_input_tokens=30, max_client_batch_size=3, max_prompt_images=2)


@pytest.fixture
def reader() -> LoadedModel:
    """A model whose prompts hold images."""
    tokenizer = WordTokenizer()
    described = manifest(
        "generate",
        PLACES,
        generation=Generation(pad_token_id=0, max_new_tokens=20),
        limits=Limits(max_total_tokens=16),
        image=IMAGE,
        images=PromptImages(positions=2, token_id=9),
    )
    return served(described, tokenizer)


def with_images(model: LoadedModel, *prompts: str, **fields: object) -> ContinuationPlan:
    images = fields.pop("images")
    assert isinstance(images, list)
    request = GenerateRequest(prompts=list(prompts), images=["file"] * len(images), **fields)
    return TASK.prepare(request, images, replace(model, task_limits=TEXT_AND_IMAGES))


def test_images_fill_the_places_of_prompts(reader: LoadedModel) -> None:
    red, blue = image_file("red"), image_file("blue")
    first, second = with_images(reader, "<image> a", "b", images=[red]).calls
    assert reader.tokenizer.pieces(first.inputs["prompt_ids"]) == [
        "<s>", "<around><image><around>a",
    ]  # fmt: skip
    assert first.inputs["pixels"].shape == (1, 4, 4, 3)
    assert list(second.inputs) == ["prompt_ids"]
    examples = [Example(input="<image>", output="red")]
    (call,) = with_images(reader, "<image>", examples=examples, images=[red, blue]).calls
    np.testing.assert_array_equal(call.inputs["pixels"][:, 0, 0], [(255, 0, 0), (0, 0, 255)])


def test_bad_image_of_a_prompt_is_reported_at_its_index(reader: LoadedModel) -> None:
    made = with_images(reader, "<image>", "<image>", images=[b"x", image_file("red")])
    first, second = made.numbers
    assert getattr(first, "field", None) == "images.0"
    assert second == 0


def test_model_without_images_refuses_them(model: LoadedModel, reader: LoadedModel) -> None:
    request = GenerateRequest(prompts=["<image>"], images=["file"])
    assert TASK.accepts(request, reader)
    assert not TASK.accepts(request, model)
    assert TASK.accepts(GenerateRequest(prompts=["a"]), model)
    refusal = TASK.refusal(request, [model])
    assert (refusal.field, refusal.message) == (
        "images", "prompts of tiny-generate hold no images: leave images out",
    )  # fmt: skip


def test_listing_says_what_stands_for_an_image(model: LoadedModel, reader: LoadedModel) -> None:
    assert TASK.details(reader) == {"image_place": "<image>"}
    assert TASK.inputs(reader) == ("prompts", "images")
    assert TASK.inputs(model) == ("prompts",)
    assert TASK.limits(replace(reader, task_limits=TEXT_AND_IMAGES))["max_prompt_images"] == 2
    assert TASK.details(model) == {}
    assert "max_prompt_images" not in TASK.limits(model)


def test_echo_of_a_prompt_with_images_is_its_own_text(reader: LoadedModel) -> None:
    made = with_images(reader, "<image> a", images=[image_file("red")], echo=True, logprobs=0)
    assert made.echoes[0].text == "<image> a"
    assert [call.inputs["pixels"].shape[0] for call in made.calls] == [1, 1]


def test_long_examples_are_refused_before_they_are_laid_out(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.tasks.generation.prompt_task.laid_out", None)
    with pytest.raises(TooLong, match=r"prompts.0 has \d+ characters, at most 16 tokens"):
        plan(model, "dos", examples=[Example(input="uno " * 1000, output="one")])
