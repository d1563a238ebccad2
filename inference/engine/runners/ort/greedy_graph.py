"""The graph `step` with the choice of a greedy token, so that a step is one run.

On a small model the work between two steps (Python, uploads, the start of a run, the choice in
another graph) takes as long as the step itself.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from inference.bundle.manifest import Manifest, Role
from inference.engine.runners.ort.logits_graphs import block_size, choice_graph

STEPS = 16
"""Most steps of one call."""
CALL_S = 0.005
"""A call begins no further step after this time: joins and cancellation wait for its end."""
BIAS, BANS, TOKEN_IDS, LOG_PROBS = (
    f"choice/{name}" for name in ("bias", "bans", "token_ids", "log_probs")
)
_MAX_BYTES = 64 << 20  # of the graph: its weights are held a second time


def small_step(manifest: Manifest, path: Path) -> onnx.ModelProto | None:
    """The graph `step`, if its choice can be joined to it and is worth the memory.

    Args:
        path: Of the graph.
    """
    logits = manifest.graphs["step"].output(Role.LOGITS)
    if logits is None or logits.dtype != "float32" or path.stat().st_size > _MAX_BYTES:
        return None
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:  # opening the session reports it
        return None
    has_weights_beside = any(
        map(onnx.external_data_helper.uses_external_data, model.graph.initializer)
    )
    return None if has_weights_beside else model


def greedy_graph(model: onnx.ModelProto, manifest: Manifest) -> onnx.ModelProto:
    """The graph `step` for T = 1, with `choice_graph` behind its logits.

    Args:
        model: The graph `step`; changed.
    """
    ports, size = manifest.graphs["step"], manifest.vocabulary_size
    tokens, logits = ports.input(Role.TOKENS), ports.output(Role.LOGITS)
    assert tokens is not None
    assert logits is not None
    assert size is not None
    for value in model.graph.input:
        if value.name == tokens.name:
            value.type.tensor_type.shape.dim[1].dim_value = 1
    choice = onnx.compose.add_prefix(choice_graph(size, block_size(size)), "choice/")
    choice.ir_version = model.ir_version
    del choice.opset_import[:]
    choice.opset_import.extend(model.opset_import)
    states = [state.step_output for state in manifest.states if state.step_output is not None]
    return onnx.compose.merge_models(
        model,
        choice,
        [(logits.name, "choice/logits")],
        outputs=[TOKEN_IDS, LOG_PROBS, *states],
    )
