"""InternVL and Llama 3.2 Vision: tiles of pictures of any size in a prompt.

Against the processors of `transformers`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.mllama import processing_mllama
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

from export.checkpoint.checkpoint import Checkpoint
from export.parity.torch_runner import TorchRunner
from export.registry import architecture
from inference.bundle.inputs import AspectTiles, CanvasTiles, ImageSpec
from inference.engine.codec import IMAGE_SIZES, PIXELS
from inference.engine.engine import decode
from inference.engine.request import EngineRequest, RequestValidator
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.protocol import Runner
from inference.errors import CheckpointError, InvalidRequest
from inference.processing.image import ImageLimits
from inference.processing.prepared_image import PreparedImage, read_image
from inference.tasks.generation.image_places import ImagePlaces
from inference.tasks.generation.prompt_task import held_images
from tests.export.conftest import Bundles, TwinPair, Twins
from tests.export.models.captions import unexported
from tests.export.models.interleaved import assert_left_padded
from tests.inference.tasks.test_generation import Recorder, Written
from tests.pictures import encoded, noise

IMAGE = 61
NEW_TOKENS = 8
PICTURES = (noise(61, 20), noise(15, 47), noise(33, 30))
PROMPTS = ((5, IMAGE, 9, IMAGE, 3), (8, 11, 4), (IMAGE, 6))
"""With two pictures, none and one."""


def _processor(spec: ImageSpec, most: int) -> GotOcr2ImageProcessorPil:
    height, width = spec.size
    return GotOcr2ImageProcessorPil(
        size={"height": height, "width": width},
        max_patches=most,
        crop_to_patches=True,
        resample=spec.resample,
        image_mean=spec.mean,
        image_std=spec.std,
        rescale_factor=spec.rescale,
    )


def _read(twin: TwinPair, most: int) -> list[PreparedImage]:
    spec = twin.prepared.image.model_copy(update={"tiles": AspectTiles(least=1, most=most)})
    return [read_image(encoded(picture), ImageLimits(), spec) for picture in PICTURES]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("config", ["odd", "the largest tower, tied"])
def test_ragged_prompts_generate_what_a_left_padded_batch_does(
    config: str, beams: int, twins: Twins
) -> None:
    twin, most = twins("internvl", config), 3
    manifest = unexported(twin).manifest
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams}
    )
    images, requests = _read(twin, most), []
    assert [image.grid for image in images] == [(1, 3), (3, 1), (0, 0)]
    shown = iter(images)
    for prompt in PROMPTS:
        held = [next(shown) for _ in range(prompt.count(IMAGE))]
        counts = iter(len(image.images) for image in held)
        ids = [t for token in prompt for t in [token] * (next(counts) if token == IMAGE else 1)]
        pixels = np.concatenate([image.images for image in held]) if held else None
        given = EngineRequest(rules, prompt_ids=tuple(manifest.images.expanded(ids)), pixels=pixels)
        requests.append(RequestValidator(manifest).validate(given))
    values = _processor(twin.prepared.image, most)(list(PICTURES), return_tensors="pt")
    runner = TorchRunner(twin.graphs(), manifest)
    inputs = {"pixel_values": values["pixel_values"]}
    assert_left_padded(twin.reference, runner, requests, lambda tokens: inputs)


class _Images(InternVLProcessor):
    """Without the processor of videos, which needs torchvision."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
        if name != "video_processor":
            super().check_argument_for_proper_class(name, argument)


NAMED = {
    "start_image_token": "<begin>",
    "end_image_token": "<end>",
    "context_image_token": "<image>",
    "video_token": "<video>",
}


def test_text_of_tiles_is_written_as_the_processor_writes_it(twins: Twins, tmp_path: Path) -> None:
    network: Any = twins("internvl", "odd").network
    tokens, words = network.images.tokens, ["<s>", *NAMED.values()]
    backend = Tokenizer(models.WordLevel(dict(zip(words, range(5), strict=True)), unk_token="<s>"))
    tokenizer = Recorder(tokenizer_object=backend, pad_token="<s>", extra_special_tokens=NAMED)
    recipe = GotOcr2ImageProcessorPil(size={"height": 23, "width": 23})
    processor = _Images(recipe, tokenizer, image_seq_length=tokens)
    text = "User: <image> and<image>\nwhat<image>?"
    with pytest.raises(Written) as written:  # tiles, although the recipe asks for none
        processor(text=text, images=[noise(61, 20), noise(30, 31), noise(20, 41)])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_special_tokens": NAMED}))
    texts = network.tile_texts(Checkpoint(tmp_path, "x", {}), "<image>")
    places = ImagePlaces(place="<image>", tiles=texts)
    ours = places.laid_out(text, [(1, 3), (0, 0), (2, 1)])
    assert written.value.texts == [ours.replace("<image>", "<image>" * tokens)]
    default = network.tile_texts(Checkpoint(tmp_path / "none", "x", {}), "<image>")
    assert default["single"] == "<img><image></img>"


def test_a_processor_of_another_number_of_tokens_is_refused(twins: Twins, tmp_path: Path) -> None:
    network: Any = twins("internvl", "odd").network
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_seq_length": 5}))
    with pytest.raises(CheckpointError, match="image_seq_length = 5, but a tile has 4 tokens"):
        network.tile_texts(Checkpoint(tmp_path, "x", {}), "<image>")


def test_published_files_are_read() -> None:
    """`config.json` of InternVL3-1B-hf, as far as it decides sizes."""
    text = {"model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14}
    text |= {"num_key_value_heads": 2, "num_hidden_layers": 24, "intermediate_size": 4864}
    values = {
        "image_token_id": 151667,
        "text_config": text | {"vocab_size": 151674, "tie_word_embeddings": False},
        "vision_config": {"image_size": [448, 448], "patch_size": [14, 14]},
        "tie_word_embeddings": False,
    }
    config = architecture("internvl").read_config(values)
    assert (config.tokens, config.scale, config.tower.width) == (256, 2, 1024)
    assert (config.tower.heads.bias, config.tower.heads.out_bias) == (False, True)


SHOWN = (noise(61, 20), noise(8, 23), noise(16, 17), noise(5, 3), noise(40, 39))
WITH_SHOWN = ((5, -1, 9, -1, -1, 3), (8, 11, 4), (-1, 6), (7, 4, -1))
"""-1 for a picture: of several sizes, side by side, at both ends; and none."""


def _canvas_processor(spec: ImageSpec, most: int) -> MllamaImageProcessorPil:
    return MllamaImageProcessorPil(
        size={"height": spec.size[0], "width": spec.size[1]},
        max_image_tiles=most,
        resample=spec.resample,
        image_mean=spec.mean,
        image_std=spec.std,
        rescale_factor=spec.rescale,
    )


def _check(twin: TwinPair, beams: int, runner: Runner, **rules: Any) -> None:
    """Asserts that prompts together are continued as `transformers` continues each alone."""
    manifest, spec = unexported(twin).manifest, twin.prepared.image
    most, token = twin.source.configuration.image.most, manifest.images.token_id
    spec = spec.model_copy(update={"tiles": CanvasTiles(most=most)})
    given = {"max_new_tokens": NEW_TOKENS, "num_beams": beams, "num_return_sequences": beams}
    generation = manifest.generation.model_copy(update=given)
    shown, requests, wanted, shapes = iter(SHOWN), [], [], set()
    for prompt in WITH_SHOWN:
        pictures = [next(shown) for _ in range(prompt.count(-1))]
        images = [read_image(encoded(each), ImageLimits(), spec) for each in pictures]
        shapes |= {image.pixels.shape for image in images}
        held, ids = held_images(images), [token if each < 0 else each for each in prompt]
        request = EngineRequest(
            generation,
            prompt_ids=tuple(ids),
            pixels=held.get(PIXELS),
            image_sizes=held.get(IMAGE_SIZES),
        )
        requests.append(RequestValidator(manifest).validate(request))
        inputs: dict[str, Any] = {}
        if pictures:
            values = _canvas_processor(spec, most)([pictures], return_tensors="pt")
            counts = values.pop("num_tiles")
            spans = processing_mllama.get_cross_attention_token_mask(ids, token)
            mask = processing_mllama.convert_sparse_cross_attention_mask_to_dense(
                [spans], counts, most, len(ids)
            )
            inputs = {**values, "cross_attention_mask": torch.from_numpy(mask)}
        output = twin.reference.generate(
            input_ids=torch.tensor([ids]), **inputs, **given, do_sample=False, pad_token_id=0
        )
        wanted.append([row[len(ids) :] for row in output.tolist()])
    assert len(shapes) > 2
    for answer, rows in zip(decode(runner, requests), wanted, strict=True):
        for hypothesis, row in zip(answer.hypotheses, rows, strict=True):
            found = list(hypothesis.token_ids)
            assert found == row[: len(found)]
            assert found
            assert not any(row[len(found) + 1 :])  # padding behind an end token


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("config", ["plain", "odd", "two tiles"])
def test_pictures_of_any_size_are_read_as_transformers_reads_them(
    config: str, beams: int, twins: Twins
) -> None:
    twin = twins("mllama", config)
    _check(twin, beams, TorchRunner(twin.graphs(), unexported(twin).manifest))


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["mllama"])
def test_graphs_read_pictures_of_any_size_in_one_batch(
    name: str, beams: int, twins: Twins, bundles: Bundles
) -> None:
    twin = twins(name, "odd")
    _check(twin, beams, OrtRunner(bundles(name, "odd"), threads=1))


@pytest.mark.parametrize(
    "rules",
    [{"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 1}, {"num_beams": 2}, {"top_k": 3}],
)
def test_an_image_has_no_score_that_a_rule_edits(rules: dict[str, Any], twins: Twins) -> None:
    """`transformers` fails at a penalty of it: the token is behind those that have scores."""
    twin = twins("mllama", "plain")
    manifest = unexported(twin).manifest
    assert manifest.images.token_id == manifest.vocabulary_size == 61
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    options = {"max_new_tokens": 4, "do_sample": "top_k" in rules, **rules}
    generation = manifest.generation.model_copy(update=options)
    request = EngineRequest(generation, prompt_ids=(5, 61, 9, 61), pixels=pixels)
    request = RequestValidator(manifest).validate(request)
    (answer,) = decode(TorchRunner(twin.graphs(), manifest), [request])
    assert max(answer.hypotheses[0].token_ids) < 61
    with pytest.raises(InvalidRequest, match="outside 0 to 61"):
        RequestValidator(manifest).validate(EngineRequest(generation, prompt_ids=(62,)))


@pytest.mark.parametrize(
    "text", ["<image>a", "<image><image>", "a<image> b", "", "a", " <image>", "<image><s>a", "<s>"]
)
def test_first_token_stands_where_the_processor_writes_it(text: str) -> None:
    written = processing_mllama.build_string_from_input(text, "<s>", "<image>")
    assert ImagePlaces(place="<image>", begin="<s>").laid_out(text) == written


def test_published_files_of_llama_are_read() -> None:
    """`config.json` of Llama-3.2-11B-Vision, as far as it decides sizes."""
    scaling = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_type": "llama3"}
    values = {
        "image_token_index": 128256,
        "text_config": {"rope_scaling": scaling, "rope_theta": 500000.0, "model_type": "x"},
        "vision_config": {"image_size": 560, "supported_aspect_ratios": None},
    }
    config = architecture("mllama").read_config(values)
    assert (config.image.positions, config.image.most, config.image.read) == (
        *(1601, 4),
        (3, 7, 15, 23, 30),
    )
    assert (config.gated, len(config.text.layers)) == ((3, 8, 13, 18, 23, 28, 33, 38), 32)
    assert (config.text.layers[0].groups, config.text.positions) == (8, 131072)


def test_a_recipe_of_other_tiles_is_refused(twins: Twins) -> None:
    twin = twins("mllama", "plain")
    recipe = twin.prepared.image.model_copy(update={"tiles": CanvasTiles(most=3)})
    with pytest.raises(CheckpointError, match="max_image_tiles = 3"):
        twin.architecture.graphs(twin.network, recipe)
