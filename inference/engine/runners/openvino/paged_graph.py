"""The graph `step` with paged attention: the form that OpenVINO runs.

`step.onnx` is the file that ONNX Runtime runs too. OpenVINO reads it with one `GroupQueryAttention`
a layer, whose rectangular caches become blocks here. Every token of a call is a row of its own, so
that prompts and decoding sequences of any lengths share a call without padding.

Legend: N tokens of a call, M of them that are scored, B sequences, W rows of a sequence, S
positions of a source, H query heads, G key and value heads, K width of a head, w rotated dimensions
of it, V vocabulary.

Decision D99.
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
from inference.errors import BundleError

_MASK = tuple("Select Unsqueeze Broadcast Unsqueeze Greater Unsqueeze Convert Slice".split())
"""How OpenVINO 2026.4 makes the bias of an ONNX MultiHeadAttention of lengths, from its end."""
_HIDDEN = -1e30  # as OpenVINO has it


def replace_cross_attention(model: openvino.Model) -> None:
    """Spells out each ScaledDotProductAttention (B, H, W, K) of `step`; changes the model in place.

    OpenVINO 2026.4 decomposes it into keys times the scale, a transposed copy of them, and two
    products: three passes over all sources in every step, of which the products need one.

    Each row multiplies the keys by itself. Several rows at once have another kernel, which adds up
    in another order, so that a row's bits would depend on the number of rows beside it, and which
    is slower: it copies the keys first.

    Layers whose sources have the same lengths share one mask, since sources of one bundle have one
    S. OpenVINO computes one a layer, by twenty operators each.
    """
    masks: dict[str, Any] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            query, key, value, bias, *scale = node.input_values()
            lengths = _lengths_of(bias)
            if lengths is not None:
                name = lengths.get_friendly_name()
                if name not in masks:
                    masks[name] = _mask(lengths.output(0), key)
                bias = masks[name]
            attended = _attend(query, key, value, bias, *scale, **node.get_attributes())
            node.output(0).replace(attended)


def _lengths_of(bias: Any) -> Any:
    """The input of lengths, (B,), that a bias is made of; None if it is made in another way."""
    node = bias.get_node()
    for kind in _MASK:
        if node.get_type_name() != kind:
            return None
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "Parameter" else None


def _mask(lengths: Any, key: Any) -> Any:
    """(B,) lengths → (B, 1, 1, S): 0 in front of each source's end, a large negative number behind.

    Args:
        key: (B, H, S, K).
    """
    size = ops.gather(ops.shape_of(key, "i32"), integers(2), integers(0))
    zero, one = (ops.constant(np.array(value, np.int32)) for value in (0, 1))
    places = ops.range(zero, size, one, "i32")  # (S,)
    is_inside = ops.less(places, ops.unsqueeze(lengths, integers([1, 2, 3])))
    hidden = ops.constant(np.float32(_HIDDEN))
    return ops.select(is_inside, ops.constant(np.float32(0)), hidden).output(0)


def _attend(query: Any, key: Any, value: Any, bias: Any, scale: Any = None, *, causal: bool) -> Any:
    """(B, H, W, K); the bias (B, 1, 1 or W, S) hides the positions behind each source's end."""
    assert not causal, "sources have no order"
    if scale is None:
        scale = ops.constant(np.float32(query.get_partial_shape()[3].get_length() ** -0.5))
    rows = ops.unsqueeze(ops.multiply(query, scale), integers([3]))  # (B, H, W, 1, K)
    products = ops.matmul(rows, ops.unsqueeze(key, integers([2])), False, True)
    scores = ops.squeeze(products, integers([3]))  # (B, H, W, S)
    weights = ops.softmax(ops.add(scores, bias), -1)
    return ops.matmul(weights, value, False, False).output(0)


def integers(value: Any) -> Any:
    """A constant of int64."""
    return ops.constant(np.array(value, np.int64)).output(0)


_RANK = 4


def fuse_rotations(model: openvino.Model) -> None:
    """Writes each rotation of halves as x · cos + [-x2, x1] · sin; changes the model in place.

    [x1 · cos - x2 · sin, x2 · cos + x1 · sin], as graphs have it, is ten operators of a layer's
    queries and keys, each with its own pass and its own wait for all threads. OpenVINO 2026.4
    recognises the other form (`RoPEFusionGPTNEOX`).
    """
    wide: dict[tuple[str, int], Any] = {}
    for node in model.get_ordered_ops():
        parts = _halves(node)
        if parts is None:
            continue
        whole, first, second, *turns = parts
        cosine, sine = (_double(each, wide) for each in turns)
        half = first.get_partial_shape()[-1].get_length()
        axis, sizes = ops.constant(np.int64(_RANK - 1)), ops.constant(np.array([half] * 2))
        first, second = ops.variadic_split(whole, axis, sizes).outputs()
        turned = ops.concat([ops.multiply(second, ops.constant(np.float32(-1))), first], -1)
        rotated = ops.add(ops.multiply(whole, cosine), ops.multiply(turned, sine))
        node.output(0).replace(rotated.output(0))


def _halves(node: Any) -> tuple[Any, Any, Any, Any, Any] | None:
    """x, x1, x2, cosine and sine (…, w / 2) of a concatenation that rotates x (…, w)."""
    if node.get_type_name() != "Concat" or node.get_input_size() != 2:
        return None
    one, other = map(_inputs_of, node.input_values(), ("Subtract", "Add"))
    if one is None or other is None:
        return None
    products = [_inputs_of(each, "Multiply") for each in (*one, *other)]
    if any(each is None for each in products):
        return None
    (first, cosine), (second, sine), *rest = (each for each in products if each is not None)
    if [tuple(map(_place, pair)) for pair in rest] != [
        (_place(second), _place(cosine)),
        (_place(first), _place(sine)),
    ]:
        return None
    split = first.get_node()
    is_split = split.get_type_name() in ("Split", "VariadicSplit") and len(split.outputs()) == 2
    if not is_split or [_place(first), _place(second)] != list(map(_place, split.outputs())):
        return None
    whole = split.input_value(0)
    shapes = [each.get_partial_shape() for each in (whole, first, cosine, sine)]
    if any(len(shape) != _RANK or shape[_RANK - 1].is_dynamic for shape in shapes):
        return None
    width, *halves = (shape[_RANK - 1].get_length() for shape in shapes)
    return (whole, first, second, cosine, sine) if halves == [width // 2] * 3 else None


def _inputs_of(value: Any, kind: str) -> tuple[Any, Any] | None:
    """The two inputs of the node that a value is of, if it has that type."""
    node = value.get_node()
    return tuple(node.input_values()) if node.get_type_name() == kind else None


def _double(turn: Any, wide: dict[tuple[str, int], Any]) -> Any:
    """(…, w / 2) → (…, w), once for all rotations that share it."""
    key = _place(turn)
    if key not in wide:
        wide[key] = ops.concat([turn, turn], -1).output(0)
    return wide[key]


def _place(value: Any) -> tuple[str, int]:
    """Which output of which node a value is."""
    return value.get_node().get_name(), value.get_index()


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
    # T = 1, with which transpositions of heads and positions move nothing
    parameters[_name(graph, Role.TOKENS)].set_partial_shape(openvino.PartialShape([-1, 1]))
    model.validate_nodes_and_infer_types()
    caches = []
    operators = model.get_ordered_ops()
    layers = [each for each in operators if each.get_type_name() == "GroupQueryAttention"]
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
    block_inputs = [controls[each] for each in (PAST_LENS, BEGINS, BLOCKS, BLOCK_BEGINS)]
    inputs = [*rows, *(each.output(0) for each in (*caches, *block_inputs))]
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
    hidden_names = {each.get_name() for each in _find_reached(attention)}
    selections = [
        node
        for node in _find_reached(last)
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


def _find_reached(node: Any) -> list[Any]:
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
