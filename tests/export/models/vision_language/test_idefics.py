"""Idefics, Idefics2, Idefics3 and SmolVLM: prompts with images between the words."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionEmbeddings
from transformers.models.idefics2.processing_idefics2 import Idefics2Processor
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionEmbeddings
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

from export.checkpoint.checkpoint import Checkpoint
from export.models.vision_language.idefics3 import row_bounds, trained_rows
from export.parity.torch_runner import TorchRunner
from export.registry import architecture
from export.tokenizer.prompt_images import IMAGE_TOKEN, image_places
from inference.engine.request import EngineRequest, RequestValidator
from inference.errors import CheckpointError, InvalidRequest
from inference.tasks.generation.image_places import ImagePlaces
from tests.export.conftest import TwinPair, Twins
from tests.export.models.captions import unexported
from tests.export.models.interleaved import (
    assert_left_padded,
    image_mask,
    normalised,
    prompt_images,
)
from tests.export.sources import interleaved
from tests.export.twins import twin_of
from tests.inference.tasks.test_generation import Recorder, Written

PROMPTS = (9, 4, 1, 7)
NEW_TOKENS = 8


def _requests(twin: TwinPair, beams: int) -> list[EngineRequest]:
    bundle, random = unexported(twin), np.random.default_rng(2)
    rules = bundle.manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams}
    )
    return [EngineRequest(rules, **interleaved(bundle, random, length)) for length in PROMPTS]


def _images(
    twin: TwinPair, requests: list[EngineRequest], tokens: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The images of all prompts as one batch of `transformers`, padded with black ones."""
    image, images = twin.prepared.image, prompt_images(twin)
    most = max(len(r.pixels) for r in requests if r.pixels is not None)
    pixels = np.zeros((len(requests), most, *image.shape), np.uint8)
    for row, request in enumerate(requests):
        if request.pixels is not None:
            pixels[row, : len(request.pixels)] = request.pixels
    return {
        "pixel_values": normalised(torch.from_numpy(pixels), image),
        "image_attention_mask": image_mask(tokens.tolist(), most, images.token_id, 2),
    }


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("config", ["plain", "odd", "resampled, tied"])
def test_ragged_prompts_generate_what_a_left_padded_batch_does(
    config: str, beams: int, twins: Twins
) -> None:
    twin = twins("idefics", config)
    requests = _requests(twin, beams)
    runner = TorchRunner(twin.graphs(), unexported(twin).manifest)
    assert_left_padded(twin.reference, runner, requests, partial(_images, twin, requests))


def _request(twin: TwinPair, ids: tuple[int, ...], images: int, **change: Any) -> EngineRequest:
    manifest = unexported(twin).manifest
    assert manifest.generation is not None
    assert manifest.image is not None
    pixels = np.zeros((images, *manifest.image.shape), np.uint8) if images else None
    return EngineRequest(manifest.generation, **{"prompt_ids": ids, "pixels": pixels, **change})


def test_engine_refuses_other_than_one_image_for_each_place(twins: Twins) -> None:
    twin = twins("idefics", "odd")
    validator = RequestValidator(unexported(twin).manifest)
    assert validator.validate(_request(twin, (61, 5, 61), 2)).source_length == 2 * 5
    assert validator.validate(_request(twin, (5,), 0)).source_length == 0
    for ids, images in (((5,), 1), ((61,), 0), ((61, 61), 1)):
        with pytest.raises(InvalidRequest, match=f"{ids.count(61)} places for images"):
            validator.validate(_request(twin, ids, images))
    with pytest.raises(InvalidRequest, match=r"expected \(images, 32, 32, 3\)"):
        validator.validate(_request(twin, (61,), 0, pixels=np.zeros((32, 32, 3), np.uint8)))
    with pytest.raises(InvalidRequest, match="takes 31"):
        validator.validate(_request(twin, (5,) * 32, 0))


def _folder(folder: Path, *, tokens: tuple[str, ...], **config: Any) -> Checkpoint:
    added = [{"content": text, "id": 60 + place} for place, text in enumerate(tokens)]
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {"<s>": 1}}, "added_tokens": added})
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    values = dict(twin_of("idefics").configs["plain"])
    del values[IMAGE_TOKEN]
    return Checkpoint(folder, "x", values | config)


AROUND, PLACE = "<fake_token_around_image>", "<image>"


def test_id_of_the_image_token_is_the_tokenizers(tmp_path: Path) -> None:
    declared = architecture("idefics")
    checkpoint = _folder(tmp_path, tokens=(AROUND, "<other>", PLACE))
    assert declared.configuration(checkpoint).image_token == 62
    section = image_places(torch.nn.Identity(), checkpoint)
    assert section == {"images": {"place": PLACE, "around": AROUND, "begin": "<s>"}}
    assert declared.configuration(_folder(tmp_path, tokens=(), image_token_id=7)).image_token == 7


def test_tokenizer_without_an_image_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no token <image>"):
        architecture("idefics").configuration(_folder(tmp_path, tokens=(AROUND,)))
    with pytest.raises(CheckpointError, match="no token <fake_token_around_image>"):
        image_places(torch.nn.Identity(), _folder(tmp_path, tokens=(PLACE,)))


IMAGE = 61
TILES = (3, 0, 1)
"""Of each prompt."""


def _prompts(tokens: int) -> list[list[int]]:
    """With three tiles in two groups, none and one, as long as each other in no case."""
    tile = [IMAGE] * tokens
    return [[5, 7, *tile, 8, *tile, 9, *tile, 3, 12], [8, 11, 4], [*tile, 6]]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("config", ["odd", "smolvlm, tied"])
def test_idefics3_ragged_prompts_generate_what_a_left_padded_batch_does(
    config: str, beams: int, twins: Twins
) -> None:
    """`transformers` fills up prompts of fewer tiles with black ones, which it leaves out."""
    twin = twins("idefics3", config)
    manifest, image = unexported(twin).manifest, twin.prepared.image
    prompts = _prompts(manifest.images.tokens)
    pixels = np.random.default_rng(4).integers(0, 256, (3, 3, *image.shape), dtype=np.uint8)
    values = normalised(torch.from_numpy(pixels), image)
    for row, count in enumerate(TILES):
        values[row, count:] = 0
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams}
    )
    requests = [
        EngineRequest(rules, prompt_ids=tuple(ids), pixels=pixels[row, :count] if count else None)
        for row, (ids, count) in enumerate(zip(prompts, TILES, strict=True))
    ]
    runner = TorchRunner(twin.graphs(), unexported(twin).manifest)
    assert_left_padded(twin.reference, runner, requests, lambda tokens: {"pixel_values": values})


@pytest.mark.parametrize("side", [4, 19, 25, 38])
def test_patches_of_a_tile_read_the_positions_that_rounding_gives(side: int) -> None:
    """Rows of 19, 25 and 38 patches do not read each its own position."""
    config = Idefics3VisionConfig(image_size=side, patch_size=1, hidden_size=4, num_channels=1)
    embeddings = Idefics3VisionEmbeddings(config)
    with torch.no_grad():
        embeddings.patch_embedding.weight.zero_()
        embeddings.patch_embedding.bias.zero_()
        mask = torch.ones(1, side, side, dtype=torch.bool)
        wanted = embeddings(torch.zeros(1, 1, side, side), mask)[0]
        rows = trained_rows(side, row_bounds(side))
        assert (rows.tolist() == list(range(side))) == (side == 4)
        order = (rows[:, None] * side + rows).flatten()
        assert torch.equal(embeddings.position_embedding(order), wanted)


def test_text_of_tiles_is_written_as_the_processor_writes_it(twins: Twins, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    network: Any = twins("idefics3", "odd").network
    tokens = network.images.tokens
    backend = Tokenizer(models.WordLevel({"<s>": 0, "<image>": 1}, unk_token="<s>"))
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(
            size={"longest_edge": 33}, max_image_size={"longest_edge": 11}, do_rescale=False
        ),
        Recorder(tokenizer_object=backend, pad_token="<s>"),
        image_seq_len=tokens,
    )
    text = "User: <image> and<image>what?"
    pictures = [np.zeros((20, 30, 3), np.uint8), np.zeros((12, 33, 3), np.uint8)]
    with pytest.raises(Written) as written:
        processor(text=text, images=[pictures])
    texts = network.tile_texts(Checkpoint(tmp_path, "x", {}), "<image>")
    places = ImagePlaces(place="<image>", tiles=texts)
    for grids, is_same in (([(2, 3), (2, 3)], True), ([(3, 2), (2, 3)], False)):
        ours = places.laid_out(text, grids).replace("<image>", "<image>" * tokens)
        assert (written.value.texts == [ours]) == is_same
    alone = places.laid_out("<image>", [(0, 0)])
    assert alone == "<fake_token_around_image><global-img><image><fake_token_around_image>"


@pytest.mark.parametrize("section", [None, "extra_special_tokens", "model_specific_special_tokens"])
@pytest.mark.parametrize("is_with_options", [False, True])
def test_tokens_around_images_are_those_that_the_tokenizer_names(
    section: str | None, is_with_options: bool, twins: Twins, tmp_path: Path
) -> None:
    """In each place where a version of `transformers` wrote them."""
    texts = {"fake_image_token": "<around>", "global_image_token": "<whole>"}
    named: dict[str, Any] = dict(texts)
    if is_with_options:
        named = {name: {"content": text, "special": True} for name, text in texts.items()}
    settings = named if section is None else {section: named}
    if section != "extra_special_tokens":
        settings = {**settings, "extra_special_tokens": ["<around>", "<whole>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    network: Any = twins("idefics3", "odd").network
    written = network.tile_texts(Checkpoint(tmp_path, "x", {}), "<image>")
    assert written["single"] == "<around><whole><image><around>"


@pytest.mark.parametrize("is_divided", [False, True])
def test_text_of_idefics2_is_written_as_its_processor_writes_it(
    is_divided: bool, twins: Twins, tmp_path: Path
) -> None:
    """Neighbours share a token between them; words behind an image are set apart from it."""
    from tokenizers import Tokenizer, models

    network: Any = twins("idefics2", "odd").network
    backend = Tokenizer(models.WordLevel({"<s>": 0, "<image>": 1}, unk_token="<s>"))
    recipe = Idefics2ImageProcessorPil(do_image_splitting=is_divided)
    tokenizer = Recorder(tokenizer_object=backend, pad_token="<s>")
    processor = Idefics2Processor(recipe, tokenizer, image_seq_len=network.images.tokens)
    picture = np.zeros((20, 30, 3), np.uint8)
    places = ImagePlaces(
        place="<image>", tiles=network.tile_texts(Checkpoint(tmp_path, "x", {}), "<image>")
    )
    for text in ("User: <image><image>what? <image>", "<image> a\n<image><end>", "a<image>\n"):
        count = text.count("<image>")
        with pytest.raises(Written) as written:
            processor(text=text, images=[[picture] * count])
        ours = places.laid_out(text, [(2, 2) if is_divided else (0, 0)] * count)
        ours = ours.replace("<image>", "<image>" * network.images.tokens)
        assert written.value.texts == [ours]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("config", ["plain", "odd"])
def test_idefics2_images_of_any_size_are_read_as_padded_ones_with_a_mask(
    config: str, beams: int, twins: Twins
) -> None:
    """Those of one prompt differ in size; `transformers` pads them to one and masks the rest."""
    twin = twins("idefics2", config)
    manifest, image = unexported(twin).manifest, twin.prepared.image
    random, sizes = np.random.default_rng(6), ((17, 60), (33, 33), (48, 11))
    pixels, mask = np.zeros((3, 48, 60, 3), np.uint8), torch.zeros(1, 3, 48, 60)
    for place, (height, width) in enumerate(sizes):
        pixels[place, :height, :width] = random.integers(0, 256, (height, width, 3))
        mask[0, place, :height, :width] = 1
    each = [IMAGE] * manifest.images.tokens
    prompt = (5, 7, *each, 8, *each, *each, 9)
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams}
    )
    request = EngineRequest(
        rules, prompt_ids=prompt, pixels=pixels, image_sizes=np.array(sizes, np.int64)
    )
    values = normalised(torch.from_numpy(pixels), image)[None] * mask[:, :, None]
    assert_left_padded(
        twin.reference,
        TorchRunner(twin.graphs(), manifest),
        [request],
        lambda tokens: {"pixel_values": values, "pixel_attention_mask": mask.long()},
    )


@pytest.mark.parametrize("side", [3, 7, 27, 70])
def test_patches_of_any_image_read_the_positions_of_transformers(side: int) -> None:
    config = Idefics2VisionConfig(image_size=side, patch_size=1, hidden_size=1, num_channels=1)
    embeddings, bounds = Idefics2VisionEmbeddings(config), row_bounds(side)
    with torch.no_grad():
        embeddings.patch_embedding.weight.zero_()
        embeddings.patch_embedding.bias.zero_()
        embeddings.position_embedding.weight.copy_(torch.arange(side**2)[:, None])
        for height in range(1, 81):
            width = 1 + height * 7 % 80
            mask = torch.ones(1, height, width, dtype=torch.bool)
            wanted = embeddings(torch.zeros(1, 1, height, width), mask)[0, :, 0]
            rows, columns = trained_rows(height, bounds), trained_rows(width, bounds)
            assert torch.equal((rows[:, None] * side + columns).flatten().float(), wanted)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PyTorch's own, of its exporter
def test_positions_in_a_graph_are_rounded_as_by_torch(tmp_path: Path) -> None:
    """ONNX Runtime makes one quotient of a product with 1 / n, which is another row of 49."""

    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bounds", row_bounds(7))

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return trained_rows(image.shape[0], self.get_buffer("bounds"))

    sizes = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.onnx.export(
        Rows().eval(), (torch.zeros(9),), dynamo=True, dynamic_shapes=sizes, verbose=False
    )
    assert program is not None
    program.save(tmp_path / "rows.onnx")
    session = InferenceSession(tmp_path / "rows.onnx")
    (given,) = session.get_inputs()
    for count in range(1, 81):
        (found,) = session.run(None, {given.name: np.zeros(count, np.float32)})
        assert found.tolist() == trained_rows(count, row_bounds(7)).tolist(), count


def test_a_processor_of_another_number_of_tokens_is_refused(twins: Twins, tmp_path: Path) -> None:
    network: Any = twins("idefics3", "odd").network
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_seq_len": 5}))
    with pytest.raises(CheckpointError, match="image_seq_len = 5, but a tile has 4 tokens"):
        network.tile_texts(Checkpoint(tmp_path, "x", {}), "<image>")


def test_smolvlm_leaves_sizes_of_its_tower_to_defaults() -> None:
    """`config.json` of SmolVLM-256M-Instruct, as far as it decides sizes."""
    text = {"model_type": "llama", "hidden_size": 576, "num_attention_heads": 9}
    text |= {"num_key_value_heads": 3, "num_hidden_layers": 30, "intermediate_size": 1536}
    vision = {"hidden_size": 768, "image_size": 512, "patch_size": 16, "num_attention_heads": 12}
    values = {
        "image_token_id": 49190,
        "scale_factor": 4,
        "text_config": text | {"head_dim": 64, "vocab_size": 49280},
        "vision_config": vision | {"model_type": "idefics3"},
    }
    config = architecture("idefics3").read_config(values)
    assert (config.tokens, config.tower.layers, config.tower.mlp_width) == (64, 12, 3072)
