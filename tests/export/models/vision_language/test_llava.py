"""LLaVA and LLaVA-NeXT: images as tokens of a prompt."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import partial
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

from export.checkpoint.checkpoint import Checkpoint
from export.graphs.source_model import SourceModel
from export.models.vision_language.llava import CanvasReader
from export.parity.graph_runs import bundle_path, onnx_run
from export.parity.judge import TOLERANCE
from export.parity.parity_inputs import Admitted, Run, StepLoop
from export.parity.torch_runner import TorchRunner
from export.registry import architecture
from export.tokenizer.prompt_images import image_tokens
from inference.bundle.inputs import ImageSpec, PromptImages, Resolutions, TileGrid
from inference.bundle.manifest import Bundle, Manifest
from inference.engine.codec import PROMPT_IDS, decode_request, encode_request
from inference.engine.request import EngineRequest, RequestValidator
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.protocol import Runner
from inference.errors import CheckpointError, InvalidRequest
from inference.generation import Overrides
from inference.processing.prepared_image import (
    PreparedImage,
    fit_resolution,
    fit_square,
    seen_together,
)
from inference.tasks.generation.prompt_task import held_images
from tests.export.conftest import Bundles, TwinPair, Twins, pair_of
from tests.export.models.captions import unexported
from tests.export.models.interleaved import assert_left_padded, normalised, types_of_tokens
from tests.export.oracle import difference
from tests.export.twins import make_twin, twin_of
from tests.pictures import noise

IMAGE = 61
NEW_TOKENS = 8
PROMPTS = (
    (5, 7, *[IMAGE] * 4, 9, *[IMAGE] * 4, 3, 12),
    (8, 11, 4),
    (*[IMAGE] * 4, 6),
)
"""With two images, none and one."""
INSTRUCTIONS = ((9, 4, 5, 6), (1,), (7, 7))
"""Of each, where images are read for one."""


def _requests(twin: TwinPair, beams: int) -> list[EngineRequest]:
    name = twin.architecture.name
    manifest, random = unexported(twin).manifest, np.random.default_rng(4)
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams}
    )
    requests = []
    for prompt in PROMPTS:
        shape = (prompt.count(IMAGE) // 4, *manifest.image.shape)
        pixels = random.integers(0, 256, shape, dtype=np.uint8) if shape[0] else None
        asked = np.array(INSTRUCTIONS[len(requests)]) if name == "instructblip" else None
        requests.append(EngineRequest(rules, asked, pixels, prompt_ids=prompt))
    return requests


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llava", "odd"),
        ("llava", "mistral"),
        ("blip-2", "odd"),
        ("instructblip", "odd"),
        ("paligemma", "odd"),
        ("paligemma", "gemma2"),
        ("gemma3", "odd"),
        ("gemma3", "wide window, untied"),
    ],
)
def test_ragged_prompts_generate_what_a_left_padded_batch_does(
    name: str, config: str, beams: int, twins: Twins
) -> None:
    twin = twins(name, config)
    requests = _requests(twin, beams)
    image = twin.prepared.image
    given = [
        normalised(torch.from_numpy(r.pixels), image) for r in requests if r.pixels is not None
    ]
    inputs = {"pixel_values": torch.cat(given), **_instructed(requests)}
    runner = TorchRunner(twin.graphs(), unexported(twin).manifest)
    assert_left_padded(
        twin.reference, runner, requests, lambda tokens: {**inputs, **types_of_tokens(twin, tokens)}
    )


def _instructed(requests: list[EngineRequest]) -> dict[str, torch.Tensor]:
    """The instruction of each image, as `transformers` takes them; {} where images have none."""
    of_images = [r.source_ids for r in requests if r.pixels is not None for _ in r.pixels]
    rows = [torch.from_numpy(ids) for ids in of_images if ids is not None]
    if not rows:
        return {}
    masks = [torch.ones_like(row) for row in rows]
    padded, mask = (
        torch.nn.utils.rnn.pad_sequence(each, batch_first=True) for each in (rows, masks)
    )
    return {"qformer_input_ids": padded, "qformer_attention_mask": mask}


def _run(bundle: Bundle) -> Run:
    keys = ("admit", "step")
    return onnx_run(
        {key: onnxruntime.InferenceSession(str(bundle_path(bundle, key))) for key in keys}
    )


@pytest.mark.parametrize("chunks", [(13,), (4, 3, 6), (1,) * 13])
def test_a_chunk_may_end_within_an_image(
    chunks: tuple[int, ...], twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins("llava", "odd"), bundles("llava", "odd")
    pixels, image = _requests(twin, 1)[0].pixels, twin.prepared.image
    tokens = np.array([PROMPTS[0]])
    with torch.no_grad():
        values = normalised(torch.from_numpy(pixels), image)
        want = twin.reference(torch.from_numpy(tokens), values).logits[0]  # (T, V)
    run = _run(bundle)
    outputs, states = run("admit", {"pixels": pixels[None]}), bundle.manifest.states
    admitted = Admitted(outputs, np.array([8], np.int32), states)
    call, end = StepLoop(run, bundle.manifest, admitted, room=20), 0
    for chunk in chunks:
        start, end = end, end + chunk
        logits = call(tokens[:, start:end], np.array([end], np.int32), chunk)
        assert difference(want[end - 1], torch.from_numpy(logits[0])) < TOLERANCE, end


def test_a_token_that_stands_for_no_image_is_an_ordinary_one(
    twins: Twins, bundles: Bundles
) -> None:
    """A model may generate it; `transformers` replaces embeddings where pixels come."""
    bundle, tokens = bundles("llava", "odd"), np.array([[5, IMAGE, 9, IMAGE]])
    with torch.no_grad():
        want = twins("llava", "odd").reference(torch.from_numpy(tokens)).logits[0, -1]
    states = bundle.manifest.states
    vectors = {"image_vectors": np.ones((1, 16, 30), np.float32)}
    admitted = Admitted(vectors, np.array([0], np.int32), states)
    logits = StepLoop(_run(bundle), bundle.manifest, admitted, room=8)(tokens, np.array([4], "i4"))
    assert difference(want, torch.from_numpy(logits[0])) < TOLERANCE


def test_engine_refuses_other_than_the_tokens_of_each_image(twins: Twins) -> None:
    twin = twins("llava", "odd")
    validator = RequestValidator(unexported(twin).manifest)
    two, none, one = _requests(twin, 1)
    assert [validator.validate(each).source_length for each in (two, none, one)] == [8, 0, 4]
    for prompt, pixels in (((IMAGE,), one.pixels), ((IMAGE,) * 4, two.pixels), ((5,), one.pixels)):
        with pytest.raises(InvalidRequest, match="images of 4 tokens"):
            validator.validate(EngineRequest(one.rules, prompt_ids=prompt, pixels=pixels))


def test_ids_hold_a_token_for_each_image_until_they_are_expanded() -> None:
    images = PromptImages(positions=3, token_id=9, tokens=3)
    assert images.expanded([1, 9, 2, 9, 9]) == [1, 9, 9, 9, 2, *[9] * 6]
    assert PromptImages(positions=3, token_id=9).expanded([1, 9, 9]) == [1, 9, 9]


NAMES = {
    "published": lambda name: name.replace("vision_tower.", "vision_tower.vision_model."),
    "newer": lambda name: (
        "lm_head.weight"
        if name == "language_model.lm_head.weight"
        else f"model.{name.replace('language_model.model.', 'language_model.')}"
    ),
}
"""Of tensors, from those that `transformers` saves today."""


@pytest.mark.parametrize("names", NAMES)
def test_files_of_other_versions_have_other_names(names: str, twins: Twins, tmp_path: Path) -> None:
    twin = twins("llava", "odd")
    weights = load_file(twin.checkpoint.folder / "model.safetensors")
    save_file({NAMES[names](n): t for n, t in weights.items()}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path, "renamed", twin.checkpoint.config)
    network = SourceModel(checkpoint, twin.architecture).network
    for name, tensor in twin.network.state_dict().items():
        assert difference(tensor, network.state_dict()[name]) == 0, name


def test_place_of_an_image_is_the_text_of_its_token(twins: Twins, tmp_path: Path) -> None:
    network = twins("llava", "odd").network
    added = [{"content": "<s>", "id": 1}, {"content": "<picture>", "id": IMAGE}]
    for tokens in (added, added[:1]):
        (tmp_path / "tokenizer.json").write_text(
            json.dumps({"model": {"vocab": {"<s>": 1}}, "added_tokens": tokens})
        )
        checkpoint = Checkpoint(tmp_path, "x", {})
        if len(tokens) == 2:
            assert image_tokens(network, checkpoint) == {"images": {"place": "<picture>"}}
    with pytest.raises(CheckpointError, match="no token of id 61"):
        image_tokens(network, Checkpoint(tmp_path, "x", {}))


def test_an_image_that_fills_the_models_positions_is_refused(tmp_path: Path) -> None:
    values = copy.deepcopy(dict(twin_of("llava").configs["plain"]))
    values["text_config"]["max_position_embeddings"] = 4
    reference = make_twin("llava", "plain", tmp_path, values)
    twin = pair_of("llava", "plain", tmp_path, reference)
    with pytest.raises(CheckpointError, match=r"an image takes 4 tokens .* reads 4 in all"):
        unexported(twin)


def test_published_files_leave_the_language_models_sizes_out() -> None:
    """`text_config` of llava-1.5-7b-hf."""
    section = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}
    vision = {"hidden_size": 1024, "image_size": 336, "patch_size": 14, "num_hidden_layers": 24}
    vision |= {"intermediate_size": 4096, "num_attention_heads": 16}
    values = {"text_config": section, "vision_config": vision, "image_token_index": 32000}
    config = architecture("llava").read_config(values)
    assert (config.text.width, config.text.mlp_width, len(config.text.layers)) == (4096, 11008, 32)
    assert (config.image.tokens, config.image.layers, config.image_token) == (576, (23,), 32000)


PICTURES = (noise(40, 20), noise(15, 47), noise(33, 30))
LLAVA_NEXT_PROMPTS: tuple[tuple[int, ...], ...] = ((5, IMAGE, 9, IMAGE, 3), (8, 11, 4), (IMAGE, 6))
"""With two pictures, none and one."""


def _spec(twin: TwinPair, image: ImageSpec) -> ImageSpec:
    """The recipe of pictures, from one of the smallest canvas."""
    grid: TileGrid = twin.source.configuration.grid
    background = tuple(int(value * 255) for value in image.mean) if grid.most else None
    tiles = Resolutions(
        sizes=twin.source.configuration.resolutions, side=grid.side, background=background
    )
    return image.model_copy(update={"size": (grid.edge, grid.edge), "tiles": tiles})


def _processor(name: str, spec: ImageSpec) -> Any:
    assert isinstance(spec.tiles, Resolutions)
    edge = spec.size[0]
    square = {"height": edge, "width": edge}
    fields: dict[str, Any] = {"size": square}
    kind: Any = LlavaOnevisionImageProcessorPil
    if name == "llava_next":
        kind, fields = LlavaNextImageProcessorPil, {"size": {"shortest_edge": edge}}
        fields["crop_size"] = square
    return kind(
        **fields,
        image_grid_pinpoints=[list(size) for size in spec.tiles.sizes],
        resample=spec.resample,
        image_mean=spec.mean,
        image_std=spec.std,
        rescale_factor=spec.rescale,
    )


def _requests_llava_next(manifest: Manifest, spec: ImageSpec, beams: int) -> list[EngineRequest]:
    assert isinstance(spec.tiles, Resolutions)
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams}
    )
    pictures = iter(PICTURES)
    requests = []
    for prompt in LLAVA_NEXT_PROMPTS:
        shown = [next(pictures) for _ in range(prompt.count(IMAGE))]
        images = [PreparedImage(fit_resolution(p, spec, spec.tiles), p.size) for p in shown]
        ids = manifest.images.expanded(prompt, [image.layout.size for image in images])
        tensors = {PROMPT_IDS: np.array(ids), **held_images(images)}
        requests.append(decode_request(encode_request(tensors, Overrides()), rules))
    return requests


def _check(twin: TwinPair, spec: ImageSpec, runner: Runner, given: Sequence[EngineRequest]) -> None:
    """Asserts that the engine generates what `transformers` does with its own processor."""
    inputs = dict(_processor(twin.architecture.name, spec)(list(PICTURES), return_tensors="pt"))
    inputs.pop("batch_num_images", None)  # of which each image has its own
    assert_left_padded(twin.reference, runner, given, lambda tokens: inputs)


TILED = {"llava_next": [14 + 16, 0, 24], "llava_onevision": [7 + 8, 0, 10]}
"""Tokens of the images of each prompt."""


@pytest.fixture(scope="module", params=TILED)
def four(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> TwinPair:
    """With four vectors a tile."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    vision = twin_of(name).configs["plain"]["vision_config"]
    changes = {
        "vision_config": {**vision, "image_size": 17},
        "image_grid_pinpoints": [[17, 17], [34, 17], [17, 51], [34, 34]],
    }
    if name == "llava_onevision":
        changes["vision_aspect_ratio"] = "anyres_max_1"
    return pair_of(name, "plain", folder, make_twin(name, "plain", folder, changes))


@pytest.mark.parametrize("beams", [1, 3])
def test_llava_next_ragged_prompts_generate_what_a_left_padded_batch_does(
    beams: int, four: TwinPair
) -> None:
    manifest, image = unexported(four).manifest, four.prepared.image
    spec = _spec(four, image)
    given = [
        RequestValidator(manifest).validate(r) for r in _requests_llava_next(manifest, spec, beams)
    ]
    assert [request.source_length for request in given] == TILED[four.architecture.name]
    _check(four, spec, TorchRunner(four.graphs(), manifest), given)


def test_vectors_of_pictures_are_those_of_transformers(four: TwinPair) -> None:
    spec = _spec(four, four.prepared.image)
    assert isinstance(spec.tiles, Resolutions)
    pictures = (*PICTURES, noise(45, 25), noise(50, 8))  # rows are left out, and all of them
    inputs = dict(_processor(four.architecture.name, spec)(list(pictures), return_tensors="pt"))
    inputs.pop("batch_num_images", None)
    admit = four.graphs().lowerings
    with torch.no_grad():
        wanted = four.reference.model.get_image_features(**inputs, return_dict=True).pooler_output
        for picture, want in zip(pictures, wanted, strict=True):
            canvas = torch.from_numpy(fit_resolution(picture, spec, spec.tiles))
            (given,) = admit["admit"].module(canvas[None, None])
            assert difference(want, given[0]) < 1e-5, picture.size


def test_pictures_of_one_prompt_are_one_tile_each(tmp_path: Path) -> None:
    name = "llava_onevision"
    twin = pair_of(name, "odd", tmp_path, make_twin(name, "odd", tmp_path))
    spec, shown = _spec(twin, twin.prepared.image), [noise(33, 17), noise(6, 21)]
    inputs = dict(_processor(name, spec)([shown], return_tensors="pt"))
    prepared = [
        PreparedImage(np.zeros(0), each.size, undivided=partial(fit_square, each, spec))
        for each in shown
    ]
    pixels = torch.from_numpy(held_images(seen_together(prepared))["pixels"])
    assert seen_together(prepared[:1]) == prepared[:1]
    with torch.no_grad():
        wanted = twin.reference.model.get_image_features(**inputs, return_dict=True).pooler_output
        found = twin.graphs().lowerings["admit"].module(pixels[None])[0]
    assert len(wanted[0]) == unexported(twin).manifest.images.tokens_of(*pixels.shape[1:3])
    assert difference(torch.cat(wanted)[None], found) < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", TILED)
def test_graphs_take_pictures_of_several_sizes(
    name: str, beams: int, twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins(name, "odd"), bundles(name, "odd")
    spec = _spec(twin, twin.prepared.image)
    given = _requests_llava_next(bundle.manifest, spec, beams)
    given = [RequestValidator(bundle.manifest).validate(request) for request in given]
    _check(twin, spec, OrtRunner(bundle, threads=1), given)


class _OneVision(LlavaOnevisionProcessor):
    """Without the processor of videos, which needs torchvision."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
        if name != "video_processor":
            super().check_argument_for_proper_class(name, argument)


@pytest.mark.parametrize("side", [1, 3, 5, 7, 27])
def test_a_shrunk_grid_is_that_of_transformers(side: int) -> None:
    """Its size follows from quotients in floating point, some of which are rounded down."""
    grid, is_down = TileGrid(edge=64, side=side, most=9), False
    reader = CanvasReader(grid, [(6 * 64, 6 * 64)])
    for rows, columns in product(range(1, 7), repeat=2):
        given = torch.randn(1, rows * side, columns * side, 2).double()
        ratio = sqrt(rows * columns * side**2 / (9 * side**2))
        size = [int(rows * side // ratio), int(columns * side // ratio)]
        wanted = given
        if ratio > 1.1:
            channels = given.permute(0, 3, 1, 2)
            resized = torch.nn.functional.interpolate(channels, size, mode="bilinear")
            wanted = resized.permute(0, 2, 3, 1)
            is_down |= rows == columns and size[0] < 3 * side
        end = torch.ones(1, wanted.shape[1], 1, 2)
        tiles = given.unflatten(1, (rows, side)).unflatten(3, (columns, side)).transpose(2, 3)
        table = torch.cat([tiles.reshape(1, -1, 2), torch.ones(1, 1, 2)], dim=1)
        found = reader(table, torch.tensor([64 * (rows + 1), 64 * columns]))
        wanted = torch.cat([wanted, end], dim=2)
        assert difference(wanted.flatten(1, 2), found) < 1e-9, (rows, columns)
        tokens = side**2 + found.shape[1]
        assert grid.tokens(64 * (rows + 1), 64 * columns) == tokens
    assert is_down


def test_tokens_of_a_picture_are_those_that_the_processor_writes(four: TwinPair) -> None:
    spec = _spec(four, four.prepared.image)
    assert isinstance(spec.tiles, Resolutions)
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({"<s>": 0, "<image>": 1}, unk_token="<s>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<s>")
    recipe = _processor(four.architecture.name, spec)
    processor: Any = LlavaNextProcessor(
        recipe,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    if four.architecture.name == "llava_onevision":
        processor = _OneVision(
            recipe, tokenizer, num_image_tokens=4, vision_aspect_ratio="anyres_max_1"
        )
    sizes = [(5, 9), (2, 40), (40, 2), (33, 91), (200, 12), (64, 48), (17, 17)]
    for size in (*sizes, *(picture.size for picture in PICTURES)):
        picture: Image.Image = noise(*size)
        wanted = processor._get_number_of_features(picture.height, picture.width, 17, 17)
        wanted -= isinstance(processor, LlavaNextProcessor)  # the class token
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
