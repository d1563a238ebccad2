"""The checkpoint folder of Show, Attend and Tell, and its training loss."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Tokenizer

from examples.captioner import train as train_captioner
from examples.scenes.scene import caption
from examples.scenes.scores import heldout_pictures
from examples.show_attend_tell.soft_captioner import (
    captions_of,
    greedy,
    observer,
    read_folder,
    save_weights,
    start_folder,
)
from examples.show_attend_tell.train import OUTPUT, Captioning, teacher_forced
from export.models.captioners.show_attend_tell import ShowAttendTell


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
