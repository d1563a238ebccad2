"""Images as tokens of a prompt: `generate` of `transformers`, in ragged batches; LLaVA's files."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file

from export.checkpoint.checkpoint import Checkpoint
from export.graphs.source_model import SourceModel
from export.parity.decoder_inputs import Admitted, StepLoop
from export.parity.graph_runs import bundle_path, onnx_run
from export.parity.judge import TOLERANCE
from export.parity.parity_inputs import Run
from export.parity.torch_runner import TorchRunner
from export.registry import architecture
from export.tokenizer.prompt_images import image_tokens
from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Bundle
from inference.engine.search.request import EngineRequest
from inference.engine.validation import RequestValidator
from inference.errors import CheckpointError, InvalidRequest
from tests.export.conftest import Bundles, TwinPair, Twins, pair_of
from tests.export.models.captions import unexported
from tests.export.models.interleaved import assert_left_padded, normalised, types_of_tokens
from tests.export.oracle import difference
from tests.export.twins import make_twin, twin_of

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
