"""Three hand-made bundles, one of each kind of decoder, and their equations in numpy.

`attention`: text source, cached self-attention (APPEND in place), cross-attention (HOLD, bucketed).
`recurrent`: picture source, a hidden state (REPLACE, started by `admit`) and a context (HOLD), one
token a call.
`language`: no source, two layers of cached self-attention (APPEND in place) over tokens and their
positions, which takes prompts in chunks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inference.bundle.manifest import Bundle, Graph, Growth, Limits, Manifest, Role, State, Tensor
from tests.inference.engine.fake_runner import History
from tests.inference.tiny_models import make_manifest

VOCABULARY, WIDTH = 24, 8
_TYPES = {
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "float32": TensorProto.FLOAT,
    "uint8": TensorProto.UINT8,
}


def weight(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


TARGET = weight(1, VOCABULARY, WIDTH)
PACKED = weight(2, WIDTH, 3 * WIDTH)
KEYS, VALUES = weight(3, VOCABULARY, WIDTH), weight(4, VOCABULARY, WIDTH)
OUTPUT = weight(5, WIDTH, VOCABULARY)
START, CONTEXT = weight(6, 12, WIDTH) / 300, weight(7, 12, WIDTH) / 300
RECURRENCE = weight(8, WIDTH, WIDTH) / 4  # rounding does not grow with the steps
PLACES, PACKED_LAYERS = weight(9, 512, WIDTH), weight(10, 2, WIDTH, 3 * WIDTH) / 2


def _port(name: str, dtype: str, *shape: int | str, role: Role | None = None) -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape, role=role)


TOKENS = _port("tokens", "int64", "R", "T", role=Role.TOKENS)
CACHES = tuple(
    State(
        name=name, growth=Growth.APPEND, dtype="float32", shape=("R", 1, "P", WIDTH),
        step_input=f"past_{name}", step_output=f"present_{name}", layout="in_place",
    )
    for name in ("key", "value")
)  # fmt: skip
MEMORIES = tuple(
    State(
        name=f"cross_{name}", growth=Growth.HOLD, dtype="float32", shape=("B", 1, "S", WIDTH),
        step_input=f"cross_{name}", admit_output=f"cross_{name}",
    )
    for name in ("key", "value")
)  # fmt: skip
HIDDEN = State(
    name="hidden", growth=Growth.REPLACE, dtype="float32", shape=("R", WIDTH),
    step_input="hidden", step_output="next_hidden", admit_output="start",
)  # fmt: skip
HELD = State(
    name="context", growth=Growth.HOLD, dtype="float32", shape=("B", WIDTH),
    step_input="context", admit_output="context",
)  # fmt: skip


def attention_bundle(repository: Path, *, emits: bool = False, aligns: bool = False) -> Bundle:
    """The first kind.

    Args:
        emits: `step` emits a fit of each source token, (R, S).
        aligns: There is a graph `align` with other values.
    """
    source = _port("source_tokens", "int64", "B", "S", role=Role.SOURCE_TOKENS)
    lengths = _port("source", "int32", "B", role=Role.SOURCE)
    admit = Graph(
        file="admit.onnx",
        inputs=(source, lengths),
        outputs=tuple(_port(s.name, "float32", *s.shape, role=Role.STATE) for s in MEMORIES),
    )
    step = Graph(
        file="step.onnx",
        inputs=(
            TOKENS,
            _port("lengths", "int32", "R", role=Role.LENGTHS),
            _port("total", "int32", role=Role.TOTAL),
            _port("last", "int64", "R", role=Role.LAST),
            lengths,
            *(_port(s.step_input, "float32", *s.shape, role=Role.STATE) for s in CACHES),
            *(_port(s.step_input, "float32", *s.shape, role=Role.STATE) for s in MEMORIES),
        ),
        outputs=(
            _port("logits", "float32", "R", VOCABULARY, role=Role.LOGITS),
            *(_port(f"present_{s.name}", "float32", *s.shape, role=Role.STATE) for s in CACHES),
            *((_port("fit", "float32", "R", "S", role=Role.EMIT),) if emits else ()),
        ),
    )
    align = Graph(
        file="align.onnx",
        inputs=(source, lengths, _port("tokens", "int64", "B", "T", role=Role.TOKENS)),
        outputs=(_port("likeness", "float32", "B", "T", "S", role=Role.EMIT),),
    )
    attend = {"num_heads": 1, "domain": "com.microsoft"}
    nodes = {
        "admit": [
            _node("Gather", "keys source_tokens", "keys_3d"),
            _node("Gather", "values source_tokens", "values_3d"),
            _node("Unsqueeze", "keys_3d one", "cross_key"),
            _node("Unsqueeze", "values_3d one", "cross_value"),
        ],
        "step": [
            _node("Gather", "target tokens", "x"),
            _node("MatMul", "x packed", "qkv"),
            _node("Sub", "lengths one_32", "before"),
            _node(
                "GroupQueryAttention", "qkv - - past_key past_value before total",
                "mixed present_key present_value", kv_num_heads=1, **attend,
            ),
            _node("Unsqueeze", "last one", "index"),
            _node("GatherND", "mixed index", "final", batch_dims=1),
            _node("Shape", "source", "count"),
            _node("Concat", "count rest", "by_sequence", axis=0),
            _node("Reshape", "final by_sequence", "query"),
            _node(
                "MultiHeadAttention", "query cross_key cross_value - source", "crossed", **attend
            ),
            _node("Reshape", "crossed by_row", "context"),
            _node("Add", "final context", "sum"),
            _node("MatMul", "sum output", "logits"),
        ],
        "align": [
            _node("Gather", "target tokens", "words"),
            _node("Gather", "keys source_tokens", "source_keys"),
            _node("Transpose", "source_keys", "across", perm=[0, 2, 1]),
            _node("MatMul", "words across", "likeness"),
        ],
    }  # fmt: skip
    if emits:
        nodes["step"] += [
            _node("Squeeze", "cross_key one", "source_keys"),
            _node("Transpose", "source_keys", "across", perm=[0, 2, 1]),
            _node("MatMul", "query across", "fits"),
            _node("Flatten", "fits", "fit", axis=2),
        ]
    graphs = {"admit": admit, "step": step} | ({"align": align} if aligns else {})
    return _write(repository, graphs, nodes, (*CACHES, *MEMORIES))


def recurrent_bundle(repository: Path) -> Bundle:
    pixels = _port("pixels", "uint8", "B", 2, 2, 3, role=Role.PIXELS)
    admit = Graph(
        file="admit.onnx",
        inputs=(pixels,),
        outputs=(_port("start", "float32", "B", WIDTH), _port("context", "float32", "B", WIDTH)),
    )
    step = Graph(
        file="step.onnx",
        inputs=(
            TOKENS,
            _port("hidden", "float32", "R", WIDTH, role=Role.STATE),
            _port("context", "float32", "B", WIDTH, role=Role.STATE),
        ),
        outputs=(
            _port("logits", "float32", "R", VOCABULARY, role=Role.LOGITS),
            _port("next_hidden", "float32", "R", WIDTH, role=Role.STATE),
        ),
        max_tokens_per_call=1,
    )
    nodes = {
        "admit": [
            _node("Cast", "pixels", "floats", to=TensorProto.FLOAT),
            _node("Flatten", "floats", "flat"),
            _node("MatMul", "flat start_weight", "start"),
            _node("MatMul", "flat context_weight", "context"),
        ],
        "step": [
            _node("Gather", "target tokens", "x"),
            _node("Squeeze", "x one", "word"),
            _node("MatMul", "hidden recurrence", "carried"),
            _node("Add", "word carried", "sum"),
            _node("Shape", "context", "count", end=1),
            _node("Concat", "count rest", "by_sequence", axis=0),
            _node("Reshape", "sum by_sequence", "beams"),
            _node("Unsqueeze", "context one", "context_3d"),
            _node("Add", "beams context_3d", "seen"),
            _node("Reshape", "seen by_row", "seen_rows"),
            _node("Tanh", "seen_rows", "next_hidden"),
            _node("MatMul", "next_hidden output", "logits"),
        ],
    }
    return _write(repository, {"admit": admit, "step": step}, nodes, (HIDDEN, HELD))


def language_bundle(repository: Path) -> Bundle:
    caches = tuple(
        cache.model_copy(
            update={
                "name": f"{cache.name}_{layer}",
                "step_input": f"past_{cache.name}_{layer}",
                "step_output": f"present_{cache.name}_{layer}",
            }
        )
        for layer in (0, 1)
        for cache in CACHES
    )
    step = Graph(
        file="step.onnx",
        inputs=(
            TOKENS,
            _port("lengths", "int32", "R", role=Role.LENGTHS),
            _port("total", "int32", role=Role.TOTAL),
            _port("last", "int64", "R", role=Role.LAST),
            *(_port(s.step_input, "float32", *s.shape, role=Role.STATE) for s in caches),
        ),
        outputs=(
            _port("logits", "float32", "R", VOCABULARY, role=Role.LOGITS),
            *(_port(f"present_{s.name}", "float32", *s.shape, role=Role.STATE) for s in caches),
        ),
    )
    nodes = [
        _node("Gather", "target tokens", "words"),
        _node("Cast", "lengths", "ends", to=TensorProto.INT64),
        _node("Sub", "ends last", "after"),
        _node("Sub", "after one", "start"),
        _node("Unsqueeze", "start one", "start_2d"),
        _node("Shape", "tokens", "count", start=1),
        _node("Squeeze", "count", "new"),
        _node("Range", "zero new unit", "steps"),
        _node("Add", "start_2d steps", "positions"),
        _node("Gather", "places positions", "placed"),
        _node("Add", "words placed", "x_0"),
        _node("Sub", "lengths one_32", "before"),
    ]
    for layer in (0, 1):
        nodes += [
            _node("MatMul", f"x_{layer} packed_{layer}", f"qkv_{layer}"),
            _node(
                "GroupQueryAttention",
                f"qkv_{layer} - - past_key_{layer} past_value_{layer} before total",
                f"mixed_{layer} present_key_{layer} present_value_{layer}",
                num_heads=1, kv_num_heads=1, domain="com.microsoft",
            ),
            _node("Add", f"x_{layer} mixed_{layer}", f"x_{layer + 1}"),
        ]  # fmt: skip
    nodes += [
        _node("Unsqueeze", "last one", "index"),
        _node("GatherND", "x_2 index", "final", batch_dims=1),
        _node("MatMul", "final output", "logits"),
    ]
    return _write(repository, {"step": step}, {"step": nodes}, caches)


def halved(bundle: Bundle) -> Bundle:
    """The bundle rewritten in place in float16: weights, states and logits."""
    for graph in bundle.manifest.graphs.values():
        path = bundle.path(graph.file)
        model = onnx.load(path)
        for initializer in model.graph.initializer:
            if initializer.data_type == TensorProto.FLOAT:
                half = numpy_helper.to_array(initializer).astype(np.float16)
                initializer.CopyFrom(numpy_helper.from_array(half, initializer.name))
        for value in (*model.graph.input, *model.graph.output):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.FLOAT16
        for node in model.graph.node:
            for attribute in node.attribute:
                if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                    attribute.i = TensorProto.FLOAT16
        onnx.save(model, path)
    fields = bundle.manifest.model_dump_json().replace('"float32"', '"float16"')
    bundle.path("bundle.json").write_text(fields, encoding="utf-8")
    return Bundle(bundle.folder, Manifest.model_validate_json(fields))


def language_logits(source: History, history: History) -> np.ndarray:
    """Logits of `language` for one row, without a cache."""
    x = TARGET[list(history)] + PLACES[: len(history)]
    earlier = np.tril(np.ones((len(x), len(x)), bool))
    for packed in PACKED_LAYERS:
        query, key, value = np.split(x @ packed, 3, axis=1)
        scores = np.where(earlier, query @ key.T / np.sqrt(WIDTH), -np.inf)
        x = x + np.stack([_softmax(row) for row in scores]) @ value
    return x[-1] @ OUTPUT


def attention_logits(source: History, history: History) -> np.ndarray:
    """Logits of `attention` for one row, without a cache."""
    x = TARGET[list(history)]
    query, key, value = np.split(x @ PACKED, 3, axis=1)
    final = _softmax(query[-1] @ key.T / np.sqrt(WIDTH)) @ value
    weights = _softmax(final @ KEYS[list(source)].T / np.sqrt(WIDTH))
    return (final + weights @ VALUES[list(source)]) @ OUTPUT


def attention_fit(source: History, history: History) -> np.ndarray:
    """The row that `attention` emits, (S,)."""
    x = TARGET[list(history)]
    query, key, value = np.split(x @ PACKED, 3, axis=1)
    final = _softmax(query[-1] @ key.T / np.sqrt(WIDTH)) @ value
    return final @ KEYS[list(source)].T


def attention_likeness(source: History, history: History) -> np.ndarray:
    """Output of `align` for every token of one row, (T, S)."""
    return TARGET[list(history)] @ KEYS[list(source)].T


def recurrent_logits(pixels: History, history: History) -> np.ndarray:
    """Logits of `recurrent` for one row; `pixels` are the 12 values of its picture."""
    flat = np.array(pixels, np.float32)
    hidden = flat @ START
    for token in history:
        hidden = np.tanh(TARGET[token] + hidden @ RECURRENCE + flat @ CONTEXT)
    return hidden @ OUTPUT


def _softmax(scores: np.ndarray) -> np.ndarray:
    exponents = np.exp(scores - scores.max())
    return exponents / exponents.sum()


def _node(kind: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), **attributes)


def _constants() -> dict[str, np.ndarray]:
    return {
        "target": TARGET, "packed": PACKED, "keys": KEYS, "values": VALUES, "output": OUTPUT,
        "start_weight": START, "context_weight": CONTEXT, "recurrence": RECURRENCE,
        "places": PLACES, "packed_0": PACKED_LAYERS[0], "packed_1": PACKED_LAYERS[1],
        "zero": np.array(0), "unit": np.array(1), "one": np.array([1]),
        "one_32": np.array(1, np.int32),
        "rest": np.array([-1, WIDTH]), "by_row": np.array([-1, WIDTH]),
    }  # fmt: skip


def _write(
    repository: Path,
    graphs: dict[str, Graph],
    nodes: dict[str, list[onnx.NodeProto]],
    states: tuple[State, ...],
) -> Bundle:
    folder = repository / "toy" / "1"
    folder.mkdir(parents=True)
    for name, graph in graphs.items():
        used = {name for node in nodes[name] for name in node.input}
        model = helper.make_model(
            helper.make_graph(
                nodes[name],
                name,
                [_value(port) for port in graph.inputs],
                [_value(port) for port in graph.outputs],
                [numpy_helper.from_array(a, n) for n, a in _constants().items() if n in used],
            ),
            opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)],
            ir_version=10,
        )
        onnx.save(model, folder / graph.file)
    fields = {"states": states, "limits": Limits(), "vocabulary_size": VOCABULARY}
    manifest = make_manifest("toy", "translate", graphs, **fields)
    (folder / "bundle.json").write_text(manifest.model_dump_json(), encoding="utf-8")
    return Bundle(folder, manifest)


def _value(port: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(port.name, _TYPES[port.dtype], port.shape)


def for_openvino(bundle: Bundle, **fields: object) -> Bundle:
    """The bundle to be run by OpenVINO."""
    update = {"runtime": "openvino", **fields}
    return replace(bundle, manifest=bundle.manifest.model_copy(update=update))
