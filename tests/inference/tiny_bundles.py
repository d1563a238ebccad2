"""Bundles small enough to write by hand: one ONNX graph, one configuration, a bare manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import helper

from inference.bundle.manifest import MANIFEST, Graph, Role, Tensor
from tests.inference.manifests import make_manifest, plain_recipe

Value = tuple[str, int, Sequence[int | str | None]]
"""Name, ONNX element type, shape."""

_RECIPE = plain_recipe((1, 1))


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    constants: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    """An ONNX model of standard operators that every Triton of interest can read."""
    body = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        list(constants),
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def publish(
    repository: Path,
    name: str,
    model: onnx.ModelProto | None,
    config: str,
    *,
    version: int = 1,
    parts: dict[str, str] | None = None,
    complete: bool = True,
) -> Path:
    """Write one version of a bundle; without a manifest when it shall be incomplete."""
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if model is not None:
        onnx.save(model, folder / "model.onnx")
    if complete:
        graphs = {"image": _embeds(MANIFEST if model is None else "model.onnx")}
        fields = {"version": version, "parts": parts or {"image": name}, "image": _RECIPE}
        manifest = make_manifest(name, "embed", graphs, **fields)
        (folder / MANIFEST).write_text(json.dumps(manifest.model_dump(mode="json")))
    return folder


def _embeds(file: str) -> Graph:
    """What the manifest's task needs; the file's own interface may be another."""
    return Graph(
        file=file,
        inputs=(Tensor(name="x", dtype="uint8", shape=("B", 1, 1, 3), role=Role.PIXELS),),
        outputs=(Tensor(name="y", dtype="float32", shape=("B", 1), role=Role.EMBEDDING),),
    )
