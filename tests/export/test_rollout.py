"""Attention pictures against Abnar & Zuidema (2020) over the weights of `transformers`."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from export.graphs.to_onnx import to_onnx
from export.parity.judge import TOLERANCE
from export.registry import architecture
from export.text_encoders.image_graphs import with_attention
from inference.bundle.manifest import Role
from inference.errors import CheckpointError
from tests.export.conftest import TwinPair, Twins
from tests.export.oracle import normalised, random_inputs

PICTURED = [
    ("vit", "plain", 1),
    ("vit", "odd", 1),
    ("vit", "resized", 1),
    ("deit", "odd", 2),
    ("dinov2", "enlarged", 1),
    ("dinov2", "registers", 4),
]
"""(architecture, configuration, tokens in front of the patches)."""


def expected(name: str, twin: TwinPair, pixels: torch.Tensor, leading: int) -> np.ndarray:
    """The product of all layers, each half its attention and half the identity: equation (1)."""
    twin.reference.set_attn_implementation("eager")
    inputs = {"pixel_values": normalised(pixels, twin.prepared.image)}
    if twin.is_resized and name != "dinov2":  # which interpolates without being asked to
        inputs["interpolate_pos_encoding"] = True
    layers = twin.reference(**inputs, output_attentions=True).attentions
    product = np.eye(layers[0].shape[-1])
    for weights in layers:
        mean = weights.mean(dim=1).double().numpy()
        mixed = 0.5 * mean + 0.5 * np.eye(mean.shape[-1])
        product = mixed / mixed.sum(axis=-1, keepdims=True) @ product
    patches = product[:, 0, leading:]
    return patches / patches.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(("name", "config", "leading"), PICTURED)
def test_picture_is_the_roll_out_from_the_class_token(
    name: str, config: str, leading: int, twins: Twins
) -> None:
    twin = twins(name, config)
    network, image = copy.deepcopy(twin.network), twin.prepared.image
    graphs = with_attention(
        twin.architecture, network, twin.architecture.graphs(network, image), image
    )
    lowering = graphs.lowerings["attention"]
    pixels = random_inputs(twin, graphs).by_role[Role.PIXELS]
    with torch.no_grad():
        given = lowering.module(pixels).numpy()
        want = expected(name, twin, pixels, leading)
    assert given.shape[1:] == lowering.graph.outputs[0].shape[1:]
    np.testing.assert_allclose(given.sum(axis=(1, 2)), 1, atol=1e-6)
    assert np.abs(given.reshape(want.shape) - want).max() < TOLERANCE * want.max()


@pytest.mark.slow
def test_picture_is_exported_in_standard_operators(twins: Twins, tmp_path: Path) -> None:
    twin = twins("vit", "plain")
    network, image = copy.deepcopy(twin.network), twin.prepared.image
    graphs = with_attention(
        twin.architecture, network, twin.architecture.graphs(network, image), image
    )
    assert graphs.parts == {"image": "", "attention": "-attention"}
    lowering = graphs.lowerings["attention"]
    to_onnx(lowering, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    pixels = random_inputs(twin, graphs).by_role[Role.PIXELS]
    (given,) = session.run(None, {"pixels": pixels.numpy()})
    with torch.no_grad():
        want = lowering.module(pixels).numpy()
    assert np.abs(given - want).max() < TOLERANCE * want.max()


def test_model_without_pictures_refuses_them(twins: Twins) -> None:
    twin = twins("clip", "plain")
    with pytest.raises(CheckpointError, match="clip has no attention pictures"):
        with_attention(architecture("clip"), twin.network, twin.graphs(), twin.prepared.image)
