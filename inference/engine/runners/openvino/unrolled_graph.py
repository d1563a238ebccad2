"""Several greedy steps as one graph: copies of `step`, each on tokens that the one before chose.

Between two steps lie the choice in Python, inputs that are written and the start of a run; a small
model's step takes little longer. All copies write to the same blocks and compute what `step`
computes, so no bit depends on how many steps a call has.

Legend: N tokens of a call, M of them that are scored, k candidates of each.

Decision D119.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from inference.bundle.manifest import Graph, Role
from inference.engine.runners.candidates import GreedyRule
from inference.engine.runners.openvino.paged_graph import LONGEST, PAST_LENS, SCORED
from inference.engine.runners.openvino.token_choice import COUNT

STEPS = 4
"""Of one call. A row that ends within a call wastes the rest, and streams wait for its end."""
BANNED = "banned"
"""Input (n,) of the unrolled graph: tokens that no step chooses; one that none has stands for
nothing."""
MAX_BYTES = 16 << 20
"""Of weights; the unrolled graph packs them once more, and a call takes `STEPS` steps' time."""


def is_small(step: openvino.Model) -> bool:
    """Whether several steps of a graph are worth their memory and their time."""
    weights = (each for each in step.get_ops() if each.get_type_name() == "Constant")
    return sum(_bytes(each.output(0)) for each in weights) <= MAX_BYTES


def follows(rule: GreedyRule) -> bool:
    """Whether the copies choose as a rule does: it bans a few tokens, and does nothing else."""
    edited = 0 if rule.edit is None else len(rule.edit.token_ids)
    is_ban = rule.edit is None or rule.edit.only_bans
    return is_ban and edited + len(rule.banned) < COUNT


def banned_tokens(rule: GreedyRule) -> list[int]:
    """What `BANNED` is for a rule."""
    edited = [] if rule.edit is None else rule.edit.token_ids.tolist()
    return [*rule.banned, *edited] or [-1]


def unrolled_graph(step: openvino.Model, graph: Graph) -> openvino.Model:
    """`step` with its choice of tokens, `STEPS` times → its outputs as often, step after step.

    Inputs are those of `step` for rows of one token, whose blocks have room for all steps, and
    `BANNED`.

    Args:
        step: See `add_token_choice`; not used afterwards. Its weights are those of all copies.
    """
    tokens, lengths = (
        None if port is None else port.name
        for port in map(graph.input, (Role.TOKENS, Role.LENGTHS))
    )
    banned = ops.parameter(openvino.PartialShape([-1]), np.int64, BANNED)
    banned.output(0).get_tensor().set_names({BANNED})
    inputs = {name: each for each in step.get_parameters() for name in each.output(0).names}
    results: list[Any] = []
    following: Any = None  # tokens (N, 1) of the next step
    for number, copy in enumerate([step, *(step.clone() for _ in range(STEPS - 1))]):
        for parameter in copy.get_parameters() if number else ():
            (name,) = parameter.output(0).names
            value = inputs[name].output(0)
            if name == tokens:
                value = following
            elif name in (lengths, PAST_LENS, LONGEST):
                value = ops.add(value, _constant(number, np.int32)).output(0)
            parameter.output(0).replace(value)
        outputs = [each.input_value(0) for each in copy.get_results()]
        chosen = _first_allowed(outputs[1], outputs[2], banned)
        places = inputs[SCORED]
        following = ops.scatter_update(
            inputs[tokens], places, chosen, _constant(0, np.int64)
        ).output(0)
        results += [ops.result(each) for each in outputs]
    return openvino.Model(results, [*step.get_parameters(), banned], "steps")


def _first_allowed(token_ids: Any, log_probs: Any, banned: Any) -> Any:
    """(M, k) candidates, best first → (M, 1) the first that is not banned."""
    same = ops.equal(ops.unsqueeze(token_ids, _constant([2], np.int64)), banned)  # (M, k, n)
    is_banned = ops.reduce_logical_or(same, _constant([2], np.int64))
    lowest = _constant(-np.inf, np.float32)
    allowed = ops.select(is_banned, lowest, log_probs)
    best = ops.topk(
        allowed, _constant(1, np.int64), 1, "max", "value", index_element_type="i64", stable=True
    )
    return ops.gather_elements(token_ids, best.output(1), 1)


def _bytes(output: Any) -> int:
    bits: int = output.get_element_type().bitwidth * prod(output.get_shape())
    return bits // 8


def _constant(value: Any, dtype: Any) -> Any:
    return ops.constant(np.array(value, dtype)).output(0)
