"""ViT by itself: heads, poolers that a checkpoint lacks, sizes that cannot be interpolated."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from export.graphs.source_model import SourceModel
from export.models.vision.vit import VIT
from export.parity.judge import TOLERANCE
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Role
from inference.errors import CheckpointError
from tests.export.conftest import Twins
from tests.export.oracle import difference, normalised, random_inputs
from tests.export.twins import twin_of

PLAIN = twin_of("vit").configs["plain"]


def test_checkpoint_without_pooler_embeds_with_its_class_token(
    twins: Twins, tmp_path: Path
) -> None:
    """DINO's checkpoints name `ViTModel` and hold no pooler."""
    twin = twins("vit", "pooled")
    folder = tmp_path / "dino"
    shutil.copytree(twin.checkpoint.folder, folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("pooler")}
    assert len(kept) == len(weights) - 2
    save_file(kept, folder / "model.safetensors")
    network = SourceModel.open(folder).network
    graphs = VIT.graphs(network, twin.prepared.image)
    lowering = graphs.lowerings["image"]
    pixels = random_inputs(twin, graphs).by_role[Role.PIXELS]
    with torch.no_grad():
        reference = twin.reference(normalised(pixels, twin.prepared.image))
        given = lowering.module(pixels)
    want = functional.normalize(reference.last_hidden_state[:, 0], dim=-1)
    assert lowering.graph.outputs[0].shape == ("B", 24)
    assert difference(want, given) < TOLERANCE


@pytest.mark.parametrize(
    ("config", "task"), [("plain", "classify"), ("pooled", "embed"), ("odd", "classify")]
)
def test_head_selects_the_task(config: str, task: str) -> None:
    assert VIT.tasks_of(VIT.read_config(twin_of("vit").configs[config])) == (task,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["ViTForMaskedImageModeling"]}, "ViTForImageClassification, ViTModel"),
        ({"num_channels": 1}, "num_channels = 1"),
        ({"head_dim": 8}, "head_dim = 8"),
        ({"hidden_act": "mish"}, "'mish' is not supported"),
        ({"num_attention_heads": 5}, "not a multiple"),
        ({"id2label": {0: "a", 2: "b"}}, "without gaps"),
    ],
)
def test_unsupported_configuration_is_refused(change: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        VIT.build(VIT.read_config(PLAIN | change))


def test_rectangular_grid_is_not_interpolated() -> None:
    values = PLAIN | {"image_size": [16, 32]}
    network = VIT.build(VIT.read_config(values))
    mean = std = (0.5, 0.5, 0.5)
    image = ImageSpec(resize="exact", size=(32, 32), resample=2, mean=mean, std=std, rescale=1)
    with pytest.raises(CheckpointError, match=r"4 x 4 patches, .* 2 x 4"):
        VIT.graphs(network, image)
