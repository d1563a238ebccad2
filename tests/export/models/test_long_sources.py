"""Encoders that attend in blocks: their graphs take sources of one block and of many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from export.graphs.to_onnx import to_onnx
from tests.export.conftest import pair_of
from tests.export.twin import EXPORTED
from tests.export.twins import make_twin

BLOCKS: dict[str, dict[str, Any]] = {
    "longt5": {"local_radius": 7, "global_block_size": 16},
    "pegasus_x": {"block_size": 16, "max_position_embeddings": 256},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_graph_takes_sources_of_any_number_of_blocks(name: str, tmp_path: Path) -> None:
    pair = pair_of(name, EXPORTED, tmp_path, make_twin(name, EXPORTED, tmp_path, BLOCKS[name]))
    network = pair.graphs().lowerings["admit"].module
    to_onnx(pair.graphs().lowerings["admit"], tmp_path / "admit.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "admit.onnx"))
    names = [each.name for each in session.get_inputs()]
    for lengths in ([7, 3], [1], [16, 9], [48, 1, 20], [130]):
        tokens = torch.randint(3, 60, (len(lengths), max(lengths)))
        inputs = tokens, torch.tensor(lengths, dtype=torch.int32)
        with torch.no_grad():
            wanted = network(*inputs)
        feeds = {key: value.numpy() for key, value in zip(names, inputs, strict=True)}
        for want, got in zip(wanted, session.run(None, feeds), strict=True):
            for row, length in enumerate(lengths):
                expected = want[row, :, :length].numpy()
                np.testing.assert_allclose(got[row, :, :length], expected, atol=1e-4)
