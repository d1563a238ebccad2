"""Qwen2-VL: pictures of any size in a prompt against `transformers`, in ragged batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from export.checkpoint.checkpoint import Checkpoint
from export.decoder_graphs.image_tokens import axis_positions, image_places
from export.graphs.source_model import SourceModel
from export.parity.torch_runner import TorchRunner
from export.registry import architecture
from inference.bundle.inputs import ImageSpec, PatchGrid, PixelRange
from inference.bundle.manifest import Manifest
from inference.engine.codec import PROMPT_IDS, decode_request, encode_request
from inference.engine.engine import EngineCore, decode, final_result
from inference.engine.request import EngineRequest, RequestValidator
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.protocol import Runner
from inference.engine.scheduler import Capacity
from inference.errors import InvalidRequest
from inference.generation import Overrides
from inference.processing.image import ImageLimits
from inference.processing.prepared_image import read_image
from inference.tasks.generation.prompt_task import held_images
from tests.export.conftest import Bundles, TwinPair, Twins
from tests.export.models.captions import unexported
from tests.export.models.interleaved import assert_left_padded
from tests.export.oracle import difference
from tests.inference.engine.fake_runner import run_staggered
from tests.pictures import encoded, noise

IMAGE = 61
NEW_TOKENS = 8
NAMES = ["qwen2_vl", "qwen2_5_vl"]
PICTURES = (noise(40, 20), noise(15, 47), noise(33, 30))
PROMPTS: tuple[tuple[int, ...], ...] = ((5, IMAGE, 9, IMAGE, 3), (8, 11, 4), (IMAGE, 6))
"""With two pictures, none and one."""


def _spec(twin: TwinPair) -> ImageSpec:
    """The recipe of pictures of many sizes, from one of the smallest."""
    edge = twin.source.configuration.tower.grid.edge
    pixels = PixelRange(multiple=edge, least=2 * edge**2, most=14 * edge**2)
    return twin.prepared.image.model_copy(update={"pixels": pixels})


def _processor(twin: TwinPair) -> Any:
    spec, tower = _spec(twin), twin.source.configuration.tower
    return Qwen2VLImageProcessorPil(
        min_pixels=spec.pixels.least,
        max_pixels=spec.pixels.most,
        patch_size=tower.patch,
        merge_size=tower.merge,
        temporal_patch_size=tower.frames,
        resample=spec.resample,
        image_mean=spec.mean,
        image_std=spec.std,
        rescale_factor=spec.rescale,
    )


def _requests(twin: TwinPair, manifest: Manifest, beams: int) -> list[EngineRequest]:
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams}
    )
    pictures, spec, requests = iter(PICTURES), _spec(twin), []
    for prompt in PROMPTS:
        shown = [encoded(next(pictures)) for _ in range(prompt.count(IMAGE))]
        images = [read_image(picture, ImageLimits(), spec) for picture in shown]
        ids = manifest.images.expanded(prompt, [image.layout.size for image in images])
        tensors = {PROMPT_IDS: np.array(ids), **held_images(images)}
        request = decode_request(encode_request(tensors, Overrides()), rules)
        requests.append(RequestValidator(manifest).validate(request))
    return requests


def _check(twin: TwinPair, runner: Runner, given: Sequence[EngineRequest]) -> None:
    """Asserts that the engine generates what `transformers` does with its own processor."""
    inputs = _processor(twin)(list(PICTURES), return_tensors="pt")
    assert_left_padded(
        twin.reference,
        runner,
        given,
        lambda tokens: {"mm_token_type_ids": (tokens == IMAGE).int(), **inputs},
    )


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_ragged_prompts_generate_what_a_left_padded_batch_does(
    name: str, beams: int, twins: Twins
) -> None:
    twin = twins(name, "odd")
    manifest = unexported(twin).manifest
    given = _requests(twin, manifest, beams)
    assert [request.source_length for request in given] == [2 * 4 + 5 * 2, 0, 3 * 3]
    _check(twin, TorchRunner(twin.graphs(), manifest), given)


@pytest.mark.full
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_graphs_take_pictures_of_several_sizes(
    name: str, beams: int, twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins(name, "odd"), bundles(name, "odd")
    _check(twin, OrtRunner(bundle, threads=1), _requests(twin, bundle.manifest, beams))


@pytest.mark.parametrize("name", NAMES)
def test_vectors_of_pictures_are_those_of_transformers(name: str, twins: Twins) -> None:
    twin = twins(name, "odd")
    admit = twin.graphs().lowerings["admit"].module
    pictures = (*PICTURES, noise(45, 25), noise(90, 8), noise(10, 10))
    inputs = _processor(twin)(list(pictures), return_tensors="pt")
    with torch.no_grad():
        wanted = twin.reference.model.get_image_features(**inputs, return_dict=True).pooler_output
        for picture, want in zip(pictures, wanted, strict=True):
            pixels = read_image(encoded(picture), ImageLimits(), _spec(twin)).pixels
            given, _ = admit(torch.tensor(pixels)[None, None])
            assert difference(want, given[0]) < 1e-5, picture.size


def _read(sizes: Sequence[tuple[int, int]], tokens: torch.Tensor, chunk: int) -> torch.Tensor:
    """(3, T): positions of a row's tokens, read in chunks.

    Args:
        sizes: Rows and columns of each image's vectors.
    """
    places = torch.cat([image_places(*size) for size in sizes])[None]
    seen, found = torch.zeros(1, 1).long(), []
    for start in range(0, tokens.shape[1], chunk):
        part = tokens[:, start : start + chunk]
        passed = seen + (part == IMAGE).long().cumsum(-1)
        is_image = (part == IMAGE) & (passed <= places.shape[1])
        positions = torch.arange(start, start + part.shape[1])[None]
        source = torch.tensor([places.shape[1]], dtype=torch.int32)
        found.append(axis_positions(positions, passed, is_image[..., None], source, places))
        seen = passed[:, -1:]
    return torch.cat(found, dim=-1)[:, 0]


@pytest.mark.parametrize("chunk", [1, 4, 99])
def test_positions_are_those_of_transformers_wherever_a_chunk_ends(
    chunk: int, twins: Twins
) -> None:
    sizes = [(2, 3), (4, 1), (1, 1), (1, 5)]
    prompt = [3]
    for rows, columns in sizes:
        prompt += [*[IMAGE] * (rows * columns), 5, 6]
    tokens = torch.tensor([prompt])
    grids = torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in sizes])
    model = twins("qwen2_vl", "odd").reference.model
    wanted, delta = model.get_rope_index(tokens, (tokens == IMAGE).int(), grids)
    answer = torch.tensor([[7, IMAGE, 8]])  # a generated token of an image is a word
    behind = delta + tokens.shape[1] + torch.arange(3)
    found = _read(sizes, torch.cat([tokens, answer], dim=1), chunk)
    assert found[:, :-3].tolist() == wanted[:, 0].tolist()
    assert found[:, -3:].tolist() == behind.expand(3, -1).tolist()


def test_neighbours_are_two_images() -> None:
    """`transformers` takes them for one, and fails."""
    found = _read([(2, 3), (1, 2)], torch.tensor([[IMAGE] * 8 + [5]]), 99)
    assert found.tolist() == [
        [*[0] * 6, 3, 3, 5],
        [0, 0, 0, 1, 1, 1, 3, 3, 5],
        [0, 1, 2, 0, 1, 2, 3, 4, 5],
    ]


def test_an_answer_directly_behind_an_image_is_that_without_a_cache(twins: Twins) -> None:
    """With one, `transformers` continues each axis by itself where the prompt ends in an image."""
    twin = twins("qwen2_vl", "odd")
    manifest = unexported(twin).manifest
    (two, *_) = _requests(twin, manifest, 1)
    rules = two.rules.model_copy(update={"bad_words_ids": ((IMAGE,),)})  # it would need pixels
    request = replace(two, prompt_ids=two.prompt_ids[:-1], rules=rules)
    (found,) = decode(TorchRunner(twin.graphs(), manifest), [request])
    inputs = _processor(twin)(list(PICTURES[:2]), return_tensors="pt")
    tokens, kinds = list(request.prompt_ids), [int(t == IMAGE) for t in request.prompt_ids]
    for token in found.best.token_ids:
        twin.reference.model.rope_deltas = None
        with torch.no_grad():
            logits = twin.reference(
                input_ids=torch.tensor([tokens]),
                mm_token_type_ids=torch.tensor([kinds]),
                **inputs,
                use_cache=False,
            ).logits
        logits[..., IMAGE] = -torch.inf
        assert token == int(logits[0, -1].argmax())
        tokens.append(token)
        kinds.append(0)
    assert len(tokens) == len(request.prompt_ids) + NEW_TOKENS


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_sequence_goes_on_at_its_position(name: str, twins: Twins) -> None:
    """Behind an image that is not the place of its next token."""
    twin = twins(name, "odd")
    manifest = unexported(twin).manifest
    _check_lost(TorchRunner(twin.graphs(), manifest), _requests(twin, manifest, 1))


def _check_lost(runner: Runner, asked: Sequence[EngineRequest]) -> None:
    """Asserts that sequences go on with their tokens as if they had not been lost."""
    whole = [one.best.token_ids for one in decode(runner, asked)]
    for cut in (1, 3):
        lost = [
            replace(each, rules=each.rules.with_overrides(Overrides(generated_ids=tokens[:cut])))
            for each, tokens in zip(asked, whole, strict=True)
        ]
        assert [one.best.token_ids for one in decode(runner, lost)] == [t[cut:] for t in whole]


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_shared_prefixes_chunks_and_losses_change_no_token(
    name: str, twins: Twins, bundles: Bundles
) -> None:
    def outcome(core: EngineCore, request: EngineRequest) -> tuple[int, ...]:
        (events,) = run_staggered(core, [request], [0])
        return tuple(final_result(events).hypotheses[0].token_ids)

    twin, bundle = twins(name, "odd"), bundles(name, "odd")
    runner = OrtRunner(bundle, threads=1)
    two, none, _ = _requests(twin, bundle.manifest, 1)
    more = replace(two, prompt_ids=(*two.prompt_ids, 7, 7))
    for chunk in (3, 64):
        core = EngineCore(
            runner,
            Capacity(prefix_block_tokens=2, prefix_min_tokens=2, chunk_tokens=chunk),
        )
        prompt = len(two.prompt_ids)
        for request, shared in ((two, 0), (more, prompt), (none, 0), (two, prompt - 1)):
            before = core.metrics.prefix_tokens
            alone = EngineCore(runner, Capacity(prefix_bytes=0))
            assert outcome(core, request) == outcome(alone, request)
            assert core.metrics.prefix_tokens - before == shared
    _check_lost(runner, _requests(twin, bundle.manifest, 1))
    runner.close()


@pytest.mark.parametrize("sizes", [[(40, 20)], [(41, 20), (40, 30)], [(0, 0), (40, 30)]])
def test_engine_refuses_sizes_that_are_not_of_whole_squares(
    sizes: list[tuple[int, int]], twins: Twins
) -> None:
    manifest = unexported(twins("qwen2_vl", "odd")).manifest
    assert manifest.generation is not None
    pixels, validator = np.zeros((2, 40, 30, 3), np.uint8), RequestValidator(manifest)
    request = partial(EngineRequest, manifest.generation, pixels=pixels)
    whole = request(prompt_ids=(*[IMAGE] * 24, 5))
    assert validator.validate(whole).source_length == 24
    small = request(prompt_ids=(*[IMAGE] * 10, 5), image_sizes=np.array([(40, 20), (10, 20)]))
    assert validator.validate(small).source_length == 10
    with pytest.raises(InvalidRequest, match=r"image_sizes|places for images"):
        validator.validate(request(prompt_ids=(*[IMAGE] * 20, 5), image_sizes=np.array(sizes)))


def test_squares_of_an_image_are_its_tokens() -> None:
    grid = PatchGrid(edge=28)
    assert [grid.tokens(*size) for size in ((56, 84), (28, 28), (57, 56), (56, 30))] == [6, 1, 0, 0]


def _published(name: str) -> str:
    """A tensor's name in files of the first version of `transformers` that had the model."""
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


def _newer(name: str) -> str:
    if name.startswith(("model.visual.", "model.language_model.", "lm_head")):
        return name
    return f"model.{name}" if name.startswith("visual.") else f"model.language_model.{name[6:]}"


@pytest.mark.parametrize("names", [_published, _newer])
@pytest.mark.parametrize("name", NAMES)
def test_files_of_other_versions_have_other_names(
    name: str, names: Any, twins: Twins, tmp_path: Path
) -> None:
    twin = twins(name, "odd")
    weights = load_file(twin.checkpoint.folder / "model.safetensors")
    save_file({names(key): value for key, value in weights.items()}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path, "renamed", twin.checkpoint.config)
    network = SourceModel(checkpoint, twin.architecture).network
    for key, tensor in twin.network.state_dict().items():
        assert difference(tensor, network.state_dict()[key]) == 0, key


PUBLISHED = {
    "qwen2_vl": {"embed_dim": 1280, "hidden_size": 1536, "mlp_ratio": 4},
    "qwen2_5_vl": {
        "hidden_size": 1280,
        "out_hidden_size": 1536,
        "intermediate_size": 3420,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
    },
}
"""Of `vision_config`, beside what all have."""


@pytest.mark.parametrize("name", NAMES)
def test_published_files_have_the_language_model_at_the_top(name: str) -> None:
    """`config.json` of Qwen2-VL-2B-Instruct, of which the two differ in the tower alone."""
    vision = {"depth": 32, "num_heads": 16, "in_chans": 3, "patch_size": 14}
    vision |= {"spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2}
    values = {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": True,
        "vocab_size": 151936,
        "image_token_id": 151655,
        "video_token_id": 151656,
        "vision_config": {**vision, **PUBLISHED[name]},
    }
    config = architecture(name).read_config(json.loads(json.dumps(values)))
    heads = config.text.layers[0]
    assert (heads.rotary.sections, heads.rotary.base) == ((16, 24, 24), 1e6)
    assert (config.text.has_tied_output, config.text.positions, heads.window) == (True, 32768, None)
    assert (config.tower.grid.edge, config.image, config.tower.blocks.width) == (28, (56, 56), 1280)
    if name == "qwen2_5_vl":
        assert (config.tower.window, config.tower.whole) == (4, {7, 15, 23, 31})
