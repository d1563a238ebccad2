"""InternVL: tiles of pictures of any size in a prompt against `transformers`' own processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.internvl.processing_internvl import InternVLProcessor

from export.checkpoint.checkpoint import Checkpoint
from export.parity.torch_runner import TorchRunner
from export.registry import architecture
from inference.bundle.inputs import AspectTiles, ImageSpec
from inference.engine.request import EngineRequest, RequestValidator
from inference.errors import CheckpointError
from inference.processing.image import ImageLimits
from inference.processing.prepared_image import PreparedImage, read_image
from inference.tasks.generation.image_places import ImagePlaces
from tests.export.conftest import TwinPair, Twins
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
