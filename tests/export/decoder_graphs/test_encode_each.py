"""PyTorch reads images one at a time, a graph all at once: with the same vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from export.architecture import Lowering
from export.decoder_graphs.image_tokens import AdmitImageVectors
from export.graphs.to_onnx import to_onnx
from inference.bundle.manifest import Graph, Role
from inference.bundle.manifest import Tensor as Port


class _Counting(nn.Module):
    """An encoder that counts the images of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 5)
        self.calls: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        """(B, 2, 2, 3) → (B, 1, 5)."""
        if not torch.compiler.is_compiling():
            self.calls.append(len(images))
        return self.linear(images.flatten(1))[:, None]


def test_images_are_read_one_at_a_time_and_exported_as_one_batch(tmp_path: Path) -> None:
    pixels = Port(name="pixels", dtype="uint8", shape=("B", "I", 2, 2, 3), role=Role.PIXELS)
    vectors = Port(name="vectors", dtype="float32", shape=("B", "S", 5), role=Role.STATE)
    graph = Graph(file="admit.onnx", inputs=(pixels,), outputs=(vectors,))
    encoder = _Counting()
    module = AdmitImageVectors(encoder).eval()
    given = np.random.default_rng(0).integers(0, 256, (2, 3, 2, 2, 3), dtype=np.uint8)
    with torch.no_grad():
        (wanted,) = module(torch.from_numpy(given))
    assert encoder.calls == [1] * 6
    to_onnx(Lowering(module, graph), tmp_path / graph.file)
    session = onnxruntime.InferenceSession(str(tmp_path / graph.file))
    (found,) = session.run(None, {"pixels": given})
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-4)
    assert sum(node.op_type in ("Gemm", "MatMul") for node in _nodes(tmp_path / graph.file)) == 1


def _nodes(path: Path) -> list[object]:
    import onnx

    return list(onnx.load(str(path)).graph.node)
