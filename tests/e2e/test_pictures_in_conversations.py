"""Models that read pictures behind HTTP against the processors and models of `transformers`.

The checkpoints are the tests' twins, with tokenizers, templates and image recipes as such folders
have them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from huggingface_hub import InferenceClient
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    CLIPImageProcessorPil,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    GotOcr2ImageProcessorPil,
    Idefics2ImageProcessorPil,
    Idefics2Processor,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    InternVLProcessor,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaOnevisionImageProcessorPil,
    LlavaOnevisionProcessor,
    LlavaProcessor,
    MllamaImageProcessorPil,
    MllamaProcessor,
    Pix2StructForConditionalGeneration,
    Pix2StructImageProcessorPil,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
)

from inference.processing.flattened_patches import font_file
from tests.e2e.conftest import Stack, running
from tests.e2e.interleaved import random_pictures
from tests.e2e.pictured import (
    GEMMA3_TEMPLATE,
    IDEFICS3_TEMPLATE,
    INTERNVL_PLACE,
    INTERNVL_TEMPLATE,
    MLLAMA_TEMPLATE,
    QWEN_PLACE,
    QWEN_TEMPLATE,
    QWEN_VIDEO,
    QWENS,
    REPOSITORY,
    SCANNED,
    TEMPLATE,
    export_pictured,
)
from tests.pictures import encoded, noise
from triptych import Client, GrpcClient, InvalidRequest

pytestmark = [pytest.mark.integration, pytest.mark.full]

NEW_TOKENS = 8
NAMES = ["llava", "llava_next", "llava_onevision", "idefics2", "idefics3", "gemma3"]
NAMES += ["internvl", "mllama", *QWENS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints, exported."""
    made = tmp_path_factory.mktemp("pictures")
    export_pictured(made)
    return made


@pytest.fixture(scope="module")
def stack(folder: Path) -> Iterator[Stack]:
    with running(folder / REPOSITORY, folder) as started:
        yield started


def _without_videos(kind: Any) -> Any:
    """A processor without that of videos, which needs torchvision."""

    class ImagesAlone(kind):
        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            if name != "video_processor":
                super().check_argument_for_proper_class(name, argument)

    return ImagesAlone


def _processor(folder: Path) -> Any:
    """The processor of a checkpoint, as `transformers` makes it of such folders."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    if folder.name == "idefics2":
        recipe = Idefics2ImageProcessorPil.from_pretrained(folder)
        return Idefics2Processor(recipe, tokenizer, 4, chat_template=IDEFICS3_TEMPLATE)
    if folder.name == "idefics3":
        recipe = Idefics3ImageProcessorPil.from_pretrained(folder)
        return Idefics3Processor(recipe, tokenizer, 4, chat_template=IDEFICS3_TEMPLATE)
    if folder.name == "gemma3":
        recipe = Gemma3ImageProcessorPil.from_pretrained(folder)
        return Gemma3Processor(recipe, tokenizer, GEMMA3_TEMPLATE, image_seq_length=4)
    if folder.name in QWENS:
        recipe = Qwen2VLImageProcessorPil.from_pretrained(folder)
        return _without_videos(Qwen2VLProcessor)(recipe, tokenizer, chat_template=QWEN_TEMPLATE)
    if folder.name == "internvl":
        recipe = GotOcr2ImageProcessorPil.from_pretrained(folder)
        made = _without_videos(InternVLProcessor)
        return made(recipe, tokenizer, image_seq_length=4, chat_template=INTERNVL_TEMPLATE)
    if folder.name == "mllama":
        recipe = MllamaImageProcessorPil.from_pretrained(folder)
        return MllamaProcessor(recipe, tokenizer, chat_template=MLLAMA_TEMPLATE)
    if folder.name == "llava_onevision":
        return _without_videos(LlavaOnevisionProcessor)(
            LlavaOnevisionImageProcessorPil.from_pretrained(folder),
            tokenizer,
            num_image_tokens=4,
            vision_feature_select_strategy="full",
            chat_template=TEMPLATE,
            vision_aspect_ratio="anyres_max_1",
        )
    kind, recipe = LlavaProcessor, CLIPImageProcessorPil
    if folder.name == "llava_next":
        kind, recipe = LlavaNextProcessor, LlavaNextImageProcessorPil
    return kind(
        recipe.from_pretrained(folder),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )


def _answer(
    folder: Path, messages: list[dict[str, Any]] | str, pictures: list[bytes], beams: int = 1
) -> str:
    """The answer of `transformers` to a conversation or a prompt."""
    processor, options, text = _processor(folder), {}, messages
    if isinstance(messages, list):
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
        options["add_special_tokens"] = not text.startswith("<s>")
    if folder.name == "gemma3":
        options |= SCANNED
    images: list[Any] = [Image.open(io.BytesIO(picture)) for picture in pictures]
    if folder.name == "llava_onevision":  # a list for each prompt: several are not divided
        images = [images] if images else images
    inputs = processor(text=text, images=images or None, return_tensors="pt", **options)
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    with torch.no_grad():
        tokens = model.generate(
            **inputs, max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=beams
        )
    behind = tokens[0, inputs["input_ids"].shape[1] :]
    answer: str = processor.tokenizer.decode(behind, skip_special_tokens=True)
    return answer


def _place(name: str) -> str:
    """What stands for an image in a text."""
    places = {"gemma3": "<start_of_image>", **dict.fromkeys(QWENS, QWEN_PLACE)}
    places["internvl"] = INTERNVL_PLACE
    return places.get(name, "<image>")


def _url(picture: bytes) -> dict[str, Any]:
    data = base64.b64encode(picture).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_with_pictures_is_answered_as_transformers_does(
    name: str, folder: Path, stack: Stack
) -> None:
    first, second = random_pictures(2)
    image = {"type": "image"}

    def conversation(*pictures: dict[str, Any]) -> list[dict[str, Any]]:
        one, two = pictures
        return [
            {"role": "user", "content": [one, {"type": "text", "text": "w9 w12"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "w20"}]},
            {"role": "user", "content": [two, {"type": "text", "text": "w31"}]},
        ]

    wanted = _answer(folder / name, conversation(image, image), [first, second])
    swapped = _answer(folder / name, conversation(image, image), [second, first])
    assert wanted != swapped  # the pictures decide
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none") as client:
        given = {"model": name, "temperature": 0, "max_tokens": NEW_TOKENS}
        messages: Any = conversation(_url(first), _url(second))
        whole = client.chat.completions.create(messages=messages, **given)
        stream = client.chat.completions.create(messages=messages, stream=True, **given)
        parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert whole.choices[0].message.content == wanted
    assert "".join(parts) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_native_clients_write_places_of_images(name: str, folder: Path, stack: Stack) -> None:
    (picture,) = random_pictures(1)
    text = {"type": "text", "text": "w9 w12"}
    given: Any = {"model": name, "temperature": 0, "max_new_tokens": NEW_TOKENS}
    content = [{"type": "image"}, text]
    seen = _answer(folder / name, [{"role": "user", "content": content}], [picture])
    told = _answer(folder / name, [{"role": "user", "content": [text]}], [])
    assert seen != told
    with Client(stack.url) as client, GrpcClient(stack.grpc_address) as grpc:
        for each in (client, grpc):
            message = [{"role": "user", "content": f"{_place(name)} w9 w12"}]
            assert each.chat(message, images=[picture], **given).data[0].text == seen
            message = [{"role": "user", "content": "w9 w12"}]
            assert each.chat(message, **given).data[0].text == told


@pytest.mark.parametrize("name", NAMES)
def test_a_caption_answers_the_instruction(name: str, folder: Path, stack: Stack) -> None:
    (picture,) = random_pictures(1)
    content = [{"type": "image"}, {"type": "text", "text": "w9 w12"}]
    wanted = _answer(folder / name, [{"role": "user", "content": content}], [picture])
    with Client(stack.url) as client:
        caption = client.caption(
            picture, model=name, prompt="w9 w12", max_new_tokens=NEW_TOKENS
        ).data[0]
    assert caption.text == wanted


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_with_pictures_is_continued_as_transformers_does(
    name: str, beams: int, folder: Path, stack: Stack
) -> None:
    pictures = [*random_pictures(1), encoded(noise(30, 70))]
    place = _place(name)
    if name in QWENS:  # as it is trained
        place = f"<|vision_start|>{place}<|vision_end|>"
    prompt = f"{place} w9 w12 {place} w20"
    wanted = _answer(folder / name, prompt, pictures, beams)
    assert wanted
    given: Any = {"temperature": 0} if beams == 1 else {"num_beams": beams}
    with Client(stack.url) as client:
        continued = client.generate(
            prompt, images=pictures, model=name, max_new_tokens=NEW_TOKENS, **given
        ).data[0]
    assert (continued.text or "").strip() == wanted


def _read(folder: Path, picture: bytes, prompt: str | None, beams: int) -> str:
    """What Pix2Struct of `transformers` reads in a picture."""
    recipe = Pix2StructImageProcessorPil.from_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    image, given = Image.open(io.BytesIO(picture)).convert("RGB"), {}
    if recipe.is_vqa:
        pixels = np.asarray(image).transpose(2, 0, 1)
        drawn = recipe.render_header(pixels, prompt, font_bytes=font_file())
        image = Image.fromarray(drawn.transpose(1, 2, 0))
    elif prompt:
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        given["decoder_input_ids"] = ids
    model = Pix2StructForConditionalGeneration.from_pretrained(folder).eval()
    with torch.no_grad():
        (tokens,) = model.generate(
            **recipe(image, is_vqa=False, return_tensors="pt"),
            **given,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            num_beams=beams,
        )
    return str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()


@pytest.mark.parametrize("name", ["pix2struct", "pix2struct-vqa"])
def test_patches_of_pictures_are_read_as_transformers_reads_them(
    name: str, folder: Path, stack: Stack
) -> None:
    """Rectangular pictures of several sizes in one request, a question above them or none."""
    pictures, found = [encoded(noise(30, 70)), *random_pictures(2), encoded(noise(90, 20))], set()
    given: Any = {"model": name, "max_new_tokens": NEW_TOKENS}
    with Client(stack.url) as client, GrpcClient(stack.grpc_address) as grpc:
        for prompt in ("w9 w12", "w20 w31 w40 what", None):
            if prompt is None and name.endswith("vqa"):
                with pytest.raises(InvalidRequest, match="write one in prompt"):
                    client.caption(pictures, **given)
                continue
            for beams, each in ((1, client), (3, grpc)):
                wanted = [_read(folder / name, one, prompt, beams) for one in pictures]
                captions = each.caption(pictures, prompt=prompt, num_beams=beams, **given).data
                assert [one.text for one in captions] == wanted
                found |= set(wanted)
    assert len(found) > 4


def test_questions_of_hugging_faces_client_are_those_of_captions(stack: Stack) -> None:
    (picture,) = random_pictures(1)
    asking = InferenceClient(model=f"{stack.url}/hf/caption/pix2struct-vqa")
    with Client(stack.url) as client:
        caption = client.caption(picture, model="pix2struct-vqa", prompt="w9 w12").data[0]
    for ask in (asking.visual_question_answering, asking.document_question_answering):
        (told,) = ask(picture, question="w9 w12")
        assert told.answer == caption.text


@pytest.mark.parametrize("name", QWENS)
def test_videos_are_refused(name: str, stack: Stack) -> None:
    with Client(stack.url) as client, pytest.raises(InvalidRequest, match="videos are not"):
        client.generate(f"{QWEN_VIDEO} w9", model=name)
