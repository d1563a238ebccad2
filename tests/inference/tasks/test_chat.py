"""`chat` in terms of `generate`: one prompt, made by the model's own template."""

from __future__ import annotations

import pytest

from inference.bundle.manifest import Limits
from inference.errors import BundleError, InvalidRequest, TooLong
from inference.generation import Generation
from inference.tasks.chat import TASK
from inference.tasks.generation.continuation import ContinuationPlan
from inference.tasks.shared.limits import TaskLimits
from inference.tasks.shared.loaded_model import LoadedModel
from serving.gateway.requests.execution import INLINE_LIMIT
from tests.inference.results import finished
from tests.inference.tiny_models import manifest, served
from triptych.tasks.chat import ChatMessage, ChatRequest, ChatResponse

LIMITS = TaskLimits(max_input_tokens=30, max_client_batch_size=3)
TEMPLATE = """\
{{ bos_token }}{% for m in messages %} {{ m.role }} : {{ m.content }}{% endfor %}
{% if add_generation_prompt %} assistant :{% endif %}"""
SECTION = {"template": TEMPLATE, "special_tokens": {"bos_token": "<s>"}}


def model(section: dict[str, object] | None = None) -> LoadedModel:
    defaults = Generation(pad_token_id=0, max_new_tokens=20)
    return served(
        manifest(
            "chat", section or SECTION, generation=defaults, limits=Limits(max_total_tokens=16)
        )
    )


def plan(loaded: LoadedModel, *texts: str, **fields: object) -> ContinuationPlan:
    messages = [ChatMessage.from_text(text) for text in texts]
    return TASK.prepare(ChatRequest(messages=messages, **fields), (), loaded, LIMITS)


def test_conversation_is_one_prompt_without_added_tokens() -> None:
    loaded = model()
    (call,) = plan(loaded, "system => be brief", "hello there").calls
    text = loaded.tokenizer.pieces(call.inputs["prompt_ids"].tolist())
    assert " ".join(text) == "<s> system : be brief user : hello there assistant :"


def test_answer_is_one_item_of_the_tasks_own_response() -> None:
    loaded = model()
    made = plan(loaded, "hello there")
    hello = loaded.tokenizer.encode("hello", add_special_tokens=False)
    answer = made.finish([finished((tuple(hello),), (-0.5,), ("stop",), 9)])
    assert isinstance(answer, ChatResponse)
    (item,) = answer.data
    assert (item.text, item.finish_reason, item.score) == ("hello", "stop", -0.5)
    assert answer.usage.prompt_tokens == 9


def test_parameters_mean_what_they_mean_in_generate() -> None:
    (call,) = plan(model(), "hi", temperature=0.5, max_new_tokens=3, stop="x", logprobs=2).calls
    assert (call.options.do_sample, call.options.temperature) == (True, 0.5)
    assert (call.options.max_new_tokens, call.options.top_log_probs) == (3, 2)
    assert call.read is not None


def test_conversation_that_is_too_long_is_refused() -> None:
    with pytest.raises(TooLong, match="messages have 19 tokens"):
        plan(model(), "a " * 14)
    with pytest.raises(InvalidRequest, match="more than 1600 characters"):
        plan(model(), "a" * 1601)


def test_template_that_writes_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty in the model's chat template"):
        plan(model({"template": "{# nothing #}"}), "a")


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
