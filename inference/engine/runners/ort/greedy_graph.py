"""Several greedy steps as one graph: copies of `step`, each with the choice of its next token.

On a small model the work between two steps (Python, uploads, the start of a run, the choice in
another graph) takes longer than the step itself. The copies compute what `step` computes, node by
node, so tokens and log-probabilities do not depend on how many steps a call has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import NodeProto, TensorProto, helper, numpy_helper

from inference.bundle.manifest import Graph, Growth, Manifest, Role, State

STEPS = 4
"""Steps of one call. More would save little, and a row that ends within a call wastes the rest."""

BIAS, BANS, TOKEN_IDS, LOG_PROBS = "bias", "bans", "token_ids", "log_probs"
_ONE_PLACE, _ONE_LENGTH, _LAST_AXIS = "one_place", "one_length", "last_axis"
_MAX_BYTES = 16 << 20  # of the graph: each copy holds packed weights of its own


def small_step(manifest: Manifest, path: Path) -> onnx.ModelProto | None:
    """The graph `step`, if several steps as one graph can be made of it and are worth their memory.

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
    return None if has_weights_beside or _has_subgraphs(model) else model


def greedy_graph(model: onnx.ModelProto, manifest: Manifest) -> onnx.ModelProto:
    """The graph `step` for T = 1, `STEPS` times, each on the token chosen by the one before.

    Inputs are those of `step`, and two rows (1, V) float32 that are added to the scores: `bias`
    before log-softmax, `bans` after it. Outputs are the chosen tokens and their log-probabilities,
    (R, STEPS), the last values of REPLACE states, and for each step the APPEND states, named by
    `state_output`. All outputs of an APPEND state are to be bound to the memory of its input.
    """
    copies = _Copies(model.graph, manifest)
    nodes = [node for step in range(STEPS) for node in copies.nodes(step)]
    for name, parts in ((TOKEN_IDS, "chosen"), (LOG_PROBS, "log_prob")):
        names = [f"{parts}@{step}" for step in range(STEPS)]
        nodes.append(helper.make_node("Concat", names, [name], axis=1))
    initializers = [
        *model.graph.initializer,
        numpy_helper.from_array(np.array(1, np.int32), _ONE_PLACE),
        numpy_helper.from_array(np.array(1, np.int32), _ONE_LENGTH),
        numpy_helper.from_array(np.array([1], np.int64), _LAST_AXIS),
    ]
    graph = helper.make_graph(nodes, "greedy", copies.inputs(), copies.outputs(), initializers)
    return helper.make_model(
        graph,
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
        functions=model.functions,
    )


def state_output(state: State, step: int) -> str:
    """Name of a state's value after a step, counted from 0."""
    return f"{state.step_output}@{step}"


class _Copies:
    """Copies of a graph's nodes, with the names of each step."""

    def __init__(self, graph: onnx.GraphProto, manifest: Manifest) -> None:
        self._graph, self._ports = graph, manifest.graphs["step"]
        self._moving = [state for state in manifest.states if state.growth is not Growth.HOLD]
        advancing = (Role.TOKENS, Role.LENGTHS, Role.TOTAL)
        self._controls = {role: _input(self._ports, role) for role in advancing}
        self._varying = {state.step_input for state in self._moving if state.step_input}
        self._varying |= {name for name in self._controls.values() if name is not None}
        self._repeated = list(self._find_repeated())

    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Inputs of `step` at T = 1, and what is added to its scores."""
        found = [deepcopy(value) for value in self._graph.input]
        for value in found:
            if value.name == self._controls[Role.TOKENS]:
                value.type.tensor_type.shape.dim[1].dim_value = 1
        row = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "V"])
            for name in (BIAS, BANS)
        ]
        return [*found, *row]

    def outputs(self) -> list[onnx.ValueInfoProto]:
        """See `greedy_graph`."""
        kinds = {value.name: value for value in self._graph.output}
        found = [
            helper.make_tensor_value_info(TOKEN_IDS, TensorProto.INT64, ["R", STEPS]),
            helper.make_tensor_value_info(LOG_PROBS, TensorProto.FLOAT, ["R", STEPS]),
        ]
        for state in self._moving:
            first = 0 if state.growth is Growth.APPEND else STEPS - 1
            for step in range(first, STEPS):
                assert state.step_output is not None
                found.append(deepcopy(kinds[state.step_output]))
                found[-1].name = state_output(state, step)
        return found

    def nodes(self, step: int) -> Iterator[NodeProto]:
        """The nodes of one step, in order; those that every step would repeat are in the first."""
        names = self._names(step)
        for node, is_repeated in zip(self._graph.node, self._repeated, strict=True):
            if is_repeated or step == 0:
                yield _rename_values(node, names, step)
        yield from self._choice(step)
        if step < STEPS - 1:
            for role, one in ((Role.LENGTHS, _ONE_LENGTH), (Role.TOTAL, _ONE_PLACE)):
                if (name := self._controls[role]) is not None:
                    following = _name_at(name, step + 1)
                    yield helper.make_node("Add", [_name_at(name, step), one], [following])

    def _choice(self, step: int) -> Iterator[NodeProto]:
        """The best token and its log-probability, as the top-k graphs compute them."""
        output = self._ports.output(Role.LOGITS)
        assert output is not None
        logits, scores = f"{output.name}@{step}", f"scores@{step}"
        normalised, allowed = f"normalised@{step}", f"allowed@{step}"
        chosen, best = f"chosen@{step}", f"best@{step}"
        node = helper.make_node
        yield node("Add", [logits, BIAS], [scores])
        yield node("Add", [scores, BANS], [allowed])
        yield node("TopK", [allowed, _LAST_AXIS], [best, chosen], largest=1, sorted=1)
        yield node("LogSoftmax", [scores], [normalised], axis=-1)
        yield node("GatherElements", [normalised, chosen], [f"log_prob@{step}"], axis=1)

    def _names(self, step: int) -> Mapping[str, str]:
        """Names in a step of the values that differ from the step before."""
        produced = [
            name
            for node, is_repeated in zip(self._graph.node, self._repeated, strict=True)
            for name in node.output
            if name and is_repeated
        ]
        names = {name: f"{name}@{step}" for name in produced}
        for role, name in self._controls.items():
            if name is not None and step:
                is_tokens = role is Role.TOKENS
                names[name] = f"chosen@{step - 1}" if is_tokens else _name_at(name, step)
        for state in self._moving:
            assert state.step_input is not None
            if step:
                names[state.step_input] = state_output(state, step - 1)
        return names

    def _find_repeated(self) -> Iterator[bool]:
        """For each node whether its value may change from step to step; shapes do not."""
        varying = set(self._varying)
        for node in self._graph.node:
            changes = node.op_type != "Shape" and not varying.isdisjoint(node.input)
            is_random = not node.input and node.op_type != "Constant"
            if changes or is_random:
                varying |= set(node.output)
            yield changes or is_random


def _rename_values(node: NodeProto, names: Mapping[str, str], step: int) -> NodeProto:
    copied = deepcopy(node)
    copied.name = f"{node.name}@{step}" if node.name else ""
    for values in (copied.input, copied.output):
        renamed = [names.get(name, name) for name in values]
        del values[:]
        values.extend(renamed)
    return copied


def _name_at(name: str, step: int) -> str:
    """The control input `name` as of a step."""
    return f"{name}@{step}" if step else name


def _input(ports: Graph, role: Role) -> str | None:
    tensor = ports.input(role)
    return None if tensor is None else tensor.name


def _has_subgraphs(model: onnx.ModelProto) -> bool:
    """Whether a node has a graph of its own, whose outer names a copy would have to change."""
    kinds = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    return any(one.type in kinds for node in model.graph.node for one in node.attribute)
