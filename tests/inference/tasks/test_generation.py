"""Prompts and fields of generation: few-shot prompts, images, sampling, captions."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    Blip2Processor,
    BlipImageProcessorPil,
    PaliGemmaProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
)
from transformers.models.idefics.image_processing_pil_idefics import IdeficsImageProcessorPil
from transformers.models.idefics.processing_idefics import IdeficsProcessor

from inference.bundle.inputs import Patches, PromptImages
from inference.bundle.manifest import Limits
from inference.errors import InvalidRequest, TooLong, UnsupportedImage
from inference.generation import Generation, Overrides, TokenChunk
from inference.processing.prepared_image import PreparedImage
from inference.processing.sentences import is_blank
from inference.processing.tokenizer_kinds import FastTokenizer
from inference.tasks.caption import TASK, CaptionPlan, CaptionSection
from inference.tasks.generate import TASK as GENERATE
from inference.tasks.generation.image_places import ImagePlaces, TileTexts, with_instruction
from inference.tasks.generation.overrides import sampling_overrides
from inference.tasks.generation.prompt_task import PromptPixels, header, held_images, laid_out
from inference.tasks.score import TASK as SCORE
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from tests.inference.processing.test_text import byte_level
from tests.inference.tiny_models import IMAGE, WordTokenizer, finished, image_file, manifest, served
from tests.tasks.models import ENCODES
from triptych.tasks.caption import INSTRUCTION, CaptionRequest
from triptych.tasks.generate import Example, GenerateRequest
from triptych.tasks.score import ScoreRequest

SHOTS = [Example(input=" sea otter", output="loutre de mer "), Example(input="a", output="b")]


def test_the_layout_to_the_letter() -> None:
    made = header("Translate English to French:\n", SHOTS)
    assert made == "Translate English to French:\n\nsea otter => loutre de mer\na => b\n"
    assert laid_out(made, " cheese ", "prompts.0") == made + "cheese =>"


@pytest.mark.parametrize("instruction", [None, "", "  \n"])
def test_without_instruction_the_examples_begin(instruction: str | None) -> None:
    assert header(instruction, SHOTS[1:]) == "a => b\n"
    assert header(instruction, []) == ""


def test_an_instruction_may_have_several_lines() -> None:
    assert header("one\ntwo", []) == "one\ntwo\n\n"


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "", " \n"])
def test_line_break_is_refused_by_name(text: str) -> None:
    for made, field in (
        (lambda: header(None, [SHOTS[0], Example(input=text, output="x")]), "examples.1.input"),
        (lambda: header(None, [Example(input="x", output=text)]), "examples.0.output"),
        (lambda: laid_out("a => b\n", text, "prompts.2"), "prompts.2"),
    ):
        with pytest.raises(InvalidRequest, match=field) as caught:
            made()
        assert caught.value.field == field


lines = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=8)
words = lines.filter(lambda text: not is_blank(text))


@given(words, words, words, words)
def test_prompts_of_one_header_share_its_tokens(
    tokenizer: FastTokenizer, instruction: str, given_: str, answer: str, prompt: str
) -> None:
    made = header(instruction, [Example(input=given_, output=answer)])
    alone = tokenizer.encode(made, add_special_tokens=False)
    whole = tokenizer.encode(laid_out(made, prompt, ""), add_special_tokens=False)
    assert whole[: len(alone)] == alone


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    folder = tmp_path_factory.mktemp("fast")
    return FastTokenizer(byte_level(folder), folder)


PLACES = ImagePlaces(place="<image>", around="<fake_token_around_image>", begin="<s>")
TEXTS = [
    "a <image> b",
    "<image>",
    "<image><image>",
    "User: <image> <image> Describe.\nAssistant: one <image>\n <image>",
    "no image",
    "  spaces around  ",
    "",
    "<image> => red\n<image> =>",
]
LIMITS = TaskLimits(max_prompt_images=3)


class Recorder(PreTrainedTokenizerFast):
    """Keeps the texts that the processor writes."""

    def __call__(self, texts: list[str], **options: object) -> object:
        raise Written(texts)


class Written(Exception):
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_written_as_the_processor_writes_it(text: str) -> None:
    picture = np.zeros((8, 8, 3), np.uint8)
    parts: list[object] = []
    for index, part in enumerate(text.split("<image>")):
        parts += [picture] if index else []
        parts += [part] if part.strip(" ") else []
    tokenizer = _recorder()
    processor = IdeficsProcessor(
        IdeficsImageProcessorPil(size={"height": 8, "width": 8}), tokenizer
    )
    with pytest.raises(Written) as written:
        processor(text=[parts], return_tensors="pt")
    assert written.value.texts == [PLACES.laid_out(text)]


def _recorder() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"<s>": 0, "<image>": 1, "</s>": 2}, unk_token="<s>"))
    return Recorder(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def _images(count: int) -> list[PreparedImage]:
    pixels = (np.full((2, 2, 3), number, np.uint8) for number in range(count))
    return [PreparedImage(each, (2, 2)) for each in pixels]


def test_images_fill_the_places_of_examples_and_then_of_prompts() -> None:
    pixels = PromptPixels.of(PLACES, "<image> a <image> b", ["<image>", "c", "d"], _images(3))
    given = [pixels.of_prompt(index, LIMITS, f"prompts.{index}") for index in range(3)]
    numbers = [held_images(images)["pixels"][:, 0, 0, 0].tolist() for images in given]
    assert numbers == [[0, 1, 2], [0, 1], [0, 1]]
    none = PromptPixels.of(PLACES, "", ["a"], []).of_prompt(0, LIMITS, "prompts.0")
    assert held_images(none) == {}


@pytest.mark.parametrize(("prompts", "count"), [(["<image>"], 0), (["a"], 1), (["<image>"] * 2, 3)])
def test_other_than_one_image_for_each_place_is_refused(prompts: list[str], count: int) -> None:
    with pytest.raises(InvalidRequest, match=f"images holds {count}: give one image") as error:
        PromptPixels.of(PLACES, "", prompts, _images(count))
    assert error.value.field == "images"


def test_bad_image_fails_its_own_prompt_alone() -> None:
    images = [*_images(1), UnsupportedImage("damaged")]
    pixels = PromptPixels.of(PLACES, "", ["<image>", "<image>", "a"], images)
    assert pixels.of_prompt(0, LIMITS, "prompts.0") == images[:1]
    with pytest.raises(UnsupportedImage):
        pixels.of_prompt(1, LIMITS, "prompts.1")
    assert pixels.of_prompt(2, LIMITS, "prompts.2") == []


def test_more_images_than_a_prompt_may_hold_are_refused() -> None:
    pixels = PromptPixels.of(PLACES, "<image>", ["<image>" * 3, "<image>"], _images(5))
    with pytest.raises(InvalidRequest, match="holds 4 images with those of its examples") as error:
        pixels.of_prompt(0, LIMITS, "prompts.0")
    assert error.value.field == "prompts.0"
    assert len(pixels.of_prompt(1, LIMITS, "prompts.1")) == 2


def test_images_too_different_in_shape_to_share_an_array_are_refused() -> None:
    """Two of 16384 by 84 pixels would take 1.6 GB, padded to the sides of both."""
    high, wide = (
        PreparedImage(np.broadcast_to(np.zeros((1, 1, 3), np.uint8), shape), shape[1::-1])
        for shape in ((16384, 84, 3), (84, 16384, 3))
    )
    with pytest.raises(InvalidRequest, match="crop them") as error:
        held_images([high, wide])
    assert error.value.field == "images"
    assert held_images([high, high])["pixels"].shape == (2, 16384, 84, 3)


def test_a_text_with_the_place_of_a_video_is_refused() -> None:
    model = served(manifest("generate"))
    places = ImagePlaces(place="<image>", video="<video>")
    assert places.encode("a", "prompt", model)
    with pytest.raises(InvalidRequest, match="prompt holds <video>: videos are not read") as error:
        places.encode("a <video> b", "prompt", model)
    assert error.value.field == "prompt"


def test_a_text_without_tokens_around_images_is_read_as_it_is_written() -> None:
    places = ImagePlaces(place="<image>")
    assert places.laid_out("a  <image> b") == "a  <image> b"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a b", ["a b"]),
        ("a <image> b", ["a", None, "b"]),
        ("<image><image> what?\n", [None, None, "what?\n"]),
        ("", []),
    ],
)
def test_parts_of_a_message_are_its_words_and_its_images(
    text: str, parts: list[str | None]
) -> None:
    wanted = [
        {"type": "image"} if part is None else {"type": "text", "text": part} for part in parts
    ]
    assert ImagePlaces(place="<image>").parts(text) == wanted


def _tokenizer(layout: str) -> PreTrainedTokenizerFast:
    """One of words; `layout` has the special tokens that are added to a text."""
    words = ["</s>", "<s>", "<image>", "a", "photo", "of", "\n"]
    ids = {word: place for place, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="</s>"))
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    backend.add_special_tokens([AddedToken(text) for text in words[:3]])
    used = [(word, ids[word]) for word in words[:3] if word in layout]
    backend.post_processor = processors.TemplateProcessing(single=layout, special_tokens=used)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


@pytest.mark.parametrize("layout", ["</s> $A", "$A </s>"])  # of OPT and of T5
def test_leading_images_stand_before_special_tokens_as_the_processor_puts_them(layout: str) -> None:
    tokenizer = _tokenizer(layout)
    recipe = BlipImageProcessorPil(size={"height": 8, "width": 8})
    processor = Blip2Processor(recipe, tokenizer, num_query_tokens=3)
    images = PromptImages(positions=3, token_id=2, tokens=3)
    model = served(manifest("caption", {}, image=IMAGE, images=images), tokenizer)
    places = ImagePlaces(place="<image>", is_leading=True)
    for text in ("a photo of", "", " a"):
        wanted = processor(np.zeros((8, 8, 3), np.uint8), text)["input_ids"]
        assert [places.encode(f"<image>{text}", "prompt", model)] == wanted, text
    with pytest.raises(InvalidRequest, match="prompt has <image> behind other text"):
        places.encode("a <image>", "prompt", model)


def test_a_prefix_begins_and_ends_as_the_processor_writes_it() -> None:
    tokenizer = _tokenizer("$A")
    recipe = SiglipImageProcessorPil(size={"height": 8, "width": 8})
    recipe.image_seq_length = 3
    processor = PaliGemmaProcessor(recipe, tokenizer)
    images = PromptImages(positions=3, token_id=2, tokens=3)
    model = served(manifest("caption", {}, image=IMAGE, images=images), tokenizer)
    places = ImagePlaces(place="<image>", is_leading=True, begin="<s>", end="\n")
    picture = np.zeros((8, 8, 3), np.uint8)
    for text in ("<image>a photo of ", "<image>", "<image><image>a "):
        pictures = [[picture] * text.count("<image>")]
        wanted = processor(pictures, [text])["input_ids"]
        assert [places.encode(text, "prompt", model)] == wanted, text


def test_tiles_are_named_by_row_and_column() -> None:
    texts = TileTexts(tile="r{row}c{column}", between=" ", row_end="|", whole="w", single="s")
    assert texts.write((2, 3)) == "r1c1 r1c2 r1c3|r2c1 r2c2 r2c3|w"
    assert texts.write((0, 0)) == "s"


def test_source_stands_behind_the_instruction_of_its_image() -> None:
    text, words = np.array([3, 4]), np.array([70, 71])
    one, pixels = {"source_ids": words}, {"pixels": np.zeros(3)}
    assert with_instruction({"source_ids": text}, one)["source_ids"].tolist() == [70, 71, 3, 4]
    prompt = with_instruction({"prompt_ids": text, **pixels}, one)
    assert set(prompt) == {"prompt_ids", "source_ids", "pixels"}
    assert prompt["source_ids"].tolist() == [70, 71]
    assert with_instruction({"source_ids": text}, {})["source_ids"].tolist() == [3, 4]
    assert set(with_instruction(pixels, {})) == {"pixels"}


GREEDY = Generation(pad_token_id=0, max_new_tokens=20)
BEAMS = Generation(pad_token_id=0, max_new_tokens=20, num_beams=4)
SAMPLED = Generation(pad_token_id=0, max_new_tokens=20, do_sample=True, temperature=0.7)


def asked(
    defaults: Generation = GREEDY, stops: tuple[str, ...] = (), **fields: object
) -> Overrides:
    model = served(manifest("generate", generation=defaults, vocabulary_size=100), WordTokenizer())
    model = replace(model, task_limits=TaskLimits(max_best_of=5, max_stop_sequences=2))
    request = GenerateRequest(prompts=["a"], **fields)
    stops = tuple(request.stop or stops)
    made = sampling_overrides(request, model, stops=stops, logprobs=request.logprobs)
    defaults.with_overrides(made)  # what the engine will do with it
    return made


@pytest.mark.parametrize(
    "field", ["temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "best_of"]
)
def test_a_field_of_sampling_samples(field: str) -> None:
    made = asked(**{field: 1})
    assert made.do_sample
    assert getattr(made, field) == 1
    assert made.num_beams == 1


def test_temperature_0_takes_the_best_token() -> None:
    for defaults in (GREEDY, SAMPLED):
        made = asked(defaults, temperature=0, top_p=0.5, seed=1)
        assert made.do_sample is False
        assert made.temperature is made.top_p is None


def test_without_fields_the_checkpoint_decides() -> None:
    assert asked().do_sample is False
    assert asked(SAMPLED).do_sample is True
    assert asked(SAMPLED).temperature is None
    assert asked(BEAMS).num_beams == 4


def test_beams_do_not_sample() -> None:
    made = asked(SAMPLED, num_beams=3, n=2, length_penalty=0.5, early_stopping=True)
    assert (made.do_sample, made.num_beams, made.num_return_sequences) == (False, 3, 2)
    assert (made.length_penalty, made.early_stopping) == (0.5, True)


def test_several_answers_are_samples_where_there_are_no_beams() -> None:
    made = asked(n=3)
    assert (made.do_sample, made.num_return_sequences, made.num_beams) == (True, 3, 1)
    made = asked(BEAMS, n=5)
    assert (made.do_sample, made.num_return_sequences, made.num_beams) == (False, 5, 5)


def test_sampling_takes_the_place_of_default_beams() -> None:
    made = asked(BEAMS, temperature=0.5)
    assert (made.do_sample, made.num_beams) == (True, 1)


def test_the_rest_reaches_the_engine() -> None:
    fields = {
        "max_new_tokens": 5, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {99: -5.0},
    }  # fmt: skip
    made = asked(**fields)
    assert {name: getattr(made, name) for name in fields} == fields
    assert made.do_sample is False


def test_a_stream_is_greedy_where_beams_are_the_default() -> None:
    made = asked(BEAMS, stream=True)
    assert (made.num_beams, made.do_sample) == (1, False)
    assert asked(BEAMS, stream=True, temperature=0.5).do_sample is True
    assert asked(SAMPLED, stream=True).do_sample is True


def test_log_probabilities_are_requested_where_they_are_needed() -> None:
    assert asked().top_log_probs is None
    assert asked(logprobs=0).top_log_probs == 0
    assert asked(logprobs=3, stops=("x",)).top_log_probs == 3
    assert asked(stops=("x",)).top_log_probs == 0
    assert asked(stops=("x",), stream=True).top_log_probs is None  # pieces have no score
    assert asked(stops=("x",), stream=True, logprobs=0).top_log_probs == 0


CAPTION_LIMITS = TaskLimits(max_client_batch_size=3)


def plan_captions(model: LoadedModel, images: list[str | bytes], **fields: object) -> CaptionPlan:
    request = CaptionRequest(images=["beside"] * len(images), **fields)
    return TASK.prepare(request, images, replace(model, task_limits=CAPTION_LIMITS))


def test_base64_data_uri_and_bytes_give_the_same_call(captioner: LoadedModel) -> None:
    text = base64.b64encode(image_file("red")).decode()
    made = plan_captions(captioner, [image_file("red"), text, f"data:image/png;base64,{text}"])
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
        plan_captions(model, [image_file("red")], prompt=prompt)
        .calls[0]
        .inputs["prompt_ids"]
        .tolist()
        for prompt in ("<s_task> a red", "a red")
    )
    assert given == short
    assert len(given) == 2
    alone = plan_captions(model, [image_file("red")], prompt="<s_task>").calls[0]
    assert "prompt_ids" not in alone.inputs


def test_a_text_that_is_no_image_is_refused(captioner: LoadedModel) -> None:
    with pytest.raises(UnsupportedImage, match="not base64"):
        plan_captions(captioner, ["ñ" * 40])
    with pytest.raises(InvalidRequest, match="not fetched"):
        plan_captions(captioner, ["https://example.com/cat.png"])


SAMPLING = {
    "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8, "seed": 7,
    "best_of": 3, "n": 2, "repetition_penalty": 1.5, "presence_penalty": 0.5,
    "frequency_penalty": -0.5, "no_repeat_ngram_size": 2, "max_new_tokens": 5,
}  # fmt: skip


def test_parameters_reach_the_engine_as_those_of_generate(captioner: LoadedModel) -> None:
    (call,) = plan_captions(captioner, [image_file("red")], **SAMPLING).calls
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
        options = plan_captions(model, [image_file("red")], n=4).calls[0].options
        assert (options.num_beams, options.num_return_sequences) == (4, 4)
        assert options.do_sample is False


@pytest.mark.parametrize(
    ("fields", "is_greedy"), [({}, True), ({"num_beams": 1}, None), ({"top_p": 0.5}, None)]
)
def test_a_stream_says_that_it_took_the_place_of_beams(
    captioner: LoadedModel, fields: dict[str, object], is_greedy: bool | None
) -> None:
    made = plan_captions(captioner, [image_file("red")], stream=True, **fields)
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
    scored = ScoreRequest(targets="red", images=["x"], texts="a b")
    (call,) = SCORE.prepare(scored, [image_file("red")], asked).calls
    assert list(call.inputs) == ["pixels"]
    assert (call.inputs["pixels"] == calls[0].inputs["pixels"]).all()
    for texts, told in ((None, "write one in texts"), (["a", "b"], "one text for all targets")):
        scored = ScoreRequest(targets=["a", "b"], images=["x"], texts=texts)
        with pytest.raises(InvalidRequest, match=told):
            SCORE.prepare(scored, [image_file("red")], asked)


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
    described = manifest(
        "caption",
        image=IMAGE,
        tasks={"caption": section, "generate": section},
        graphs=ENCODES,
        source_image=PromptImages(positions=2, token_id=3, tokens=2),
    )
    return served(described, tokenizer)


def test_an_image_without_a_prompt_that_is_too_long_is_named(source_captioner: LoadedModel) -> None:
    longer = {"source_image": PromptImages(positions=20, token_id=3, tokens=20)}
    described = source_captioner.manifest.model_copy(update=longer)
    captioner = replace(source_captioner, manifest=described)
    with pytest.raises(TooLong, match=r"^images has \d+ tokens, .* send smaller ones") as caught:
        TASK.prepare(CaptionRequest(images=["file"]), [image_file("red")], captioner)
    assert caught.value.field == "images"
