"""Trains `history-perceiver`: a Perceiver IO that classifies the largest thing of a scene.

Built, trained and saved with `transformers`, on the task of `example-vit`, whose layers are those
between the latents at first. In a first stage the latents learn to read a picture, so that they are
what the ViT computes from its patches; then all of it learns the classes.

    python -m examples.history.perceiver.train

A layer between latents has the parts of a ViT's layer, so what a ViT learnt about patches can be
taken over. What remains to be learnt is to read the pixels: each latent begins as the embedding of
a patch's place, and the heads of the layer that reads begin with their attention on the patch and
around it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    PerceiverConfig,
    PerceiverForImageClassificationConvProcessing,
    ViTForImageClassification,
)
from transformers.models.perceiver.image_processing_pil_perceiver import PerceiverImageProcessorPil

from examples import checkpoint
from examples.history.perceiver.card import write_card
from examples.scenes.patch_labels import labelled_images
from examples.scenes.rendering import SIDE
from examples.training.checkpoint_folder import run_line, runs_of, save_half, start, training_flags
from examples.training.loop import Recipe, pixel_tensor, train
from examples.vit.scores import CLASSES
from examples.vit.train import OUTPUT as VIT
from examples.vit.train import Classification

_CHANNELS = 64  # of the convolution, in front of an input's position
_BANDS = 64  # frequencies of the position's Fourier features, an axis
_RESOLUTION = 56  # twice the highest frequency
_CHOSEN = (0, 4, 10)  # of the frequencies, those that a head compares
_SHARPNESS = 3.4, 1.7  # of queries and keys: their product scales a head's scores
_CLASS_SCORE = 8.0  # of the class token's latent, behind the last layer; others have about 0
_NAMES = {
    "attention.self.layernorm1": "layernorm_before",
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "layernorm": "layernorm_after",
    "mlp.dense1": "mlp.fc1",
    "mlp.dense2": "mlp.fc2",
}  # of a layer between latents → of a ViT's


@torch.no_grad()
def initialise_from_vit(
    model: PerceiverForImageClassificationConvProcessing,
    vit: ViTForImageClassification,
    layers: Sequence[int],
    pixels: Tensor,
) -> None:
    """Sets all but the convolution, in place.

    Args:
        model: With a latent for each token of the ViT, of its width, with as many heads and the
            same classes; twice as many inputs a side as the ViT has patches, less one.
        layers: Numbers of the ViT's layers, one for each layer between latents.
        pixels: (B, 3, side, side), normalised: a sample.
    """
    perceiver: Any = model.perceiver
    for own, number in zip(perceiver.encoder.self_attends, layers, strict=True):
        for ours, theirs in _NAMES.items():
            part: Any = vit.vit.layers[number].get_submodule(theirs)
            own.get_submodule(ours).load_state_dict(part.state_dict())
    _initialise_reading(perceiver, vit)
    _initialise_output(perceiver.decoder.decoder, vit, pixels)


def _initialise_reading(perceiver: Any, vit: Any) -> None:
    """Latents are the embeddings of places; queries and keys compare places."""
    embeddings, cross = vit.vit.embeddings, perceiver.encoder.cross_attention
    latents = embeddings.position_embeddings[0].clone()  # (1 + N, D), the class token first
    latents[0] += embeddings.cls_token[0, 0]
    latents[1:] += embeddings.patch_embeddings.projection.bias
    perceiver.embeddings.latents.copy_(latents)
    attention = cross.attention.self
    around = [*product((0, -1, 1), repeat=2)][: attention.num_heads]  # inputs, of either axis
    side = math.isqrt(len(latents) - 1)
    axis = torch.linspace(-1, 1, side)
    centres, step = torch.cartesian_prod(axis, axis), 1 / (side - 1)
    queries = [_waves(centres + step * torch.tensor(shift)) for shift in around]
    wanted = torch.zeros(len(latents), attention.qk_channels)
    wanted[1:] = _SHARPNESS[0] * torch.cat(queries, dim=-1)
    normed = nn.functional.layer_norm(latents, latents.shape[1:])
    fit(attention.query, normed, wanted)
    attention.key.weight.zero_()
    for row in range(attention.qk_channels):
        attention.key.weight[row, _columns()[row % len(_columns())]] = _SHARPNESS[1]


def _waves(places: Tensor) -> Tensor:
    """(N, 2) in [-1, 1] → (N, F): sines and cosines, as inputs have them in `_columns()`."""
    chosen = torch.linspace(1, _RESOLUTION / 2, _BANDS)[list(_CHOSEN)]
    angles = math.pi * (places[:, :, None] * chosen).flatten(1)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _columns() -> list[int]:
    """Places of the same features in an input; its position itself is in front of them."""
    first = _CHANNELS + 2
    return [
        first + wave * 2 * _BANDS + axis * _BANDS + band
        for wave in (0, 1)
        for axis in (0, 1)
        for band in _CHOSEN
    ]


def _initialise_output(decoder: Any, vit: Any, pixels: Tensor) -> None:
    """The output query reads the class token's latent, and the ViT's classifier is behind it."""
    layer = decoder.decoding_cross_attention
    attention = layer.attention.self
    attention.layernorm2.load_state_dict(vit.vit.layernorm.state_dict())
    decoder.final_layer.load_state_dict(vit.classifier.state_dict())
    decoder.output_position_encodings.position_embeddings.zero_()
    for identity in (attention.value, layer.attention.output.dense):
        nn.init.eye_(identity.weight)
    for empty in (attention.query, attention.key, layer.mlp.dense2):
        empty.weight.zero_()
    hidden = vit.vit(pixel_values=pixels).last_hidden_state
    direction = hidden[:, 0].mean(0) - hidden[:, 1:].mean((0, 1))
    attention.key.weight[0] = direction / direction.square().sum()
    attention.query.bias[0] = _CLASS_SCORE * math.sqrt(attention.qk_channels_per_head)


def fit(linear: nn.Linear, inputs: Tensor, outputs: Tensor) -> None:
    """The least weights of a linear layer that maps the rows of one to those of the other."""
    extended = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=-1)
    solution = torch.linalg.lstsq(extended, outputs, driver="gelsd").solution
    linear.weight.copy_(solution[:-1].T)
    linear.bias.copy_(solution[-1])


MODULE = "examples.history.perceiver.train"
OUTPUT = checkpoint("history-perceiver")
_MEAN = _DEVIATION = [0.5, 0.5, 0.5]  # of the ViT's image recipe
_LAYERS = (0, 1, 3, 4)  # of the ViT's five: it loses least without the third
_POOL = 1500  # pictures of the first stage, each shown often, rolled by any distance
_BATCH, _READING_RATE, _RATE = 32, 2e-3, 1e-3


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    arguments = parse_arguments()
    folder = start(arguments)
    processor = PerceiverImageProcessorPil(
        size={"height": SIDE, "width": SIDE},
        do_center_crop=False,
        image_mean=_MEAN,
        image_std=_DEVIATION,
    )
    processor.save_pretrained(folder)
    vit = ViTForImageClassification.from_pretrained(VIT, dtype=torch.float32).eval()
    model = build_model(vit.config, _LAYERS)
    reading = Reading(model, vit, arguments.seed, _POOL)
    initialise_from_vit(model, vit, _LAYERS, reading.pool[:_BATCH])
    first = Recipe(arguments.reading_steps, arguments.seed, _BATCH, _READING_RATE)
    minutes = train(reading, lambda _step: reading.loss(), first)
    second = Recipe(arguments.steps, arguments.seed, _BATCH, _RATE)
    task = Classification(model, processor, arguments)
    minutes += train(model, lambda step: task.loss(step, _BATCH), second)
    save_half(model, folder)
    run = run_line(MODULE, arguments, "pictures", second.pictures + _POOL, minutes)
    print(write_card(folder, runs_of(folder, run, is_resumed=False)))


def parse_arguments() -> argparse.Namespace:
    """Flags of `python -m examples.history.perceiver.train`."""
    parser = training_flags(__doc__, OUTPUT, 1500, "steps of the second stage")
    parser.add_argument(
        "--reading-steps", type=int, default=700, help="steps of the first stage (%(default)s)"
    )
    return parser.parse_args()


def build_model(vit: Any, layers: Sequence[int]) -> PerceiverForImageClassificationConvProcessing:
    """An untrained network with a latent for each token of a ViT.

    Args:
        layers: Those of its layers that will be between the latents.
    """
    config = PerceiverConfig(
        num_latents=1 + (SIDE // vit.patch_size) ** 2,
        d_latents=vit.hidden_size,
        num_self_attends_per_block=len(layers),
        num_self_attention_heads=vit.num_attention_heads,
        num_cross_attention_heads=8,
        qk_channels=vit.hidden_size,
        v_channels=vit.hidden_size,
        self_attention_widening_factor=vit.intermediate_size // vit.hidden_size,
        attention_probs_dropout_prob=0.0,  # no dropout: every picture is new
        initializer_range=0.1,  # 0.02 is for a width of 1280
        image_size=SIDE,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: index for index, name in enumerate(CLASSES)},
        problem_type="single_label_classification",
    )
    model: Any = PerceiverForImageClassificationConvProcessing(config)
    found: PerceiverForImageClassificationConvProcessing = model.to(
        memory_format=torch.channels_last
    )
    return found


class Reading(nn.Module):
    """The parts of a Perceiver that read pixels, and the loss of what they read.

    Args:
        vit: What its latents are to be, once they have read: the embeddings of its tokens.
        pool: Pictures to read, each often.
    """

    def __init__(
        self,
        model: PerceiverForImageClassificationConvProcessing,
        vit: ViTForImageClassification,
        seed: int,
        pool: int,
    ) -> None:
        super().__init__()
        perceiver: Any = model.perceiver
        self.inputs, self.latents = perceiver.input_preprocessor, perceiver.embeddings
        self.cross = perceiver.encoder.cross_attention
        self._embeddings = [vit.vit.embeddings]  # in a list: not trained
        config: Any = vit.config
        drawn = islice(labelled_images(seed, config.patch_size), pool)
        self.pool = pixel_tensor([picture for picture, _ in drawn], _MEAN, _DEVIATION)
        with torch.no_grad():
            patches = self._embeddings[0](self.pool[:_BATCH])[:, 1:]
        self._variance = patches.var(0).mean()
        self._random = torch.Generator().manual_seed(seed)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 3, side, side) → (B, 1 + N, D)."""
        inputs, _, _ = self.inputs(pixels)
        found: torch.Tensor = self.cross(self.latents(batch_size=len(pixels)), inputs=inputs)[0]
        return found

    def loss(self) -> torch.Tensor:
        """The mean squared error of a batch, as a share of the variance between pictures."""
        rows = torch.randint(len(self.pool), (_BATCH,), generator=self._random)
        shifts = torch.randint(SIDE, (2,), generator=self._random).tolist()
        pixels = self.pool[rows].roll(shifts, (2, 3))
        with torch.no_grad():
            wanted = self._embeddings[0](pixels)
        return (self(pixels).float() - wanted).square().mean() / self._variance


if __name__ == "__main__":
    main()
