import base64

import numpy as np
import pytest

from serving.errors import DeadlineExceeded, InvalidRequest, TooLong, UnsupportedImage
from serving.generation import Generation
from serving.planning.calls import Generated
from serving.planning.limits import TaskLimits
from serving.planning.loaded_model import LoadedModel
from serving.tasks.caption import TASK, CaptionPlan
from tests.serving.tiny_models import IMAGE, WordTokenizer, image_file, manifest, served
from triptych.tasks.caption import CaptionRequest

LIMITS = TaskLimits(max_client_batch_size=3)


def plan(model: LoadedModel, images: list[str | bytes], **fields: object) -> CaptionPlan:
    request = CaptionRequest(images=["beside"] * len(images), **fields)
    return TASK.prepare(request, images, model, LIMITS)


def test_base64_data_uri_and_bytes_give_the_same_call(captioner: LoadedModel) -> None:
    text = base64.b64encode(image_file("red")).decode()
    made = plan(captioner, [image_file("red"), text, f"data:image/png;base64,{text}"])
    for call in made.calls:
        assert call.inputs["pixels"].shape == (4, 4, 3)
        assert call.inputs["pixels"].dtype == np.uint8
        np.testing.assert_array_equal(call.inputs["pixels"][0, 0], (255, 0, 0))
        assert "prompt_ids" not in call.inputs


def test_caption_begins_with_the_prompt(captioner: LoadedModel) -> None:
    made = plan(captioner, [image_file("red")], prompt="a red", max_new_tokens=5)
    prompt = made.calls[0].inputs["prompt_ids"]
    assert prompt.dtype == np.int64
    assert made.calls[0].options.max_new_tokens == 5
    word = captioner.tokenizer.encode("circle", add_special_tokens=False)
    answer = made.finish([Generated(((*word, 1),), (-0.25,), prompt_tokens=2, completion_tokens=2)])
    assert answer.data[0].text == "a red circle"
    assert answer.data[0].score == -0.25
    assert answer.data[0].alternatives is None
    assert answer.usage.completion_tokens == 2


def test_prompt_that_begins_with_the_start_token_has_it_once() -> None:
    tokenizer = WordTokenizer()
    (task,) = tokenizer.encode("<s_task>", add_special_tokens=False)
    generation = Generation(pad_token_id=0, decoder_start_ids=(task,), max_new_tokens=5)
    model = served(manifest("caption", image=IMAGE, generation=generation), tokenizer)
    given, short = (
        plan(model, [image_file("red")], prompt=prompt).calls[0].inputs["prompt_ids"].tolist()
        for prompt in ("<s_task> a red", "a red")
    )
    assert given == short
    assert len(given) == 2
    alone = plan(model, [image_file("red")], prompt="<s_task>").calls[0]
    assert "prompt_ids" not in alone.inputs


def test_bad_image_is_reported_at_its_index(captioner: LoadedModel) -> None:
    made = plan(captioner, [b"not a picture", image_file("blue")])
    assert len(made.calls) == 1
    word = captioner.tokenizer.encode("blue", add_special_tokens=False)
    first, second = made.finish([Generated((tuple(word),), (-1.0,))]).data
    assert (first.error.type, first.error.field) == ("unsupported_image", "images.0")
    assert (second.index, second.text) == (1, "blue")


def test_all_bad_images_raise_the_first_error(captioner: LoadedModel) -> None:
    with pytest.raises(UnsupportedImage):
        plan(captioner, [b"", b"x"])
    with pytest.raises(UnsupportedImage, match="not base64"):
        plan(captioner, ["ñ" * 40])
    with pytest.raises(InvalidRequest, match="not fetched"):
        plan(captioner, ["https://example.com/cat.png"])


def test_too_many_images_are_refused(captioner: LoadedModel) -> None:
    with pytest.raises(InvalidRequest, match="images holds 4 items, at most 3"):
        plan(captioner, [image_file("red")] * 4)


def test_long_prompt_names_limit_and_length(captioner: LoadedModel) -> None:
    with pytest.raises(TooLong, match="prompt has 16 tokens, tiny-caption takes at most 15"):
        plan(captioner, [image_file("red")], prompt="a " * 16)


def test_failed_calls_raise_when_none_succeeded(captioner: LoadedModel) -> None:
    made = plan(captioner, [image_file("red"), b""])
    with pytest.raises(DeadlineExceeded):
        made.finish([DeadlineExceeded("late")])


def test_alternatives_are_best_first(captioner: LoadedModel) -> None:
    made = plan(captioner, [image_file("red")], alternatives=2)
    red, dot = captioner.tokenizer.encode("red dot", add_special_tokens=False)
    (item,) = made.finish([Generated(((red, dot), (dot,)), (-0.5, -0.75))]).data
    assert [(a.text, a.score) for a in item.alternatives] == [("red dot", -0.5), ("dot", -0.75)]
