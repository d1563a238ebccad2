"""Captions of every kind of captioner, from images alone and from prompts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.checkpoint.checkpoint import open_checkpoint
from export.graphs.source_model import SourceModel
from export.parity.judge import TOLERANCE
from export.parity.torch_runner import TorchRunner
from export.parity.verify import verify
from inference.engine.runners.ort.runner import OrtRunner
from tests.export.conftest import Bundles, Twins, lowered
from tests.export.models.captions import RULES, check_captions, generated, requests, unexported

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
