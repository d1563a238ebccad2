"""Captions of every kind of captioner, and what single ones have beyond their twins."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file

from export.checkpoint.checkpoint import open_checkpoint
from export.graphs.source_model import SourceModel
from export.models.captioners.show_attend_tell import read_config
from export.parity.graph_runs import bundle_path
from export.parity.judge import TOLERANCE
from export.parity.torch_runner import TorchRunner
from export.parity.verify import verify
from export.registry import architecture
from inference.bundle.inputs import Patches
from inference.bundle.manifest import Growth, Role
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.ort.runner import OrtRunner
from inference.errors import CheckpointError
from tests.export.conftest import Bundles, Twins, lowered
from tests.export.models.captions import RULES, check_captions, generated, requests, unexported
from tests.export.oracle import compare, difference, transformers_inputs
from tests.export.sources import flattened_patches, random_patches
from tests.export.twins import twin_of
from tests.inference.tiny_models import plain_recipe

CAPTIONERS = [
    ("vision-encoder-decoder", config)
    for config in (
        "odd",
        "bert",
        "bert-untied",
        "roberta",
        "trocr",
        "trocr-sinusoidal",
        "deit-trocr",
        "swin-bert",
        "donut",
        "donut-untied",
    )
] + [("blip", "odd"), ("git", "odd"), ("git", "tied")]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(("name", "config"), CAPTIONERS)
def test_captions_are_those_of_transformers(
    name: str, config: str, rules: str, twins: Twins
) -> None:
    twin = twins(name, config)
    bundle = unexported(twin)
    check_captions(twin, bundle, TorchRunner(twin.graphs(), bundle.manifest), RULES[rules])


@pytest.mark.full
@pytest.mark.parametrize(("name", "config"), CAPTIONERS)
def test_exported_captioner_equals_its_network_and_transformers(
    name: str, config: str, twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins(name, config), bundles(name, config)
    assert verify(twin.graphs(), bundle).worst_difference < TOLERANCE
    for rules in RULES.values():
        check_captions(twin, bundle, OrtRunner(bundle, threads=1), rules)


@pytest.mark.full
@pytest.mark.parametrize(("name", "config"), CAPTIONERS)
def test_int8_captioner_passes_its_gate(
    name: str, config: str, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    low = lowered(bundles(name, config), twins(name, config), tmp_path)
    assert OrtRunner(low, threads=1).vocabulary_size == low.manifest.vocabulary_size


def test_blip_starts_and_ends_as_its_own_generate(twins: Twins) -> None:
    generation = unexported(twins("blip", "odd")).manifest.generation
    assert generation.decoder_start_ids == (62,)
    assert generation.eos_token_ids == (1,)  # the separator; config.json's eos_token_id is 2


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_blip_writes_as_many_tokens_as_its_own_generate(twins: Twins) -> None:
    twin = twins("blip", "odd")
    generation = unexported(twin).manifest.generation
    ends = {"bad_words_ids": [[1]]}  # no caption ends before its limit
    for first in ([62], [62, 5, 9, 7]):
        prompt = torch.tensor([[*first, 1]])  # whose last token `generate` drops
        found = twin.reference.generate(torch.zeros(1, 3, 32, 32), prompt, **ends)
        assert found.shape[1] - len(first) == generation.max_new_tokens


def test_prompt_that_keeps_its_end_token_gives_other_captions(twins: Twins) -> None:
    twin = twins("blip", "odd")
    bundle = unexported(twin)
    runner = TorchRunner(twin.graphs(), bundle.manifest)
    prompted = [each for each in requests(bundle, RULES["greedy"]) if each.prompt_ids]
    kept = [
        replace(each, prompt_ids=(*each.prompt_ids, *each.rules.eos_token_ids)) for each in prompted
    ]
    assert generated(runner, kept) != generated(runner, prompted)


def test_buffer_of_older_sinusoids_is_skipped(twins: Twins, tmp_path: Path) -> None:
    """`transformers` 4 stored it with TrOCR's sinusoidal positions."""
    twin = twins("vision-encoder-decoder", "trocr-sinusoidal")
    folder = shutil.copytree(twin.checkpoint.folder, tmp_path / "older")
    tensors = load_file(folder / "model.safetensors")
    name = "decoder.model.decoder.embed_positions._float_tensor"
    save_file({**tensors, name: torch.zeros(1)}, folder / "model.safetensors")
    assert SourceModel(open_checkpoint(str(folder)), twin.architecture).network


NEW_TOKENS = 9


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("config", ["odd", "other activations"])
def test_images_of_several_sizes_are_read_as_one_padded_batch(
    config: str, beams: int, twins: Twins
) -> None:
    twin = twins("pix2struct", config)
    manifest = unexported(twin).manifest
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams}
    )
    pixels = [random_patches(number, manifest.image.shape) for number in range(4)]
    output = twin.reference.generate(
        **flattened_patches(torch.from_numpy(np.stack(pixels))),
        max_new_tokens=NEW_TOKENS,
        num_beams=beams,
        do_sample=False,
    )
    requests = [EngineRequest(rules, pixels=each) for each in pixels]
    found = decode(TorchRunner(twin.graphs(), manifest), requests)
    answers = set()
    for answer, sequence in zip(found, output.tolist(), strict=True):
        tokens = list(answer.hypotheses[0].token_ids)
        assert tokens == sequence[1:][: len(tokens)]
        assert not any(sequence[1 + len(tokens) :])  # padding
        answers.add(tuple(tokens))
    assert len(answers) > 1


def test_patches_that_are_padding_are_not_read(twins: Twins) -> None:
    """Planted: the number of patches is the budget."""
    twin = twins("pix2struct", "odd")
    graphs = twin.graphs()
    admit: Any = graphs.lowerings["admit"].module
    forward = admit.encoder.forward
    admit.encoder.forward = lambda pixels: (
        forward(pixels)[0],
        torch.full((len(pixels),), pixels.shape[1]),
    )
    wrong = {
        place.partition(",")[0]
        for place, want, got in compare(twin, graphs=graphs)
        if (want - got).abs().max() > TOLERANCE
    }
    assert wrong == {"row 1", "row 2"}  # the first image fills the budget


def test_published_files_leave_sizes_out() -> None:
    config = architecture("pix2struct").read_config({"vision_config": {}, "text_config": {}})
    assert config.array == (2048, 257)
    assert (config.tower.layers, config.tower.width, config.places) == (12, 768, 4096)
    assert (config.text.vocabulary_size, config.text.decoder_layers) == (50244, 12)


def test_a_recipe_of_other_patches_is_refused(twins: Twins) -> None:
    update = {"resize": "patches", "patches": Patches(height=3, width=3)}
    spec = plain_recipe((12, 10)).model_copy(update=update)
    network = twins("pix2struct", "odd").network
    with pytest.raises(CheckpointError, match="patches of 9 pixels"):
        architecture("pix2struct").graphs(network, spec)


def test_grid_rounds_up() -> None:
    assert read_config(
        {**twin_of("show-attend-tell").configs["plain"], "image_size": [17, 64]}
    ).convolutions.grid == (
        5,
        16,
    )


def test_beams_share_the_annotations_of_their_picture(twins: Twins) -> None:
    twin = twins("show-attend-tell", "odd")
    graphs = twin.graphs()
    pixels = torch.randint(0, 256, (2, *twin.prepared.image.shape), dtype=torch.uint8)
    step = graphs.lowerings["step"].module
    with torch.no_grad():
        annotations, keys, *states = graphs.lowerings["admit"].module(pixels)
        tokens = torch.arange(6)[:, None]  # three beams a picture
        states = [state.repeat_interleave(3, dim=0) for state in states]
        logits, *_, attention = step(tokens, *states, annotations, keys)
        for row in range(6):
            held = [tensor[row // 3 : row // 3 + 1] for tensor in (annotations, keys)]
            alone = step(tokens[row : row + 1], *(s[row : row + 1] for s in states), *held)
            torch.testing.assert_close(logits[row], alone[0][0])
            torch.testing.assert_close(attention[row], alone[-1][0])


def test_manifest_declares_growths_and_one_token_a_call(twins: Twins) -> None:
    graphs = twins("show-attend-tell", "odd").graphs()
    step = graphs.lowerings["step"].graph
    emitted = step.output(Role.EMIT)
    assert emitted.shape == ("R", 35)
    assert step.max_tokens_per_call == 1
    growths = {state.name: state.growth for state in graphs.states}
    assert growths == {
        "hidden": Growth.REPLACE,
        "cell": Growth.REPLACE,
        "annotations": Growth.HOLD,
        "keys": Growth.HOLD,
    }


def test_first_state_is_the_same_alone_and_in_a_batch(bundles: Bundles) -> None:
    bundle = bundles("show-attend-tell", "odd")
    session = onnxruntime.InferenceSession(str(bundle_path(bundle, "admit")))
    shape = session.get_inputs()[0].shape[1:]
    pixels = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    together = session.run(None, {"pixels": pixels})
    for row in range(5):
        alone = session.run(None, {"pixels": pixels[row : row + 1]})
        for wanted, given in zip(together, alone, strict=True):
            np.testing.assert_array_equal(given[0], wanted[row])  # bit for bit


def test_image_is_kept_in_replaced_states_alone(twins: Twins) -> None:
    graphs = twins("show-and-tell", "odd").graphs()
    assert {state.name: state.growth for state in graphs.states} == {
        "state": Growth.REPLACE,
        "cell": Growth.REPLACE,
    }
    step = graphs.lowerings["step"].graph
    assert step.max_tokens_per_call == 1
    assert step.output(Role.EMIT) is None


@pytest.mark.parametrize("config", twin_of("cnn-transformer").configs)
def test_alignment_is_the_cross_attention_of_torch(config: str, twins: Twins) -> None:
    twin = twins("cnn-transformer", config)
    shape = (1, *twin.prepared.image.shape)
    pixels = torch.randint(
        0, 256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    tokens = torch.arange(2, 9)[None]
    calls: list[tuple[torch.Tensor, ...]] = []
    attention = twin.reference.transformer.decoder.layers[-1].multihead_attn
    hook = attention.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))
    with torch.no_grad():
        twin.reference(
            **transformers_inputs({Role.PIXELS: pixels}, twin.prepared.image),
            decoder_input_ids=tokens,
        )
        hook.remove()
        wanted = attention(*calls[0], need_weights=True)[1]
        given = twin.graphs().lowerings["align"].module(pixels, tokens)
    assert wanted.shape == given.shape
    assert difference(wanted, given) < TOLERANCE
