"""Show, Attend and Tell beyond its twins: beams, the example's folder."""

from __future__ import annotations

import numpy as np
import onnxruntime
import torch

from export.models.captioners.show_attend_tell import read_config
from export.parity.graph_runs import bundle_path
from inference.bundle.manifest import Growth, Role
from tests.export.conftest import Bundles, Twins
from tests.export.twins import twin_of


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
