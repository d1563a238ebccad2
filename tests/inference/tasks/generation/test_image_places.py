"""Prompts with images: their text as `IdeficsProcessor` writes it, and their images shared out."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast
from transformers.models.idefics.image_processing_pil_idefics import IdeficsImageProcessorPil
from transformers.models.idefics.processing_idefics import IdeficsProcessor

from inference.errors import InvalidRequest, UnsupportedImage
from inference.processing.image import Pixels
from inference.tasks.generation.image_places import ImagePlaces, PromptPixels
from inference.tasks.shared.limits import TaskLimits

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


class _Recorder(PreTrainedTokenizerFast):
    """Keeps the texts that the processor writes."""

    def __call__(self, texts: list[str], **options: object) -> object:
        raise _Written(texts)


class _Written(Exception):
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
    with pytest.raises(_Written) as written:
        processor(text=[parts], return_tensors="pt")
    assert written.value.texts == [PLACES.laid_out(text)]


def _recorder() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({"<s>": 0, "<image>": 1, "</s>": 2}, unk_token="<s>"))
    return _Recorder(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def _images(count: int) -> list[Pixels]:
    return [np.full((2, 2, 3), number, np.uint8) for number in range(count)]


def test_images_fill_the_places_of_examples_and_then_of_prompts() -> None:
    pixels = PromptPixels.of(PLACES, "<image> a <image> b", ["<image>", "c", "d"], _images(3))
    stacked = [pixels.stacked(index, LIMITS, f"prompts.{index}") for index in range(3)]
    numbers = [None if one is None else one[:, 0, 0, 0].tolist() for one in stacked]
    assert numbers == [[0, 1, 2], [0, 1], [0, 1]]
    assert PromptPixels.of(PLACES, "", ["a"], []).stacked(0, LIMITS, "prompts.0") is None


@pytest.mark.parametrize(("prompts", "count"), [(["<image>"], 0), (["a"], 1), (["<image>"] * 2, 3)])
def test_other_than_one_image_for_each_place_is_refused(prompts: list[str], count: int) -> None:
    with pytest.raises(InvalidRequest, match=f"images holds {count}: give one image") as error:
        PromptPixels.of(PLACES, "", prompts, _images(count))
    assert error.value.field == "images"


def test_bad_image_fails_its_own_prompt_alone() -> None:
    images = [*_images(1), UnsupportedImage("damaged")]
    pixels = PromptPixels.of(PLACES, "", ["<image>", "<image>", "a"], images)
    assert pixels.stacked(0, LIMITS, "prompts.0") is not None
    with pytest.raises(UnsupportedImage):
        pixels.stacked(1, LIMITS, "prompts.1")
    assert pixels.stacked(2, LIMITS, "prompts.2") is None


def test_more_images_than_a_prompt_may_hold_are_refused() -> None:
    pixels = PromptPixels.of(PLACES, "<image>", ["<image>" * 3, "<image>"], _images(5))
    with pytest.raises(InvalidRequest, match="holds 4 images with those of its examples") as error:
        pixels.stacked(0, LIMITS, "prompts.0")
    assert error.value.field == "prompts.0"
    assert pixels.stacked(1, LIMITS, "prompts.1") is not None


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
