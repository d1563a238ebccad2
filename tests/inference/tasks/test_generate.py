"""`generate`, `chat` as one prompt of it, and outputs of a given structure."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Limits
from inference.errors import BundleError, DeadlineExceeded, InvalidRequest, TooLong
from inference.generation import Generation, TokenChunk
from inference.tasks.chat import TASK as CHAT_TASK
from inference.tasks.generate import TASK as GENERATE
from inference.tasks.generation.continuation import ContinuationPlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import ended_early
from serving.gateway.requests.service import INLINE_LIMIT
from tests.inference.tiny_models import IMAGE, WordTokenizer, finished, image_file, manifest, served
from tests.tasks.models import MODELS, generator
from triptych.operation import operation
from triptych.tasks.chat import ChatMessage, ChatRequest
from triptych.tasks.generate import TASK as DECLARED
from triptych.tasks.generate import Example, GenerateRequest, GenerateResponse

LIMITS = TaskLimits(max_input_tokens=30, max_client_batch_size=3)
SHOTS = [Example(input="uno", output="one")]


@pytest.fixture
def model() -> LoadedModel:
    return generator()


def plan(model: LoadedModel, *prompts: str, **fields: object) -> ContinuationPlan:
    return GENERATE.prepare(
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
        GENERATE.prepare(GenerateRequest(prompts=[prompt]), (), bounded)


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
    images = PromptImages(positions=2, token_id=99, is_scored=False)
    unscored = replace(model, manifest=model.manifest.model_copy(update={"images": images}))
    with pytest.raises(InvalidRequest, match="no score of an image's token"):
        plan(unscored, "one two", echo=True, logprobs=1, images=["beside"])


def test_examples_count_once_for_each_prompt() -> None:
    example = Example(input="ab", output="c")
    request = GenerateRequest(prompts=["a", "b"], instruction="do", examples=[example])
    assert GENERATE.size(request) == 2 + 2 * 5


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
    return GENERATE.prepare(request, images, replace(model, task_limits=TEXT_AND_IMAGES))


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
    assert GENERATE.accepts(request, reader)
    assert not GENERATE.accepts(request, model)
    assert GENERATE.accepts(GenerateRequest(prompts=["a"]), model)
    refusal = GENERATE.refusal(request, [model])
    assert (refusal.field, refusal.message) == (
        "images", "prompts of tiny-generate hold no images: leave images out",
    )  # fmt: skip


def test_listing_says_what_stands_for_an_image(model: LoadedModel, reader: LoadedModel) -> None:
    assert GENERATE.details(reader) == {"image_place": "<image>"}
    assert GENERATE.inputs(reader) == ("prompts", "images")
    assert GENERATE.inputs(model) == ("prompts",)
    assert GENERATE.limits(replace(reader, task_limits=TEXT_AND_IMAGES))["max_prompt_images"] == 2
    assert GENERATE.details(model) == {}
    assert "max_prompt_images" not in GENERATE.limits(model)


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


def test_bundle_without_a_template_does_not_serve_chat() -> None:
    described = manifest("generate", generation=Generation(pad_token_id=0, max_new_tokens=9))
    assert "chat" not in served(described).sections
    with pytest.raises(BundleError, match="template"):
        served(manifest("chat", {"special_tokens": {}}))


def test_message_as_text_names_its_role_or_is_the_users() -> None:
    assert ChatMessage.from_text("system => Be brief.").role == "system"
    assert ChatMessage.from_text("dog => perro") == ChatMessage(role="user", content="dog => perro")


def test_many_empty_messages_are_not_small_work() -> None:
    messages = [ChatMessage(role="user", content="")] * 200
    assert CHAT_TASK.size(ChatRequest(messages=messages)) > INLINE_LIMIT


def test_template_never_runs_on_the_event_loop() -> None:
    assert (
        CHAT_TASK.size(ChatRequest(messages=[ChatMessage(role="user", content="")])) > INLINE_LIMIT
    )


PARTS_TEMPLATE = """\
{% for m in messages %}{{ m.role }} : {% for p in m.content %}\
{% if p.type == 'image' %}<image> {% else %}{{ p.text }} {% endif %}\
{% endfor %}{% endfor %}assistant :"""
TWO = TaskLimits(max_input_tokens=60, max_client_batch_size=3, max_prompt_images=2)


def seeing(template: str = PARTS_TEMPLATE) -> LoadedModel:
    """A model whose conversations hold images, each of three tokens."""
    tokenizer = WordTokenizer()
    tokenizer.encode("<s> <image>")
    assert tokenizer.words.index("<image>") == 3
    section = {
        "template": template,
        "special_tokens": {"bos_token": "<s>"},
        "images": {"place": "<image>"},
    }
    described = manifest(
        "chat",
        section,
        generation=Generation(pad_token_id=0, max_new_tokens=20),
        limits=Limits(max_total_tokens=40),
        image=IMAGE,
        images=PromptImages(positions=3, token_id=3, tokens=3),
    )
    return served(described, tokenizer)


def converse(loaded: LoadedModel, *texts: str, images: tuple[str, ...]) -> ContinuationPlan:
    messages = [ChatMessage.from_text(text) for text in texts]
    request = ChatRequest(messages=messages, images=["file"] * len(images) or None)
    return CHAT_TASK.prepare(
        request, [image_file(colour) for colour in images], replace(loaded, task_limits=TWO)
    )


def test_images_are_parts_of_messages_and_their_tokens_are_repeated() -> None:
    loaded = seeing()
    made = converse(
        loaded, "look <image> here", "assistant => a", "<image>", images=("red", "blue")
    )
    (call,) = made.calls
    pieces = loaded.tokenizer.pieces(call.inputs["prompt_ids"].tolist())
    picture = "<image> <image> <image>"
    assert " ".join(pieces) == (
        f"user : look {picture} here assistant : a user : {picture} assistant : </s>"
    )  # the tests' tokenizer ends a text where special tokens are added
    np.testing.assert_array_equal(call.inputs["pixels"][:, 0, 0], [(255, 0, 0), (0, 0, 255)])


def test_special_tokens_are_added_unless_the_template_begins_with_one() -> None:
    loaded = seeing("<s> " + PARTS_TEMPLATE)
    (call,) = converse(loaded, "a", images=()).calls
    pieces = loaded.tokenizer.pieces(call.inputs["prompt_ids"].tolist())
    assert " ".join(pieces) == "<s> user : a assistant :"
    assert list(call.inputs) == ["prompt_ids"]


@pytest.mark.parametrize(
    ("texts", "images", "template", "message"),
    [
        (("<image> a",), (), PARTS_TEMPLATE, "1 <image> places, images holds 0"),
        (("a",), ("red",), PARTS_TEMPLATE, "0 <image> places, images holds 1"),
        (("<image>" * 3,), ("red",) * 3, PARTS_TEMPLATE, "messages holds 3 images"),
        (("<image> a",), ("red",), "a user", "writes 0 of 1 images"),
    ],
)
def test_images_and_places_that_differ_are_refused(
    texts: tuple[str, ...], images: tuple[str, ...], template: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        converse(seeing(template), *texts, images=images)


def test_models_without_images_refuse_them_and_others_list_them() -> None:
    request = ChatRequest(messages=[ChatMessage(role="user", content="<image>")], images=["file"])
    assert not CHAT_TASK.accepts(request, MODELS["chat"]())
    assert CHAT_TASK.accepts(request, seeing())
    assert CHAT_TASK.refusal(request, [MODELS["chat"]()]).message == (
        "messages of tiny-chat hold no images: leave images out"
    )
    assert CHAT_TASK.details(seeing()) == {"image_place": "<image>"}
    assert CHAT_TASK.inputs(seeing()) == ("messages", "images")
    assert CHAT_TASK.inputs(MODELS["chat"]()) == ("messages",)
    assert CHAT_TASK.size(request) is None


STRUCTURED_LIMITS = TaskLimits(max_input_tokens=30)


@pytest.fixture(params=[1, 4])
def greedy_or_beams(request: pytest.FixtureRequest) -> LoadedModel:
    """One that searches greedily, and one that searches with beams by default."""
    defaults = Generation(pad_token_id=0, max_new_tokens=20, num_beams=request.param)
    return served(manifest("generate", generation=defaults), WordTokenizer())


def plan_structured(greedy_or_beams: LoadedModel, **fields: object) -> ContinuationPlan:
    return GENERATE.prepare(
        GenerateRequest(prompts=["a"], **fields),
        (),
        replace(greedy_or_beams, task_limits=STRUCTURED_LIMITS),
    )


@pytest.mark.parametrize(
    "given", [{"choices": ["a", "b"]}, {"regex": "a+"}, {"json_schema": '{"type": "object"}'}]
)
def test_the_option_reaches_the_engine(
    greedy_or_beams: LoadedModel, given: dict[str, object]
) -> None:
    (call,) = plan_structured(greedy_or_beams, **given).calls
    sent = call.options.model_dump(exclude_none=True)
    assert {name: sent[name] for name in given} == given
    assert (sent["num_beams"], sent["allows_space"]) == (1, False)
    rules = greedy_or_beams.generation.with_overrides(call.options)
    assert rules.has_structure


def test_a_schema_may_be_an_object() -> None:
    schema = {"type": "object", "properties": {"é": {"type": "string"}}}
    for made in (
        GenerateRequest(prompts=["a"], json_schema=schema),
        operation(DECLARED, GenerateResponse, prompts="a", json_schema=schema).request,
    ):
        assert json.loads(made.json_schema) == schema


def test_the_few_shot_layout_allows_its_space_and_has_no_stop(greedy_or_beams: LoadedModel) -> None:
    (call,) = plan_structured(greedy_or_beams, examples=SHOTS, choices=["one", "two"]).calls
    assert call.options.allows_space
    assert call.read is None
    assert plan_structured(greedy_or_beams, examples=SHOTS).calls[0].options.allows_space is None


def test_characters_of_all_choices_are_bounded() -> None:
    GenerateRequest(prompts=["a"], choices=["x" * 1000] * 100)
    with pytest.raises(ValidationError, match="100001 characters in all, at most 100000"):
        GenerateRequest(prompts=["a"], choices=[*["x" * 1000] * 100, "y"])
