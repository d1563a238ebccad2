"""Captioners over a CNN: their folders, and what their training changes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Tokenizer

from examples.captioner import train as train_captioner
from examples.history.cnn_captioners import networks as cnn_networks
from examples.history.cnn_captioners import train as cnn_train
from examples.scenes.scene import caption
from examples.scenes.scores import caption_words_right, heldout_pictures
from examples.show_attend_tell.soft_captioner import (
    captions_of,
    greedy,
    observer,
    read_folder,
    save_weights,
    start_folder,
)
from examples.show_attend_tell.train import OUTPUT, Captioning, teacher_forced
from export.checkpoint.checkpoint import open_checkpoint
from export.checkpoint.image_recipe import image_spec
from export.models.captioners.show_attend_tell import ShowAttendTell
from inference.bundle.manifest import Role
from tests.export import step_calls


@pytest.fixture(scope="module")
def tokenizer() -> GPT2Tokenizer:
    return GPT2Tokenizer.from_pretrained(train_captioner.OUTPUT)


@pytest.fixture
def network(tokenizer: GPT2Tokenizer, tmp_path: Path) -> ShowAttendTell:
    torch.manual_seed(0)
    return start_folder(tmp_path, tokenizer).eval()


def test_saved_network_is_restored(network: ShowAttendTell, tmp_path: Path):
    save_weights(network, tmp_path)
    again = read_folder(tmp_path)
    assert again.config == network.config
    wanted, given = network.state_dict(), again.state_dict()
    assert set(wanted) == set(given)
    assert all(torch.equal(wanted[name].half().float(), given[name]) for name in wanted)


def test_teacher_forcing_on_greedy_tokens_repeats_them(network: ShowAttendTell):
    pixels = torch.randn(2, 3, 64, 64)
    tokens, maps = greedy(network, pixels, end=0)
    read = torch.cat([torch.zeros(2, 1, dtype=torch.int64), tokens[:, :-1]], dim=1)
    with torch.no_grad():
        logits, attention = teacher_forced(network, pixels, read)
    assert torch.equal(logits.argmax(dim=-1), tokens)
    np.testing.assert_allclose(attention.unflatten(2, (8, 8)), maps, atol=1e-6)


def test_loss_adds_the_doubly_stochastic_penalty(network: ShowAttendTell, tokenizer: GPT2Tokenizer):
    def loss(weight: float) -> float:
        arguments = Namespace(seed=3, swap_words=0, look_everywhere=weight, resume=True)
        with torch.no_grad():
            return float(Captioning(network, tokenizer, arguments).loss(step=1, batch=4))

    # An untrained network attends uniformly: T words leave (1 - T / 64) ** 2 on each of the
    # 64 cells, for captions of about 9 to 24 tokens.
    per_weight = (loss(2.0) - loss(0.0)) / 2
    assert 64 * (1 - 24 / 64) ** 2 < per_weight < 64 * (1 - 9 / 64) ** 2


def test_patch_labels_beside_captions_keep_the_batch_statistics(
    network: ShowAttendTell, tokenizer: GPT2Tokenizer
):
    pictures = [picture for _, picture in heldout_pictures(4, seed=1)]
    norm = network.encoder.convolutions[0].norm
    for is_resumed in (True, False):
        arguments = Namespace(seed=3, swap_words=0, look_everywhere=0, resume=is_resumed)
        before = norm.running_mean.clone()
        cells = Captioning(network.train(), tokenizer, arguments).cells(pictures)
        assert cells.shape == (4, 64, 160)
        assert torch.equal(before, norm.running_mean) == is_resumed
        assert network.encoder.training


def test_trained_folder_describes_held_out_pictures():
    pairs = list(heldout_pictures(40, seed=21))
    captions = captions_of(observer(OUTPUT))([picture for _, picture in pairs])
    right = sum(words == caption(scene) for words, (scene, _) in zip(captions, pairs, strict=True))
    assert right >= 36


each_system = pytest.mark.parametrize(
    "system", cnn_networks.SYSTEMS, ids=lambda system: system.name
)


@pytest.fixture(scope="module")
def caption_tokenizer() -> GPT2Tokenizer:
    return GPT2Tokenizer.from_pretrained(cnn_networks.SHARED_FROM)


@pytest.fixture(scope="module")
def shared() -> torch.nn.Module:
    return cnn_networks.shared_convolutions()


def untrained(
    system: cnn_networks.System, caption_tokenizer: GPT2Tokenizer, shared: torch.nn.Module
) -> torch.nn.Module:
    torch.manual_seed(0)
    return cnn_networks.start(system, caption_tokenizer, shared).eval()


@each_system
def test_saved_network_over_a_cnn_is_restored(
    system: cnn_networks.System,
    caption_tokenizer: GPT2Tokenizer,
    shared: torch.nn.Module,
    tmp_path: Path,
):
    network = untrained(system, caption_tokenizer, shared)
    cnn_networks.save(system, network, caption_tokenizer, tmp_path)
    wanted, given = network.state_dict(), cnn_networks.read(tmp_path).state_dict()
    assert set(wanted) == set(given)
    assert all(torch.equal(wanted[name].half().float(), given[name]) for name in wanted)


@each_system
def test_words_told_are_those_of_the_graphs(
    system: cnn_networks.System, caption_tokenizer: GPT2Tokenizer, shared: torch.nn.Module
):
    network = untrained(system, caption_tokenizer, shared)
    image = image_spec(open_checkpoint(str(cnn_networks.SHARED_FROM)))
    graphs = system.architecture.graphs(network, image)
    generator = torch.Generator().manual_seed(4)
    pixels = torch.randint(0, 256, (2, *image.shape), generator=generator, dtype=torch.uint8)
    words = torch.randint(0, len(caption_tokenizer), (2, 5), generator=generator)
    with torch.no_grad():
        normalised = network.encoder.pixel_norm(pixels)
        features = network.encoder.convolutions[: cnn_networks.SHARED](normalised)
        logits, attention = system.tell(network, features, words)
        wanted, emitted = step_calls.teacher_forced(graphs, {Role.PIXELS: pixels}, words)
        torch.testing.assert_close(logits, wanted)
        assert (attention is not None) == system.has_attention
        if emitted is not None:
            torch.testing.assert_close(attention, emitted)
        if "align" in graphs.lowerings:
            aligned = graphs.lowerings["align"].module(pixels[:1], words[:1])
            torch.testing.assert_close(attention[:1], aligned)


@each_system
def test_greedy_words_end_once_for_all(
    system: cnn_networks.System, caption_tokenizer: GPT2Tokenizer, shared: torch.nn.Module
):
    network = untrained(system, caption_tokenizer, shared)
    tokens, maps = cnn_networks.greedy(network, system.tell, torch.randn(3, 3, 64, 64), end=0)
    assert (tokens[:, -1] == 0).all()
    assert maps.shape[:2] == (3, tokens.shape[1] - 1)


def test_training_changes_all_but_the_shared_convolutions(caption_tokenizer: GPT2Tokenizer):
    captioning = cnn_train.Captioning(caption_tokenizer, Namespace(seed=3, swap_words=0.0)).train()
    before = {name: value.clone() for name, value in captioning.state_dict().items()}
    captioning.loss(step=1, batch=4).backward()
    for name, value in captioning.named_parameters():
        shares = any(f"convolutions.{layer}." in name for layer in range(cnn_networks.SHARED))
        assert (value.grad is None) == shares, name
    for name, value in captioning.state_dict().items():
        is_own_statistic = "running" in name and "convolutions.5" in name
        assert torch.equal(before[name], value) != is_own_statistic, name


@each_system
def test_checkpoint_is_small(system: cnn_networks.System):
    assert sum(file.stat().st_size for file in system.folder.iterdir()) <= 1_100_000
    assert open_checkpoint(str(system.folder)).config["dtype"] == "float16"


@each_system
def test_trained_cnn_folder_describes_held_out_pictures(system: cnn_networks.System):
    """One vector of the picture is enough for half of the words, a look at regions for most."""
    told = captions_of(cnn_networks.observer(system.folder))
    least = 0.4 if system.name == "history-show-and-tell" else 0.8
    assert caption_words_right(told, 40, seed=21) >= least
    each = [told([picture]) for _, picture in heldout_pictures(4, seed=21)]
    assert len({tuple(words) for words in each}) == 4
