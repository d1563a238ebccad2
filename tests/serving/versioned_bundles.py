"""Generators whose text names their version: version 2 continues every prompt with `v2 v2 v2 …`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.publish import next_version, publish, staging
from serving.bundle import (
    Graph,
    Growth,
    Limits,
    Manifest,
    Role,
    SourceInfo,
    State,
    Tensor,
    TokenizerSpec,
)
from serving.generation import Generation

MOST_VERSIONS = 12
WORDS = ("<pad>", "</s>", "a", *(f"v{number}" for number in range(1, MOST_VERSIONS + 1)))
FIRST = WORDS.index("v1")
"""Token of version 1; the others follow."""
_COUNTER = State(
    name="count", growth=Growth.REPLACE, dtype="float32", shape=("R", 1),
    step_input="count", step_output="next_count",
)  # fmt: skip
_STEP = Graph(
    file="step.onnx",
    inputs=(
        Tensor(name="tokens", dtype="int64", shape=("R", "T"), role=Role.TOKENS),
        Tensor(name="count", dtype="float32", shape=("R", 1), role=Role.STATE),
    ),
    outputs=(
        Tensor(name="logits", dtype="float32", shape=("R", len(WORDS)), role=Role.LOGITS),
        Tensor(name="next_count", dtype="float32", shape=("R", 1), role=Role.STATE),
    ),
    max_tokens_per_call=1,
)


def publish_version(repository: Path, name: str = "speaker") -> int:
    """Publish the next version as an export does; returns its number."""
    version = next_version(repository, {"generate": name})
    manifest = Manifest(
        name=name, version=version, architecture="toy", precision="fp32", tasks={"generate": {}},
        source=SourceInfo(name=name, content_hash=str(version)), parts={"generate": name},
        graphs={"step": _STEP}, states=(_COUNTER,), vocabulary_size=len(WORDS),
        limits=Limits(max_total_tokens=4096), default=True,
        generation=Generation(pad_token_id=0, max_new_tokens=8),
        tokenizer=TokenizerSpec(
            kind="tokenizers", pad_token_id=0, eos_token_id=1,
            files={"tokenizer": "tokenizer.json"},
        ),
    )  # fmt: skip
    with staging(repository) as stage:
        folder = stage.part(name)
        onnx.save(_step(version), folder / "step.onnx")
        (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
        publish(stage, repository, manifest)
    return version


def _step(version: int) -> onnx.ModelProto:
    scores = np.zeros(len(WORDS), np.float32)
    scores[FIRST + version - 1] = 9.0
    constants = {
        "one": np.ones((1, 1), np.float32),
        "nothing": np.zeros((1, len(WORDS)), np.float32),
        "scores": scores,
    }
    body = helper.make_graph(
        [
            helper.make_node("Add", ["count", "one"], ["next_count"]),
            helper.make_node("MatMul", ["next_count", "nothing"], ["zeros"]),
            helper.make_node("Add", ["zeros", "scores"], ["logits"]),
        ],
        "step",
        [
            helper.make_tensor_value_info("tokens", TensorProto.INT64, ["R", "T"]),
            helper.make_tensor_value_info("count", TensorProto.FLOAT, ["R", 1]),
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["R", len(WORDS)]),
            helper.make_tensor_value_info("next_count", TensorProto.FLOAT, ["R", 1]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _tokenizer() -> dict[str, object]:
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"},
    }
