"""Rotary positions as `config.json` states them, in the fields of `transformers` 4 and 5.

Version 4 has `rope_theta` and `rope_scaling`, version 5 the two together in `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from export.config.config_reader import ConfigReader
from export.layers.attention.rotary import (
    Rotary,
    Scaling,
    linear_scaling,
    llama3_scaling,
    longrope_amplitude,
    longrope_scaling,
    unscaled,
    yarn_amplitude,
    yarn_scaling,
)
from inference.errors import CheckpointError

DEFAULT_BASE = 10000.0
TRAINED = "original_max_position_embeddings"


def read_rotary(reader: ConfigReader, head_width: int, positions: int) -> Rotary:
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
        reader, given, head_width, positions, reader.number("rope_theta", DEFAULT_BASE)
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
    # Phi-3's field, which `transformers` prefers for all models
    trained = reader.integer(TRAINED, parameters.integer(TRAINED, positions))
    if _kind(parameters) == "yarn":
        return _yarn(parameters, Rotary(head_width, positions, base), trained)
    if _kind(parameters) == "longrope":
        return _longrope(parameters, Rotary(head_width, positions, base), trained)
    return Rotary(head_width, positions, base, scaling=_scaling(parameters, trained))


def _kind(parameters: ConfigReader) -> object:
    return parameters.given.get("rope_type", parameters.given.get("type", "default"))


def _scaling(parameters: ConfigReader, trained: int) -> Scaling:
    kind = _kind(parameters)
    if kind in ("default", "dynamic"):
        # Dynamic scaling begins behind `max_position_embeddings`, which is where our limit lies.
        return unscaled
    if kind == "linear":
        return linear_scaling(_require(parameters, "factor"))
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        factor, low, high = (_require(parameters, name) for name in names)
        return llama3_scaling(factor, low, high, trained)
    raise CheckpointError(
        f"{parameters.place}: rope_type = {kind!r} is not supported, "
        "only 'default', 'linear', 'dynamic', 'llama3', 'yarn' and 'longrope' are"
    )


def _yarn(parameters: ConfigReader, plain: Rotary, trained: int) -> Rotary:
    """YaRN; a null has the default, as in `transformers`."""
    given = ConfigReader(parameters.given, parameters.place)
    factor = (
        plain.positions / trained
        if "factor" in parameters.values and "factor" not in given.values
        else _require(given, "factor")
    )
    weights = given.number("mscale", 0.0), given.number("mscale_all_dim", 0.0)
    amplitude = yarn_amplitude(factor)
    if all(weights):
        amplitude = yarn_amplitude(factor, weights[0]) / yarn_amplitude(factor, weights[1])
    scaling = yarn_scaling(
        factor,
        given.number("beta_fast", 32.0) or 32.0,
        given.number("beta_slow", 1.0) or 1.0,
        trained,
        plain.base,
        rounds=given.flag("truncate", True),
    )
    return replace(plain, scaling=scaling, amplitude=given.number("attention_factor", amplitude))


def _longrope(parameters: ConfigReader, plain: Rotary, trained: int) -> Rotary:
    """LongRoPE up to the trained length.

    A longer sequence has other frequencies from its first token on, so that the keys of a sequence
    that grows past the trained length would have to be computed again.
    """
    factors = parameters.numbers("short_factor")
    if len(factors) != plain.width // 2:
        raise CheckpointError(
            f"{parameters.place}: short_factor needs {plain.width // 2} numbers, not {len(factors)}"
        )
    given = parameters.values.get("factor")
    factor = plain.positions / trained if given is None else _require(parameters, "factor")
    amplitude = longrope_amplitude(factor, trained)
    if parameters.values.get("attention_factor") is not None:
        amplitude = parameters.number("attention_factor", amplitude)
    return replace(
        plain,
        positions=min(trained, plain.positions),
        scaling=longrope_scaling(factors),
        amplitude=amplitude,
    )


def _require(parameters: ConfigReader, name: str) -> float:
    if name not in parameters.values:
        raise CheckpointError(f"{parameters.place}: {name} is missing")
    return parameters.number(name, 1.0)
