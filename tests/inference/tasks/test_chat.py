"""`chat` in terms of `generate`: one prompt, made by the model's own template."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Limits
from inference.errors import BundleError, InvalidRequest
from inference.generation import Generation
from inference.tasks.chat import TASK
from inference.tasks.generation.continuation import ContinuationPlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from serving.gateway.requests.service import INLINE_LIMIT
from tests.inference.tiny_models import IMAGE, WordTokenizer, image_file, manifest, served
from tests.tasks.models import CHAT, MODELS
from triptych.tasks.chat import ChatMessage, ChatRequest

SECTION = CHAT


def model() -> LoadedModel:
    return MODELS["chat"]()


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
    assert TASK.size(ChatRequest(messages=messages)) > INLINE_LIMIT


def test_template_never_runs_on_the_event_loop() -> None:
    assert TASK.size(ChatRequest(messages=[ChatMessage(role="user", content="")])) > INLINE_LIMIT


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
    return TASK.prepare(
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
    assert not TASK.accepts(request, model())
    assert TASK.accepts(request, seeing())
    assert TASK.refusal(request, [model()]).message == (
        "messages of tiny-chat hold no images: leave images out"
    )
    assert TASK.details(seeing()) == {"image_place": "<image>"}
    assert TASK.inputs(seeing()) == ("messages", "images")
    assert TASK.inputs(model()) == ("messages",)
    assert TASK.size(request) is None
