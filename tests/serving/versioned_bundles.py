"""Bundles whose answers name their version.

Generators: version 2 continues every prompt with `v2 v2 v2 …`. Two towers: version 2 embeds along
axis 2, so towers of different versions are orthogonal.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx

from export.pipeline.publish import next_version, publish, staging
from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import Graph, Growth, Limits, Role, SourceInfo, State, Tensor
from inference.generation import Generation
from tests.inference.tiny_models import make_manifest, parse_graph, plain_recipe

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

TOKENIZER = TokenizerSpec(
    kind="tokenizers", pad_token_id=0, eos_token_id=1, files={"tokenizer": "tokenizer.json"}
)


def publish_version(repository: Path, name: str = "speaker") -> int:
    """Publish the next version as an export does; returns its number."""
    version = next_version(repository, {"generate": name})
    manifest = make_manifest(
        name, "generate", {"step": _STEP}, version=version,
        source=SourceInfo(name=name, content_hash=str(version)),
        states=(_COUNTER,), vocabulary_size=len(WORDS),
        limits=Limits(max_total_tokens=4096), default=True,
        generation=Generation(pad_token_id=0, max_new_tokens=8),
        tokenizer=TOKENIZER,
    )  # fmt: skip
    with staging(repository) as stage:
        folder = stage.part(name)
        onnx.save(_step(version), folder / "step.onnx")
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_file()), encoding="utf-8")
        publish(stage, repository, manifest)
    return version


def publish_towers(repository: Path, axes: int = 16, name: str = "towers") -> int:
    """Publish the next version of an image and a text tower; returns its number.

    The image's embedding and that of the text `a` are the unit vector of the version's axis; that
    of every other text is its negative.

    Args:
        axes: Width of the embeddings; versions of different widths need different configurations.
    """
    parts = {"image": name, "text": f"{name}-text"}
    version = next_version(repository, parts)
    embedding = Tensor(name="embedding", dtype="float32", shape=("B", axes), role=Role.EMBEDDING)
    pixels = Tensor(name="pixels", dtype="uint8", shape=("B", 4, 4, 3), role=Role.PIXELS)
    tokens = Tensor(name="tokens", dtype="int64", shape=("B", "T"), role=Role.TOKENS)
    lengths = Tensor(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS)
    graphs = {
        "image": Graph(file="model.onnx", inputs=(pixels,), outputs=(embedding,)),
        "text": Graph(file="model.onnx", inputs=(tokens, lengths), outputs=(embedding,)),
    }
    manifest = make_manifest(
        name, "zero-shot", graphs, version=version, tasks={"zero-shot": {"logit_scale": 1.0}},
        source=SourceInfo(name=name, content_hash=str(version)), parts=parts,
        image=plain_recipe((4, 4)), tokenizer=TOKENIZER,
    )  # fmt: skip
    with staging(repository) as stage:
        onnx.save(_image_tower(version, axes), stage.part(name) / "model.onnx")
        onnx.save(_text_tower(version, axes), stage.part(f"{name}-text") / "model.onnx")
        text = json.dumps(tokenizer_file())
        (stage.part(name) / "tokenizer.json").write_text(text, encoding="utf-8")
        publish(stage, repository, manifest)
    return version


def _image_tower(version: int, axes: int) -> onnx.ModelProto:
    text = f"""(uint8[B, 4, 4, 3] pixels) => (float[B, {axes}] embedding) {{
        levels = Cast <to = 1> (pixels)
        mean = ReduceMean <keepdims = 0> (levels, all)
        zeros = Mul(mean, zero)
        column = Unsqueeze(zeros, last)
        embedding = Add(column, axis)
    }}"""
    constants = {
        "all": np.array([1, 2, 3]),
        "zero": np.zeros((), np.float32),
        "last": np.array([1]),
        "axis": _axis(version, axes),
    }
    return parse_graph(text, constants, opset=20)


def _text_tower(version: int, axes: int) -> onnx.ModelProto:
    text = f"""(int64[B, T] tokens, int32[B] lengths) => (float[B, {axes}] embedding) {{
        token = Gather <axis = 1> (tokens, first)
        is_a = Equal(token, a)
        sign = Where(is_a, one, minus_one)
        column = Unsqueeze(sign, last)
        embedding = Mul(column, axis)
    }}"""
    constants = {
        "first": np.array(0),
        "a": np.array(WORDS.index("a")),
        "one": np.ones((), np.float32),
        "minus_one": -np.ones((), np.float32),
        "last": np.array([1]),
        "axis": _axis(version, axes),
    }
    return parse_graph(text, constants, opset=20)


def _axis(version: int, axes: int) -> np.ndarray:
    return np.eye(axes, dtype=np.float32)[None, version]


def _step(version: int) -> onnx.ModelProto:
    words = len(WORDS)
    text = f"""(int64[R, T] tokens, float[R, 1] count)
        => (float[R, {words}] logits, float[R, 1] next_count) {{
        next_count = Add(count, one)
        zeros = MatMul(next_count, nothing)
        logits = Add(zeros, scores)
    }}"""
    scores = np.zeros(words, np.float32)
    scores[FIRST + version - 1] = 9.0
    constants = {
        "one": np.ones((1, 1), np.float32),
        "nothing": np.zeros((1, words), np.float32),
        "scores": scores,
    }
    return parse_graph(text, constants, opset=20)


def tokenizer_file() -> dict[str, object]:
    """Content of `tokenizer.json`: a word is a token, unknown words are `a`."""
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
