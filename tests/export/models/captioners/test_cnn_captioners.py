"""Show and Tell and the CNN with a Transformer beyond their twins: states, alignment."""

from __future__ import annotations

import pytest
import torch

from export.parity.judge import TOLERANCE
from inference.bundle.manifest import Growth, Role
from tests.export.conftest import Twins
from tests.export.oracle import difference, transformers_inputs
from tests.export.twins import twin_of


def test_image_is_kept_in_replaced_states_alone(twins: Twins) -> None:
    graphs = twins("show-and-tell", "odd").graphs()
    assert {state.name: state.growth for state in graphs.states} == {
        "state": Growth.REPLACE,
        "cell": Growth.REPLACE,
    }
    step = graphs.lowerings["step"].graph
    assert step.max_tokens_per_call == 1
    assert step.output(Role.EMIT) is None


@pytest.mark.parametrize("config", twin_of("cnn-transformer").configs)
def test_alignment_is_the_cross_attention_of_torch(config: str, twins: Twins) -> None:
    twin = twins("cnn-transformer", config)
    shape = (1, *twin.prepared.image.shape)
    pixels = torch.randint(
        0, 256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    tokens = torch.arange(2, 9)[None]
    calls: list[tuple[torch.Tensor, ...]] = []
    attention = twin.reference.transformer.decoder.layers[-1].multihead_attn
    hook = attention.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))
    with torch.no_grad():
        twin.reference(
            **transformers_inputs({Role.PIXELS: pixels}, twin.prepared.image),
            decoder_input_ids=tokens,
        )
        hook.remove()
        wanted = attention(*calls[0], need_weights=True)[1]
        given = twin.graphs().lowerings["align"].module(pixels, tokens)
    assert wanted.shape == given.shape
    assert difference(wanted, given) < TOLERANCE
