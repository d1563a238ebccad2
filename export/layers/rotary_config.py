"""Rotary positions as `config.json` states them, in the fields of `transformers` 4 and 5.

Version 4 has `rope_theta` and `rope_scaling`, version 5 the two together in `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping

from export.config_reader import ConfigReader
from export.layers.rotary import Rotary, Scaling, linear_scaling, llama3_scaling, unscaled
from serving.errors import CheckpointError

DEFAULT_BASE = 10000.0


def read_rotary(
    reader: ConfigReader, head_width: int, positions: int, default_base: float = DEFAULT_BASE
) -> Rotary:
    """The rotary positions that all layers share.

    Args:
        head_width: K; all of it rotates.
        positions: Length of the tables, `max_position_embeddings`.

    Raises:
        CheckpointError: a kind of scaling that is not supported.
    """
    values = reader.values
    given = values.get("rope_scaling") or values.get("rope_parameters") or {}
    return rotary_of(
        reader, given, head_width, positions, reader.number("rope_theta", default_base)
    )


def rotary_of(
    reader: ConfigReader, given: object, head_width: int, positions: int, default_base: float
) -> Rotary:
    """The rotary positions of one set of parameters.

    Args:
        given: `rope_scaling`, or `rope_parameters` of one kind of layer; may be empty.
        default_base: Where they have no `rope_theta`.
    """
    if not isinstance(given, Mapping):
        raise CheckpointError(
            f"{reader.place}: rope parameters must be a dictionary, not {given!r}"
        )
    parameters = ConfigReader(given, f"{reader.place}, rope parameters")
    for holder in (reader, parameters):
        holder.refuse_unless(partial_rotary_factor=1.0)
    if head_width % 2:
        raise CheckpointError(f"{reader.place}: heads of width {head_width} cannot rotate in pairs")
    base = parameters.number("rope_theta", default_base)
    return Rotary(head_width, positions, base, scaling=_scaling(parameters, positions))


def _scaling(parameters: ConfigReader, positions: int) -> Scaling:
    kind = parameters.values.get("rope_type", parameters.values.get("type", "default"))
    if kind in ("default", "dynamic"):
        # Dynamic scaling begins behind `max_position_embeddings`, which is where our limit lies.
        return unscaled
    if kind == "linear":
        return linear_scaling(_required(parameters, "factor"))
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        factor, low, high = (_required(parameters, name) for name in names)
        trained = parameters.integer("original_max_position_embeddings", positions)
        return llama3_scaling(factor, low, high, trained)
    raise CheckpointError(
        f"{parameters.place}: rope_type = {kind!r} is not supported, "
        "only 'default', 'linear', 'dynamic' and 'llama3' are"
    )


def _required(parameters: ConfigReader, name: str) -> float:
    if name not in parameters.values:
        raise CheckpointError(f"{parameters.place}: {name} is missing")
    return parameters.number(name, 1.0)
