"""LLaVA-NeXT: pictures of several sizes in a prompt against `transformers`, in ragged batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

from export.parity.torch_runner import TorchRunner
from inference.bundle.inputs import ImageSpec, Resolutions, TileGrid
from inference.bundle.manifest import Manifest
from inference.engine.codec import PROMPT_IDS, decode_request, encode_request
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.protocol import Runner
from inference.engine.search.request import EngineRequest
from inference.engine.validation import RequestValidator
from inference.errors import InvalidRequest
from inference.generation import Overrides
from inference.processing.prepared_image import PreparedImage, fit_resolution
from inference.tasks.generation.prompt_task import held_images
from tests.export.conftest import Bundles, TwinPair, Twins, pair_of
from tests.export.models.captions import unexported
from tests.export.models.interleaved import assert_left_padded
from tests.export.oracle import difference
from tests.export.twins import make_twin, twin_of
from tests.pictures import noise

IMAGE = 61
NEW_TOKENS = 8
PICTURES = (noise(40, 20), noise(15, 47), noise(33, 30))
PROMPTS: tuple[tuple[int, ...], ...] = ((5, IMAGE, 9, IMAGE, 3), (8, 11, 4), (IMAGE, 6))
"""With two pictures, none and one."""


def _spec(twin: TwinPair, image: ImageSpec) -> ImageSpec:
    """The recipe of pictures, from one of the smallest canvas."""
    grid: TileGrid = twin.source.configuration.grid
    tiles = Resolutions(sizes=twin.source.configuration.resolutions, side=grid.side)
    return image.model_copy(update={"size": (grid.edge, grid.edge), "tiles": tiles})


def _processor(spec: ImageSpec) -> Any:
    assert isinstance(spec.tiles, Resolutions)
    edge = spec.size[0]
    return LlavaNextImageProcessorPil(
        size={"shortest_edge": edge},
        crop_size={"height": edge, "width": edge},
        image_grid_pinpoints=[list(size) for size in spec.tiles.sizes],
        resample=spec.resample,
        image_mean=spec.mean,
        image_std=spec.std,
        rescale_factor=spec.rescale,
    )


def _requests(manifest: Manifest, spec: ImageSpec, beams: int) -> list[EngineRequest]:
    assert isinstance(spec.tiles, Resolutions)
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams}
    )
    pictures = iter(PICTURES)
    requests = []
    for prompt in PROMPTS:
        shown = [next(pictures) for _ in range(prompt.count(IMAGE))]
        images = [PreparedImage(fit_resolution(p, spec, spec.tiles), p.size) for p in shown]
        ids = manifest.images.expanded(prompt, [image.layout.size for image in images])
        tensors = {PROMPT_IDS: np.array(ids), **held_images(images)}
        requests.append(decode_request(encode_request(tensors, Overrides()), rules))
    return requests


def _check(reference: Any, spec: ImageSpec, runner: Runner, given: Sequence[EngineRequest]) -> None:
    """Asserts that the engine generates what `transformers` does with its own processor."""
    inputs = _processor(spec)(list(PICTURES), return_tensors="pt")
    assert_left_padded(reference, runner, given, lambda tokens: inputs)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> TwinPair:
    """With four vectors a tile."""
    folder = tmp_path_factory.mktemp("llava_next")
    vision = twin_of("llava_next").configs["plain"]["vision_config"]
    changes = {
        "vision_config": {**vision, "image_size": 17},
        "image_grid_pinpoints": [[17, 17], [34, 17], [17, 51], [34, 34]],
    }
    return pair_of("llava_next", "plain", folder, make_twin("llava_next", "plain", folder, changes))


@pytest.mark.parametrize("beams", [1, 3])
def test_ragged_prompts_generate_what_a_left_padded_batch_does(beams: int, four: TwinPair) -> None:
    manifest, image = unexported(four).manifest, four.prepared.image
    spec = _spec(four, image)
    given = [RequestValidator(manifest).validate(r) for r in _requests(manifest, spec, beams)]
    assert [request.source_length for request in given] == [14 + 16, 0, 24]
    _check(four.reference, spec, TorchRunner(four.graphs(), manifest), given)


def test_vectors_of_pictures_are_those_of_transformers(four: TwinPair) -> None:
    spec = _spec(four, four.prepared.image)
    assert isinstance(spec.tiles, Resolutions)
    pictures = (*PICTURES, noise(45, 25), noise(50, 8))  # rows are left out, and all of them
    inputs, admit = _processor(spec)(list(pictures), return_tensors="pt"), four.graphs().lowerings
    with torch.no_grad():
        wanted = four.reference.model.get_image_features(**inputs, return_dict=True).pooler_output
        for picture, want in zip(pictures, wanted, strict=True):
            canvas = torch.from_numpy(fit_resolution(picture, spec, spec.tiles))
            (given,) = admit["admit"].module(canvas[None, None])
            assert difference(want, given[0]) < 1e-5, picture.size


@pytest.mark.full
@pytest.mark.parametrize("beams", [1, 3])
def test_graphs_take_pictures_of_several_sizes(beams: int, twins: Twins, bundles: Bundles) -> None:
    twin, bundle = twins("llava_next", "odd"), bundles("llava_next", "odd")
    spec = _spec(twin, twin.prepared.image)
    given = _requests(bundle.manifest, spec, beams)
    given = [RequestValidator(bundle.manifest).validate(request) for request in given]
    _check(twin.reference, spec, OrtRunner(bundle, threads=1), given)


def test_tokens_of_a_picture_are_those_that_the_processor_writes(four: TwinPair) -> None:
    spec = _spec(four, four.prepared.image)
    assert isinstance(spec.tiles, Resolutions)
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({"<s>": 0, "<image>": 1}, unk_token="<s>"))
    processor = LlavaNextProcessor(
        _processor(spec),
        PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<s>"),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    sizes = [(5, 9), (2, 40), (40, 2), (33, 91), (200, 12), (64, 48), (17, 17)]
    for size in (*sizes, *(picture.size for picture in PICTURES)):
        picture: Image.Image = noise(*size)
        wanted = processor._get_number_of_features(picture.height, picture.width, 17, 17) - 1
        canvas = fit_resolution(picture, spec, spec.tiles)
        assert four.source.configuration.grid.tokens(*canvas.shape[:2]) == wanted, size


@pytest.mark.parametrize(
    "sizes", [[(34, 17)], [(33, 17), (34, 17)], [(0, 0), (34, 17)], [(90, 17), (34, 17)]]
)
def test_engine_refuses_sizes_that_are_no_canvas(
    sizes: list[tuple[int, int]], four: TwinPair
) -> None:
    manifest = unexported(four).manifest
    assert manifest.generation is not None
    pixels, ids = np.zeros((2, 34, 17, 3), np.uint8), (*[IMAGE] * 20, 5)
    validator = RequestValidator(manifest)
    whole = EngineRequest(manifest.generation, pixels=pixels, prompt_ids=ids)
    assert validator.validate(whole).source_length == 20
    given = EngineRequest(
        manifest.generation, pixels=pixels, image_sizes=np.array(sizes), prompt_ids=ids
    )
    with pytest.raises(InvalidRequest, match=r"image_sizes|places for images"):
        validator.validate(given)
