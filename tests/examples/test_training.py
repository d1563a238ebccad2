"""Averaged and initialised weights, training batches, and the words of model cards."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from string import Template

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from transformers import (
    CLIPConfig,
    CLIPModel,
    GPT2Config,
    GPT2Tokenizer,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples import checkpoint
from examples.bert import card as bert_card
from examples.captioner import train as train_captioner
from examples.chat import card as chat_card
from examples.en_fr import card as gazette_translator
from examples.es_en import card as translator
from examples.gpt import card as gpt_card
from examples.history.flamingo import card as flamingo_card
from examples.history.perceiver import card as perceiver_card
from examples.history.perceiver_text import card as perceiver_text_card
from examples.history.recurrent import card as recurrent_card
from examples.scenes.scene import COLOURS, SHAPES, SIZES, TEXTURE_NAMES
from examples.training import card as model_card
from examples.training import checkpoint_folder
from examples.training.average import averaged
from examples.training.loop import CaptionBatches
from examples.training.vision_initialisation import fit_first_norm, initialise_vision_tower
from examples.vit import card as vit_card
from examples.vqa import card as vqa_card
from export.training.captions import END_OF_TEXT, IGNORED


def test_every_tensor_is_the_mean_in_the_later_dtype() -> None:
    mean = averaged({"w": torch.tensor([1.0, 3.0])}, {"w": torch.tensor([3.0, 7.0]).half()})
    assert mean["w"].tolist() == [2.0, 5.0]
    assert mean["w"].dtype is torch.float16


def test_checkpoints_of_different_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="different tensors"):
        averaged({"w": torch.zeros(2)}, {"w": torch.zeros(3)})


SIDE = 16
TOWER = {"image_size": SIDE, "patch_size": 8, "hidden_size": 16, "intermediate_size": 24}


def randomised(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 4)
    return model.eval()


def test_tower_computes_the_features_of_the_captioner() -> None:
    vit = ViTConfig(**TOWER, num_hidden_layers=2, num_attention_heads=2)
    text = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit, text)
    captioner = randomised(VisionEncoderDecoderModel(config))
    vision = {**TOWER, "num_hidden_layers": 3, "num_attention_heads": 2, "hidden_act": "gelu"}
    clip = randomised(CLIPModel(CLIPConfig(vision_config=vision)))
    clip.vision_model.config.layer_norm_eps = vit.layer_norm_eps
    to_clip = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    to_vit = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    initialise_vision_tower(clip, to_clip, captioner, to_vit)

    noise = np.random.default_rng(3).integers(0, 256, (4, SIDE, SIDE, 3), np.uint8)
    pictures = [Image.fromarray(pixels) for pixels in noise]
    own = to_clip(pictures, return_tensors="pt").pixel_values
    theirs = to_vit(pictures, return_tensors="pt").pixel_values
    tower, encoder = clip.vision_model, captioner.encoder
    with torch.no_grad():
        tokens = encoder.embeddings(theirs)
        assert torch.allclose(tower.embeddings(own), tokens, atol=1e-4)
        for layer, borrowed in zip(tower.encoder.layers, encoder.layers, strict=False):
            seen, expected = layer(tokens, attention_mask=None), borrowed(tokens)
            seen, expected = (x[0] if isinstance(x, tuple) else x for x in (seen, expected))
            assert torch.allclose(seen, expected, atol=1e-3)
        fit_first_norm(clip, own)
        assert torch.isclose(tower.pre_layrnorm(tokens).std(), tokens.std(), rtol=0.2)


ATTRIBUTES = [*SIZES, *COLOURS, *TEXTURE_NAMES[1:], *SHAPES]


@pytest.fixture(scope="module")
def tokenizer() -> GPT2Tokenizer:
    return GPT2Tokenizer.from_pretrained(Path(train_captioner.OUTPUT))


def batch(tokenizer: GPT2Tokenizer, swap_words: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(read, labels) of eight scenes."""
    batches = CaptionBatches(tokenizer, Namespace(seed=1, swap_words=swap_words))
    pictures, read, labels = batches.draw(step=1, batch=8)
    assert len(pictures) == len(read) == len(labels) == 8
    return read, labels


def test_decoder_input_is_the_labels_shifted_right(tokenizer: GPT2Tokenizer):
    read, labels = batch(tokenizer, swap_words=0)
    end = tokenizer.eos_token_id
    assert (read[:, 0] == end).all()
    is_label = labels[:, :-1] != IGNORED
    assert torch.equal(read[:, 1:][is_label], labels[:, :-1][is_label])
    assert all(END_OF_TEXT in tokenizer.decode(row[row != IGNORED]) for row in labels)


def test_swapped_words_keep_their_kind(tokenizer: GPT2Tokenizer):
    read, labels = batch(tokenizer, swap_words=1)
    kinds = {word: kind for kind in (SIZES, COLOURS, TEXTURE_NAMES, SHAPES) for word in kind}
    swapped = 0
    for given, wanted in zip(read[:, 1:].flatten(), labels[:, :-1].flatten(), strict=True):
        if wanted == IGNORED:
            continue
        word, truth = tokenizer.decode([given]).strip(), tokenizer.decode([wanted]).strip()
        if truth in ATTRIBUTES:
            assert kinds[word] == kinds[truth]
            swapped += word != truth
        else:
            assert word == truth
    assert swapped > 20


def _of_texts(measured: str) -> Template:
    """The card that folders of texts share, with how theirs were measured."""
    return Template(model_card._CARD.template.replace("$measured", measured))


CARDS = {
    **dict.fromkeys(bert_card.CARDS, _of_texts(bert_card._MEASURED)),
    "example-chat": _of_texts(chat_card._MEASURED),
    "example-clip": checkpoint_folder._CARD,
    "example-en-fr": gazette_translator._CARD,
    "example-es-en": translator._CARD,
    "example-gpt": gpt_card._CARD,
    "example-vit": vit_card._CARD,
    "example-vqa": _of_texts(vqa_card._MEASURED),
    "history-flamingo": flamingo_card._CARD,
    "history-perceiver": perceiver_card._CARD,
    "history-perceiver-text": perceiver_text_card._CARD,
    **dict.fromkeys(recurrent_card.CARDS, _of_texts(recurrent_card._MEASURED)),
}


@pytest.mark.parametrize(("name", "template"), CARDS.items(), ids=list(CARDS))
def test_card_has_the_words_of_its_template(name: str, template: Template) -> None:
    card = (checkpoint(name) / "README.md").read_text(encoding="utf-8").splitlines()
    fixed = [line for line in template.template.splitlines() if "$" not in line]
    assert len(fixed) > 5
    assert [line for line in fixed if line not in card] == []
