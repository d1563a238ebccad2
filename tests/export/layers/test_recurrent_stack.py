"""Recurrent cells and layers: against the written equations, `torch.nn`, and as ONNX graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from export.architecture import Lowering
from export.graphs.to_onnx import to_onnx
from export.layers.recurrence.cells import CELLS
from export.layers.recurrence.recurrent_stack import RecurrentLayer, RecurrentStack
from inference.bundle.manifest import Graph, Role
from inference.bundle.manifest import Tensor as Port
from tests.export.models import recurrent_paper

LENGTHS = torch.tensor([6, 3, 1], dtype=torch.int32)
TOLERANCE = 2e-6
SCANNED = {"mut1", "mut2"}
"""Exported as `mut3` is, by the same code; their equations are compared without a graph."""
GRAPH_TOLERANCE = 1e-5
"""Of weights as large as these, which amplify the last bits of a hyperbolic tangent."""


def stack(cell: str, layers: int = 2, *, is_bidirectional: bool = True) -> RecurrentStack:
    torch.manual_seed(0)
    made = RecurrentStack(CELLS[cell], 5, 7, layers, is_bidirectional=is_bidirectional).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.7)
    return made


def inputs() -> torch.Tensor:
    return torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(1))


def weights(layer: RecurrentLayer) -> list[dict[str, np.ndarray] | None]:
    both = [
        {name: value.detach().double().numpy() for name, value in cell.state_dict().items()}
        for cell in layer.cells
    ]
    return [*both, None][:2]


@pytest.mark.parametrize("is_bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_layers_compute_the_equations(cell: str, is_bidirectional: bool) -> None:
    network, x = stack(cell, is_bidirectional=is_bidirectional), inputs()
    with torch.no_grad():
        found = network(x, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        read = x[row, :length].double().numpy()
        for layer in network.layers:
            assert isinstance(layer, RecurrentLayer)
            read = recurrent_paper.layer(cell, *weights(layer), read)
        assert np.abs(found[row, :length].numpy() - read).max() < TOLERANCE
        assert not found[row, length:].any()


@pytest.mark.parametrize(
    ("cell", "reference"),
    [("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru-reset-after", nn.GRU)],
)
def test_layers_compute_what_torch_computes(cell: str, reference: type[nn.RNNBase]) -> None:
    network, x = stack(cell), inputs()
    theirs = reference(5, 7, num_layers=2, bidirectional=True, batch_first=True)
    for number, layer in enumerate(network.layers):
        assert isinstance(layer, RecurrentLayer)
        for suffix, one in zip(("", "_reverse"), layer.cells, strict=True):
            for own, name in ((one.input, "ih"), (one.recurrence, "hh")):
                getattr(theirs, f"weight_{name}_l{number}{suffix}").data = own.weight.data
                getattr(theirs, f"bias_{name}_l{number}{suffix}").data = own.bias.data
    packed = nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True)
    with torch.no_grad():
        wanted, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
        assert (network(x, LENGTHS) - wanted).abs().max() < TOLERANCE


@pytest.mark.parametrize("cell", CELLS)
def test_steps_equal_the_whole_sequence(cell: str) -> None:
    network, x = stack(cell, is_bidirectional=False), inputs()
    with torch.no_grad():
        whole = network(x, torch.full((3,), 6, dtype=torch.int32))
        count = len(CELLS[cell].states) * 2
        states = tuple(torch.zeros(3, 7) for _ in range(count))
        for place in range(6):
            found, states = network.step(x[:, place], states)
            assert (found - whole[:, place]).abs().max() < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "is_bidirectional"),
    [
        *(
            pytest.param(cell, True, marks=pytest.mark.full if cell in SCANNED else ())
            for cell in CELLS
        ),
        ("lstm", False),
        pytest.param("mut3", False, marks=pytest.mark.full),
    ],
)
def test_graphs_compute_what_the_layers_compute(
    cell: str, is_bidirectional: bool, tmp_path: Path
) -> None:
    network = stack(cell, is_bidirectional=is_bidirectional)
    path = tmp_path / "model.onnx"
    ports = (
        Port(name="x", dtype="float32", shape=("B", "T", 5), role=Role.STATE),
        Port(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
    )
    output = Port(
        name="states", dtype="float32", shape=("B", "T", network.output_width), role=Role.HIDDEN
    )
    to_onnx(Lowering(network, Graph(file=path.name, inputs=ports, outputs=(output,))), path)
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert (CELLS[cell].operator or "Scan") in operators
    session = onnxruntime.InferenceSession(path)
    for rows, positions in ((3, 6), (1, 6), (1, 1), (2, 9)):
        torch.manual_seed(rows + positions)
        x = torch.randn(rows, positions, 5)
        lengths = torch.randint(1, positions + 1, (rows,), dtype=torch.int32)
        (found,) = session.run(None, {"x": x.numpy(), "lengths": lengths.numpy()})
        with torch.no_grad():
            assert np.abs(found - network(x, lengths).numpy()).max() < GRAPH_TOLERANCE
