"""Probing, verifying and publishing depend on roles only: no task or architecture is named."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from export.parity.parity_inputs import (
    Probe,
    output_row,
    single_row,
    stateless_feeds,
    without_padding,
)
from export.registry import ARCHITECTURES, architecture, module_of
from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import Graph, Manifest, Role, Tensor
from tests.inference.tiny_models import make_manifest

MODULES = (
    "export.parity.graph_runs",
    "export.parity.parity_inputs",
    "export.parity.verify",
    "export.pipeline.publish",
    "export.graphs.to_onnx",
)
NAMES = {
    *ARCHITECTURES,
    *(module_of(name).rpartition(".")[2] for name in ARCHITECTURES),
    *(task for name in ARCHITECTURES for task in architecture(name).tasks),
} - {"align"}  # a graph of generators has the name of that architecture, too


@pytest.mark.parametrize("module", MODULES)
def test_module_names_no_task_and_no_architecture(module: str) -> None:
    text = Path(import_module(module).__file__ or "").read_text(encoding="utf-8")
    words = "|".join(re.escape(name).replace(r"\-", "[-_ ]") for name in sorted(NAMES))
    # methods of numpy may be called like a model (`.clip(`)
    assert re.findall(rf"(?<![.\w])(?:{words})(?!\w)", text, re.IGNORECASE) == []


def test_stateless_inputs_are_drawn_by_role_whatever_their_names() -> None:
    inputs = (
        Tensor(name="a", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
        Tensor(name="b", dtype="int32", shape=("B",), role=Role.LENGTHS),
        Tensor(name="c", dtype="int64", shape=("B", "T"), role=Role.SEGMENTS),
        Tensor(name="d", dtype="uint8", shape=("B", 4, 6, 3), role=Role.PIXELS),
        Tensor(name="e", dtype="bool", shape=("B", 4, 6), role=Role.PIXEL_MASK),
    )
    output = Tensor(name="f", dtype="float32", shape=("B", 8), role=Role.EMBEDDING)
    graph = Graph(file="g.onnx", inputs=inputs, outputs=(output,))
    tokenizer = TokenizerSpec(kind="tokenizers", pad_token_id=0, eos_token_id=9, files={})
    manifest = make_manifest("x", "x", {"g": graph}, parts={"g": "x"}, tokenizer=tokenizer)
    feeds = stateless_feeds(graph, manifest, Probe(50, 50), 3, 7)
    assert feeds["a"].shape == feeds["c"].shape == (3, 7)
    assert feeds["b"][0] == 7
    np.testing.assert_array_equal(feeds["a"][np.arange(3), feeds["b"] - 1], 9)
    assert set(np.unique(feeds["c"])) <= {0, 1}
    assert feeds["e"].dtype == bool
    assert feeds["e"][:, 0, 0].all()  # an image begins at the upper left corner
    assert not feeds["e"].all()
    alone = single_row(graph, feeds, 1)
    assert alone["a"].shape == alone["c"].shape == (1, feeds["b"][1])
    assert alone["d"].shape == (1, 4, 6, 3)


def test_padding_of_hidden_states_is_not_compared() -> None:
    """Two graphs may differ at padding; a row alone has none."""
    inputs = (
        Tensor(name="a", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
        Tensor(name="b", dtype="int32", shape=("B",), role=Role.LENGTHS),
    )
    hidden = Tensor(name="h", dtype="float32", shape=("B", "T", 4), role=Role.HIDDEN)
    weights = Tensor(name="w", dtype="float32", shape=("B", 2, "T", "T"), role=Role.ATTENTION)
    graph = Graph(file="g.onnx", inputs=inputs, outputs=(hidden, weights))
    feeds = {"a": np.ones((2, 5), np.int64), "b": np.array([5, 3], np.int32)}
    for port, shape in ((hidden, (2, 5, 4)), (weights, (2, 2, 5, 5))):
        value = np.full(shape, 7, np.float32)
        kept = without_padding(graph, feeds, port, value)
        assert (kept[0] == 7).all()
        assert kept[1].sum() == 7 * output_row(graph, feeds, port, value, 1).size
    assert output_row(graph, feeds, hidden, np.ones((2, 5, 4)), 1).shape == (1, 3, 4)
    assert output_row(graph, feeds, weights, np.ones((2, 2, 5, 5)), 1).shape == (1, 2, 3, 3)


def test_unknown_role_is_refused() -> None:
    port = Tensor(name="a", dtype="float32", shape=("B",), role=Role.HIDDEN)
    graph = Graph(file="g.onnx", inputs=(port,), outputs=())
    with pytest.raises(AssertionError, match="no probe for an input of role hidden"):
        stateless_feeds(graph, Manifest.model_construct(tokenizer=None), Probe(5, 5), 1, 1)
