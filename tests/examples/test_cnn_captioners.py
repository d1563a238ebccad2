"""The captioners over one CNN: their folders, and what their training changes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from transformers import GPT2Tokenizer

from examples.history.cnn_captioners.networks import (
    SHARED,
    SHARED_FROM,
    SYSTEMS,
    System,
    greedy,
    observer,
    read,
    save,
    shared_convolutions,
    start,
)
from examples.history.cnn_captioners.train import Captioning
from examples.scenes.scores import caption_words_right, heldout_pictures
from examples.show_attend_tell.soft_captioner import captions_of
from export.checkpoint.checkpoint import open_checkpoint
from export.checkpoint.image_recipe import image_spec
from inference.bundle.manifest import Role
from tests.export.step_calls import teacher_forced

each_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)


@pytest.fixture(scope="module")
def tokenizer() -> GPT2Tokenizer:
    return GPT2Tokenizer.from_pretrained(SHARED_FROM)


@pytest.fixture(scope="module")
def shared() -> torch.nn.Module:
    return shared_convolutions()


def untrained(system: System, tokenizer: GPT2Tokenizer, shared: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    return start(system, tokenizer, shared).eval()


@each_system
def test_saved_network_is_restored(
    system: System, tokenizer: GPT2Tokenizer, shared: torch.nn.Module, tmp_path: Path
):
    network = untrained(system, tokenizer, shared)
    save(system, network, tokenizer, tmp_path)
    wanted, given = network.state_dict(), read(tmp_path).state_dict()
    assert set(wanted) == set(given)
    assert all(torch.equal(wanted[name].half().float(), given[name]) for name in wanted)


@each_system
def test_words_told_are_those_of_the_graphs(
    system: System, tokenizer: GPT2Tokenizer, shared: torch.nn.Module
):
    network = untrained(system, tokenizer, shared)
    image = image_spec(open_checkpoint(str(SHARED_FROM)))
    graphs = system.architecture.graphs(network, image)
    generator = torch.Generator().manual_seed(4)
    pixels = torch.randint(0, 256, (2, *image.shape), generator=generator, dtype=torch.uint8)
    words = torch.randint(0, len(tokenizer), (2, 5), generator=generator)
    with torch.no_grad():
        normalised = network.encoder.pixel_norm(pixels)
        features = network.encoder.convolutions[:SHARED](normalised)
        logits, attention = system.tell(network, features, words)
        wanted, emitted = teacher_forced(graphs, {Role.PIXELS: pixels}, words)
        torch.testing.assert_close(logits, wanted)
        assert (attention is not None) == system.has_attention
        if emitted is not None:
            torch.testing.assert_close(attention, emitted)
        if "align" in graphs.lowerings:
            aligned = graphs.lowerings["align"].module(pixels[:1], words[:1])
            torch.testing.assert_close(attention[:1], aligned)


@each_system
def test_greedy_words_end_once_for_all(
    system: System, tokenizer: GPT2Tokenizer, shared: torch.nn.Module
):
    network = untrained(system, tokenizer, shared)
    tokens, maps = greedy(network, system.tell, torch.randn(3, 3, 64, 64), end=0)
    assert (tokens[:, -1] == 0).all()
    assert maps.shape[:2] == (3, tokens.shape[1] - 1)


def test_training_changes_all_but_the_shared_convolutions(tokenizer: GPT2Tokenizer):
    captioning = Captioning(tokenizer, Namespace(seed=3, swap_words=0.0)).train()
    before = {name: value.clone() for name, value in captioning.state_dict().items()}
    captioning.loss(step=1, batch=4).backward()
    for name, value in captioning.named_parameters():
        shares = any(f"convolutions.{layer}." in name for layer in range(SHARED))
        assert (value.grad is None) == shares, name
    for name, value in captioning.state_dict().items():
        is_own_statistic = "running" in name and "convolutions.5" in name
        assert torch.equal(before[name], value) != is_own_statistic, name


@each_system
def test_checkpoint_is_small(system: System):
    assert sum(file.stat().st_size for file in system.folder.iterdir()) <= 1_100_000
    assert open_checkpoint(str(system.folder)).config["dtype"] == "float16"


@each_system
def test_trained_folder_describes_held_out_pictures(system: System):
    """One vector of the picture is enough for half of the words, a look at regions for most."""
    told = captions_of(observer(system.folder))
    least = 0.4 if system.name == "history-show-and-tell" else 0.8
    assert caption_words_right(told, 40, seed=21) >= least
    each = [told([picture]) for _, picture in heldout_pictures(4, seed=21)]
    assert len({tuple(words) for words in each}) == 4
