import base64
from dataclasses import replace

import numpy as np
import pytest

from inference.bundle.inputs import Patches, PromptImages
from inference.bundle.manifest import Graph, Limits, Role, Tensor
from inference.errors import InvalidRequest, UnsupportedImage
from inference.generation import Generation
from inference.sequences import TokenChunk
from inference.tasks.caption import TASK, CaptionPlan, CaptionSection
from inference.tasks.generate import TASK as GENERATE
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from tests.inference.tiny_models import (
    IMAGE,
    STEP,
    WordTokenizer,
    finished,
    image_file,
    manifest,
    served,
)
from triptych.tasks.caption import INSTRUCTION, CaptionRequest
from triptych.tasks.generate import GenerateRequest

LIMITS = TaskLimits(max_client_batch_size=3)


def plan(model: LoadedModel, images: list[str | bytes], **fields: object) -> CaptionPlan:
    request = CaptionRequest(images=["beside"] * len(images), **fields)
    return TASK.prepare(request, images, replace(model, task_limits=LIMITS))


def test_base64_data_uri_and_bytes_give_the_same_call(captioner: LoadedModel) -> None:
    text = base64.b64encode(image_file("red")).decode()
    made = plan(captioner, [image_file("red"), text, f"data:image/png;base64,{text}"])
    for call in made.calls:
        assert call.inputs["pixels"].shape == (4, 4, 3)
        assert call.inputs["pixels"].dtype == np.uint8
        np.testing.assert_array_equal(call.inputs["pixels"][0, 0], (255, 0, 0))
        assert "prompt_ids" not in call.inputs


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


def test_a_text_that_is_no_image_is_refused(captioner: LoadedModel) -> None:
    with pytest.raises(UnsupportedImage, match="not base64"):
        plan(captioner, ["ñ" * 40])
    with pytest.raises(InvalidRequest, match="not fetched"):
        plan(captioner, ["https://example.com/cat.png"])


SAMPLING = {
    "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8, "seed": 7,
    "best_of": 3, "n": 2, "repetition_penalty": 1.5, "presence_penalty": 0.5,
    "frequency_penalty": -0.5, "no_repeat_ngram_size": 2, "max_new_tokens": 5,
}  # fmt: skip


def test_parameters_reach_the_engine_as_those_of_generate(captioner: LoadedModel) -> None:
    (call,) = plan(captioner, [image_file("red")], **SAMPLING).calls
    generator = served(manifest("generate"), WordTokenizer())
    asked = GenerateRequest(prompts=["a"], **SAMPLING)
    (wanted,) = GENERATE.prepare(asked, (), generator).calls
    assert call.options == wanted.options
    assert call.options.do_sample


def test_every_parameter_of_sampling_is_a_field_of_caption() -> None:
    own = GenerateRequest.model_fields
    missing = own.keys() - CaptionRequest.model_fields.keys()
    assert missing == {
        *("prompts", "instruction", "examples", "stop", "logprobs", "echo"),
        *("choices", "regex", "json_schema"),
    }


def test_several_captions_without_sampling_are_beams(captioner: LoadedModel) -> None:
    sampled = Generation(pad_token_id=0, max_new_tokens=9, do_sample=True)
    for model in (captioner, served(manifest("caption", image=IMAGE, generation=sampled))):
        options = plan(model, [image_file("red")], n=4).calls[0].options
        assert (options.num_beams, options.num_return_sequences) == (4, 4)
        assert options.do_sample is False


@pytest.mark.parametrize(
    ("fields", "is_greedy"), [({}, True), ({"num_beams": 1}, None), ({"top_p": 0.5}, None)]
)
def test_a_stream_says_that_it_took_the_place_of_beams(
    captioner: LoadedModel, fields: dict[str, object], is_greedy: bool | None
) -> None:
    made = plan(captioner, [image_file("red")], stream=True, **fields)
    assert made.calls[0].options.num_beams == 1
    (red,) = captioner.tokenizer.encode("red", add_special_tokens=False)
    streaming = made.streaming()
    first = streaming.add(0, TokenChunk((red,)))
    (last,) = streaming.end(0, finished(((red,),), (-1.0,), ("stop",)))
    assert [chunk.is_greedy for chunk in first] == [None]
    assert last.is_greedy is is_greedy


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [("what", "<s> user <image> <image> what ."), (None, "<s> user <image> <image> {} .")],
)
def test_a_model_of_instructions_answers_one(prompt: str | None, wanted: str) -> None:
    tokenizer = WordTokenizer()
    tokenizer.encode("<image>")
    section = {
        "images": {"place": "<image>"},
        "layout": ("<s> user <image> ", " ."),
        "is_complete": True,
    }
    described = manifest(
        "caption",
        section,
        image=IMAGE,
        images=PromptImages(positions=2, token_id=3, tokens=2),
        limits=Limits(max_total_tokens=40),
    )
    loaded = served(described, tokenizer)
    request = CaptionRequest(images=["file"], prompt=prompt)
    made = TASK.prepare(request, [image_file("red")], loaded)
    (call,) = made.calls
    pieces = tokenizer.pieces(call.inputs["prompt_ids"].tolist())
    assert " ".join(pieces) == wanted.format(INSTRUCTION)
    assert call.inputs["pixels"].shape == (1, 4, 4, 3)
    answer = tuple(tokenizer.encode("a picture", add_special_tokens=False))
    (item,) = made.finish([finished((answer,), (-0.5,), ("stop",), 9)]).data
    assert item.text == "a picture"  # without the instruction


def test_a_question_is_drawn_above_patches_of_the_image(captioner: LoadedModel) -> None:
    patches = Patches(height=16, width=16, has_header=True)
    recipe = IMAGE.model_copy(
        update={"resize": "patches", "size": (2048, 257), "crop": None, "patches": patches}
    )
    asked = replace(captioner, manifest=captioner.manifest.model_copy(update={"image": recipe}))
    calls = []
    for prompt in ("a b", "c"):
        request = CaptionRequest(images=["x"], prompt=prompt)
        made = TASK.prepare(request, [image_file("red")], asked)
        (call,) = made.calls
        assert list(call.inputs) == ["pixels"]  # the decoder does not begin with it
        assert call.inputs["pixels"].shape == (2048, 257, 3)
        assert (call.tokens, call.prompt_tokens) == (2056, 0)
        calls.append(call)
    assert (calls[0].inputs["pixels"] != calls[1].inputs["pixels"]).any()
    for missing in (None, " "):
        request = CaptionRequest(images=["x"], prompt=missing)
        with pytest.raises(InvalidRequest, match="write one in prompt"):
            TASK.prepare(request, [image_file("red")], asked)


def test_an_encoder_reads_the_image_with_the_text(source_captioner: LoadedModel) -> None:
    request = CaptionRequest(images=["file"], prompt="a red")
    made = TASK.prepare(request, [image_file("red")], source_captioner)
    (call,) = made.calls
    assert call.inputs["pixels"].shape == (4, 4, 3)
    assert call.inputs["source_ids"].tolist()[:2] == [3, 3]
    assert "prompt_ids" not in call.inputs
    answer = tuple(source_captioner.tokenizer.encode("circle", add_special_tokens=False))
    (item,) = made.finish([finished((answer,), (-0.5,), ("stop",), 9)]).data
    assert item.text == "circle"  # without the prompt, which the encoder read
    asked = GenerateRequest(prompts=["<image> a red"], images=["file"])
    continued = GENERATE.prepare(asked, [image_file("red")], source_captioner)
    assert continued.calls[0].inputs["pixels"].shape == (4, 4, 3)
    none = GenerateRequest(prompts=["a red"])
    with pytest.raises(InvalidRequest, match=r"prompts.0 holds 0 images: tiny-caption reads one"):
        GENERATE.prepare(none, [], source_captioner)


def test_a_task_is_named_for_the_sentence_that_the_model_reads(
    source_captioner: LoadedModel,
) -> None:
    sentences = {"<all>": "what is here", "<part>": "what is {input} of it"}
    section = source_captioner.sections["caption"]
    assert isinstance(section, CaptionSection)
    images = section.images.model_copy(update={"sentences": sentences})
    asked = section.model_copy(update={"images": images, "prompt": "<all>"})
    model = replace(source_captioner, sections={"caption": asked})

    def read(prompt: str | None) -> list[int]:
        request = CaptionRequest(images=["file"], prompt=prompt)
        made = TASK.prepare(request, [image_file("red")], model)
        return made.calls[0].inputs["source_ids"].tolist()

    def words(text: str) -> list[int]:
        return [3, 3, *model.tokenizer.encode(text)]

    assert read(None) == read("<all>") == words("what is here")
    assert read("<part> the left ") == words("what is the left of it")
    assert read("a red") == words("a red")
    with pytest.raises(InvalidRequest, match="prompt has text beside <all>, which takes none"):
        read("<all> please")


@pytest.fixture
def source_captioner() -> LoadedModel:
    """An encoder-decoder whose source holds an image of two tokens."""
    tokenizer = WordTokenizer()
    tokenizer.encode("<image>")
    section = {"images": {"place": "<image>", "is_leading": True}}
    tokens = Tensor(name="s", dtype="int64", shape=("B", "S"), role=Role.SOURCE_TOKENS)
    described = manifest(
        "caption",
        image=IMAGE,
        tasks={"caption": section, "generate": section},
        graphs={"admit": Graph(file="admit.onnx", inputs=(tokens,), outputs=()), "step": STEP},
        source_image=PromptImages(positions=2, token_id=3, tokens=2),
    )
    return served(described, tokenizer)
