"""Alignments of finished hypotheses against `transformers`' own cross-attentions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from export.decoder_graphs.transformer import alignment_layer
from export.parity.graph_runs import bundle_path
from export.parity.judge import TOLERANCE
from export.parity.verify import ParityError, verify
from inference.bundle.manifest import Role
from tests.export.conftest import Bundles, TwinPair, Twins
from tests.export.oracle import difference, target_name, transformers_inputs
from tests.export.twins import every_config, generators, interface

ALIGNED = generators(is_transformers=True, graph="align")
CONFIGS = [
    (name, config)
    for name, config in every_config()
    if name in ALIGNED and "step" in interface(name, config).lowerings
]


def _inputs(twin: TwinPair, length: int) -> dict[Role, torch.Tensor]:
    """One source and its hypothesis, in the order of the graph."""
    generator = torch.Generator().manual_seed(length)
    drawn = {
        Role.TOKENS: torch.randint(2, 50, (1, length), generator=generator),
        Role.SOURCE_TOKENS: torch.randint(1, 60, (1, 7), generator=generator),
        Role.SOURCE: torch.tensor([7], dtype=torch.int32),
    }
    if twin.prepared.image is not None:
        shape = (1, *twin.prepared.image.shape)
        drawn[Role.PIXELS] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    ports = twin.graphs().lowerings["align"].graph.inputs
    return {port.role: drawn[port.role] for port in ports if port.role is not None}


def _transformers(twin: TwinPair, inputs: dict[Role, torch.Tensor], layer: int) -> torch.Tensor:
    """(1, T, S): the mean over heads of its cross-attention in that layer."""
    reference: Any = twin.reference
    reference.set_attn_implementation("eager")  # the others do not return their weights
    source = transformers_inputs(inputs, twin.prepared.image)
    with torch.no_grad():
        if hasattr(reference, "vision_model"):  # BLIP returns its image tower's attentions only
            reference, image = reference.text_decoder, reference.vision_model(**source)
            source = {"encoder_hidden_states": image.last_hidden_state}
        tokens = {target_name(reference): inputs[Role.TOKENS]}
        output = reference(**source, **tokens, output_attentions=True)
    return output.cross_attentions[layer].mean(dim=1)


@pytest.mark.parametrize(("name", "config"), CONFIGS)
@pytest.mark.parametrize("length", [1, 6])
def test_alignment_is_the_cross_attention_of_transformers(
    name: str, config: str, length: int, twins: Twins
) -> None:
    twin = twins(name, config)
    inputs = _inputs(twin, length)
    align = twin.graphs().lowerings["align"].module
    for layer in range(align.decoder.layers):
        align.layer = layer
        with torch.no_grad():
            given = align(*inputs.values())
        assert difference(_transformers(twin, inputs, layer), given) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIGNED)
def test_exported_alignment_is_the_cross_attention_of_transformers(
    name: str, twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins(name, "odd"), bundles(name, "odd")
    session = onnxruntime.InferenceSession(str(bundle_path(bundle, "align")))
    inputs = _inputs(twin, 9)
    named = zip(session.get_inputs(), inputs.values(), strict=True)
    (given,) = session.run(None, {port.name: value.numpy() for port, value in named})
    wanted = _transformers(twin, inputs, twin.graphs().lowerings["align"].module.layer)
    assert difference(wanted, torch.from_numpy(given)) < TOLERANCE
    np.testing.assert_allclose(given.sum(axis=-1), 1, rtol=1e-5)


def test_padding_of_the_source_gets_no_attention(twins: Twins) -> None:
    align = twins("marian", "odd").graphs().lowerings["align"].module
    tokens, source = torch.tensor([[3, 4]]), torch.tensor([[5, 6, 7, 8]])
    padded = align(source, torch.tensor([3], dtype=torch.int32), tokens)
    alone = align(source[:, :3], torch.tensor([3], dtype=torch.int32), tokens)
    assert torch.equal(padded[..., 3], torch.zeros(1, 2))
    torch.testing.assert_close(padded[..., :3], alone)


@pytest.mark.parametrize("name", ALIGNED)
def test_align_graph_has_standard_operators_only(name: str, bundles: Bundles) -> None:
    bundle = bundles(name, "odd")
    model = onnx.load(str(bundle_path(bundle, "align")))
    assert {node.domain for node in model.graph.node} == {""}
    assert bundle.manifest.graphs["align"].output(Role.EMIT) is not None


def test_manifest_declares_the_positions_of_alignments(twins: Twins, bundles: Bundles) -> None:
    text = bundles("marian", "odd").manifest.alignment
    assert (text.over, text.grid, text.layer) == ("tokens", None, 1)
    twin = twins("vision-encoder-decoder", "not-square")
    image = twin.architecture.details(twin.network)["alignment"]
    assert (image.over, image.grid) == ("patches", (4, 3))
    emitted = twin.graphs().lowerings["align"].graph.output(Role.EMIT)
    assert emitted.shape == (1, "T", 1 + 4 * 3)  # the class token, then the grid


def test_a_deep_decoder_aligns_one_layer_earlier() -> None:
    assert [alignment_layer(layers) for layers in (1, 2, 3, 6, 12)] == [0, 1, 2, 4, 10]


def test_gate_fails_for_the_alignment_of_another_layer(twins: Twins, bundles: Bundles) -> None:
    graphs = twins("marian", "odd").graphs()
    graphs.lowerings["align"].module.layer = 0
    with pytest.raises(ParityError, match="align"):
        verify(graphs, bundles("marian", "odd"))
