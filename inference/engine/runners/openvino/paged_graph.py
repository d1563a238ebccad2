"""The graph `step` with paged attention: the form that OpenVINO runs.

`step.onnx` is the file that ONNX Runtime runs too. OpenVINO reads it with one `GroupQueryAttention`
a layer, whose rectangular caches become blocks here. Every token of a call is a row of its own, so
that prompts and decoding sequences of any lengths share a call without padding.

Legend: N tokens of a call, M of them that are scored, H query heads, G key and value heads, K width
of a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops
from openvino.op import Parameter
from openvino.op import _PagedAttentionExtension as PagedAttention

from inference.bundle.manifest import Graph, Growth, Manifest, Role
from inference.engine.runners.openvino.cross_attention import replace_cross_attention
from inference.errors import BundleError

PAST_LENS, BEGINS, BLOCKS, BLOCK_BEGINS, LONGEST, SCORED = (
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    "scored",
)
"""Inputs beside those of `step`: for each sequence of the call the tokens in its blocks, where its
new tokens and its block indices begin (one more entry than sequences), the block indices, the
largest length after the call, and the tokens (of N) that are scored."""

_CONTROLS = {PAST_LENS: 1, BEGINS: 1, BLOCKS: 1, BLOCK_BEGINS: 1, LONGEST: 0}
_QUERY, _KEY, _VALUE, _LENGTHS, _COSINES, _SINES, _BIAS = 0, 1, 2, 5, 7, 8, 10
"""Inputs of OpenVINO's GroupQueryAttention."""


def paged_graph(model: openvino.Model, manifest: Manifest) -> openvino.Model:
    """`step` as OpenVINO has read it → tokens (N, 1), lengths (N,) and the inputs above → logits.

    Keys and values of layer i are `key_cache.i` and `value_cache.i`, (blocks, G, block, K), which
    the caller owns; their shape and type are those of the compiled model.

    Args:
        model: Changed in place; not used afterwards.

    Raises:
        BundleError: the graph has attention that the operator lacks.
    """
    graph = manifest.graphs["step"]
    parameters = {name: each for each in model.get_parameters() for name in each.output(0).names}
    controls = {name: _parameter(name, [-1] * rank, np.int32) for name, rank in _CONTROLS.items()}
    scored = _parameter(SCORED, [-1], np.int64)
    kept = [parameters[name] for name in _kept_inputs(graph, manifest)]
    _set_one_token_a_row(model, graph, parameters)
    caches = []
    layers = _attention_nodes(model)
    _select_scored(parameters[_name(graph, Role.LAST)], scored, layers[-1], manifest.name)
    for index, node in enumerate(layers):
        pair = [_parameter(f"{kind}_cache.{index}", [-1] * 4, None) for kind in ("key", "value")]
        _replace_attention(node, pair, controls, manifest.name)
        caches += pair
    logits = graph.output(Role.LOGITS)
    assert logits is not None
    result = next(each for each in model.get_results() if logits.name in each.output(0).names)
    paged = openvino.Model([result], [*kept, *controls.values(), scored, *caches], "paged")
    replace_cross_attention(paged)
    paged.validate_nodes_and_infer_types()
    return paged


def _parameter(name: str, shape: Sequence[int], dtype: Any) -> Any:
    """An input; of any type where `dtype` is None."""
    kind = openvino.Type.dynamic if dtype is None else openvino.Type(dtype)
    made = Parameter(kind, openvino.PartialShape(list(shape)))
    made.set_friendly_name(name)
    made.output(0).get_tensor().set_names({name})
    return made


def _kept_inputs(graph: Graph, manifest: Manifest) -> Iterator[str]:
    """Inputs of `step` that stay: tokens, lengths, and what belongs to sources and images."""
    for port in graph.inputs:
        if port.role in (Role.TOKENS, Role.LENGTHS, Role.SOURCE):
            yield port.name
    for state in manifest.states:
        if state.growth is Growth.HOLD or state.counted_token is not None:
            yield state.step_input


def _set_one_token_a_row(
    model: openvino.Model, graph: Graph, parameters: Mapping[str, Any]
) -> None:
    """Fixes T = 1, with which transpositions of heads and positions move nothing."""
    tokens = parameters[_name(graph, Role.TOKENS)]
    tokens.set_partial_shape(openvino.PartialShape([-1, 1]))
    model.validate_nodes_and_infer_types()


def _attention_nodes(model: openvino.Model) -> list[Any]:
    """The self-attention of each layer, first to last."""
    return [op for op in model.get_ordered_ops() if op.get_type_name() == "GroupQueryAttention"]


def _replace_attention(
    node: Any, caches: Sequence[Any], controls: Mapping[str, Any], name: str
) -> None:
    """Puts paged attention in the place of a GroupQueryAttention.

    Raises:
        BundleError: it has a bias of scores.
    """
    attributes = node.get_attributes()
    if _is_given(node, _BIAS):
        raise BundleError(
            f"{name}: OpenVINO's paged attention has no bias of scores: export with --runtime "
            "onnxruntime"
        )
    query, key, value = (node.input_value(index) for index in (_QUERY, _KEY, _VALUE))
    if attributes["do_rotary"]:
        tables = node.input_value(_COSINES), node.input_value(_SINES)
        places = node.input_value(_LENGTHS)  # of lengths without the last token: its position
        is_interleaved = bool(attributes["rotary_interleaved"])
        query, key = (_rotate(each, places, tables, is_interleaved) for each in (query, key))
    width = query.get_partial_shape()[3].get_length()
    groups = attributes["kv_num_heads"]
    rows = [_flatten_heads(each) for each in (query, key, value)]
    scale = attributes["scale"] or width**-0.5
    window = max(0, attributes["local_window_size"])
    placed = [controls[each] for each in (PAST_LENS, BEGINS, BLOCKS, BLOCK_BEGINS)]
    inputs = [*rows, *(each.output(0) for each in (*caches, *placed))]
    inputs += [_constant(scale, np.float32), _constant(window, np.int32), _empty(np.float32)]
    inputs += [controls[LONGEST].output(0), *_unused_inputs()]
    attended = PagedAttention(inputs)
    for part, count in (("k", groups), ("v", groups)):
        attended.get_rt_info()[f"num_{part}_heads"] = count
        attended.get_rt_info()[f"{part}_head_size"] = width
    shaped = ops.unsqueeze(attended.output(0), _constant([1], np.int64))  # (N, 1, H·K)
    node.output(0).replace(shaped.output(0))


def _flatten_heads(part: Any) -> Any:
    """(N, H, 1, K) → (N, H·K)."""
    return ops.reshape(part, _constant([0, -1], np.int64), special_zero=True).output(0)


def _rotate(part: Any, places: Any, tables: tuple[Any, Any], is_interleaved: bool) -> Any:
    """Rotates the first w dimensions of each head, (N, H, 1, K), at places (N,).

    As ONNX Runtime's RotaryEmbedding: pairs are i and i + w / 2, or 2 i and 2 i + 1.
    """
    axis, last = _constant(0, np.int64), _constant(-1, np.int64)
    middle = _constant([1, 2], np.int64)
    cosine, sine = (  # (N, 1, 1, w / 2)
        ops.unsqueeze(ops.gather(table, places, axis), middle) for table in tables
    )
    half = tables[0].get_partial_shape()[1].get_length()
    width = part.get_partial_shape()[3].get_length()
    turned, rest = part, None
    if width > 2 * half:
        sizes = _constant([2 * half, width - 2 * half], np.int64)
        turned, rest = ops.variadic_split(part, last, sizes).outputs()
    if is_interleaved:
        pairs = ops.reshape(turned, _constant([0, 0, 0, half, 2], np.int64), special_zero=True)
        first, second = (ops.squeeze(each, last) for each in ops.split(pairs, last, 2).outputs())
    else:
        first, second = ops.split(turned, last, 2).outputs()
    one = ops.subtract(ops.multiply(first, cosine), ops.multiply(second, sine))
    other = ops.add(ops.multiply(second, cosine), ops.multiply(first, sine))
    if is_interleaved:
        stacked = ops.concat([ops.unsqueeze(one, last), ops.unsqueeze(other, last)], -1)
        sizes = _constant([0, 0, 0, 2 * half], np.int64)
        rotated = ops.reshape(stacked, sizes, special_zero=True)
    else:
        rotated = ops.concat([one, other], -1)
    if rest is not None:
        rotated = ops.concat([rotated, rest], -1)
    return rotated.output(0)


def _select_scored(last: Any, scored: Any, attention: Any, name: str) -> None:
    """Drops hidden states that are not scored, (N, 1, D) → (M, 1, D), before the output layer.

    LAST selects a position of T, of which there is one, by GatherElements or GatherND.

    Args:
        attention: Of the last layer.

    Raises:
        BundleError: it does so in another way.
    """
    hidden_names = {each.get_name() for each in _reached_from(attention)}
    selections = [
        node
        for node in _reached_from(last)
        if node.get_type_name() in ("GatherElements", "GatherND")
        and node.get_name() in hidden_names  # not of positions, or of the count of image tokens
    ]
    if len(selections) != 1:
        raise BundleError(f"{name}: OpenVINO's form of `step` does not select one position by LAST")
    (selection,) = selections
    hidden = selection.input_value(0)
    selected = ops.gather(hidden, scored.output(0), _constant(0, np.int64))
    if selection.get_type_name() == "GatherND":  # it drops T
        selected = ops.squeeze(selected, _constant([1], np.int64))
    selection.output(0).replace(selected.output(0))
    last.output(0).replace(_constant([0], np.int64))


def _reached_from(node: Any) -> list[Any]:
    """All nodes that a value reaches, each once."""
    found: dict[str, Any] = {}
    reached = [node]
    while reached:
        outputs = reached.pop().outputs()
        for each in (port.get_node() for out in outputs for port in out.get_target_inputs()):
            if each.get_name() not in found:
                found[each.get_name()] = each
                reached.append(each)
    return list(found.values())


def _is_given(node: Any, index: int) -> bool:
    """Whether an optional input has a value; those left out are empty constants."""
    if index >= node.get_input_size():
        return False
    shape = node.input_value(index).get_partial_shape()
    return not (shape.is_static and 0 in tuple(shape.to_shape()))


def _unused_inputs() -> list[Any]:
    """What follows `max_context_len`: scores, rotation of blocks, sparse attention, sinks, …."""
    floats, integers = (_empty(np.float32), _empty(np.int32))
    zero = _constant(0, np.int32)
    sinks = ops.constant(np.zeros((0, 0, 0, 0), np.float32)).output(0)
    return [
        integers,
        integers,
        integers,
        floats,
        floats,
        zero,
        zero,
        sinks,
        zero,
        integers,
        integers,
        integers,
        integers,
        _empty(np.uint8),
        integers,
    ]


def _constant(value: Any, dtype: Any) -> Any:
    return ops.constant(np.array(value, dtype)).output(0)


def _empty(dtype: Any) -> Any:
    return ops.constant(np.zeros(0, dtype)).output(0)


def _name(graph: Graph, role: Role) -> str:
    """Name of an input that every decoder graph has."""
    port = graph.input(role)
    assert port is not None, role
    return port.name
