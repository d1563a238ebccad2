"""Pix2Struct: captions of ragged batches, and recipes that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from export.parity.judge import TOLERANCE
from export.parity.torch_runner import TorchRunner
from export.registry import architecture
from inference.bundle.inputs import Patches
from inference.engine.engine_core import decode
from inference.engine.search.request import EngineRequest
from inference.errors import CheckpointError
from tests.export.conftest import Twins
from tests.export.models.captions import unexported
from tests.export.oracle import compare
from tests.export.patches import flattened_patches, random_patches
from tests.inference.manifests import plain_recipe

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
