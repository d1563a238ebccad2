"""Rotary positions (Su et al. 2021, "RoFormer", §3.2, arXiv 2104.09864) and their fields.

A query and a key are rotated by angles that grow with their positions, so that their product
depends on the distance. Two layouts of the pairs that rotate are in use: dimension i with i + w / 2
(GPT-NeoX, Llama) and 2 i with 2 i + 1 (GPT-J, the paper).

Legend: R rows, H heads, T positions, K width of a head, w rotated dimensions of a head, A axes.

Version 4 has `rope_theta` and `rope_scaling`, version 5 the two together in `rope_parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from export.config.config_reader import ConfigReader
from inference.errors import CheckpointError

Scaling = Callable[[Tensor], Tensor]
"""Frequencies (w / 2,) → those that apply."""


def unscaled(frequencies: Tensor) -> Tensor:
    """The frequencies as they are."""
    return frequencies


def linear_scaling(factor: float) -> Scaling:
    """Positions are divided by the factor (Chen et al. 2023, §2.3, arXiv 2306.15595)."""
    return lambda frequencies: frequencies / factor


def llama3_scaling(
    factor: float, low_frequency: float, high_frequency: float, original_positions: int
) -> Scaling:
    """Long wavelengths are divided, short ones kept, a ramp between (Llama 3.1, `rope_scaling`).

    Args:
        low_frequency: Wavelengths above `original_positions` / this are divided by the factor.
        high_frequency: Wavelengths below `original_positions` / this are kept.
    """

    def scale(frequencies: Tensor) -> Tensor:
        turns = original_positions * frequencies / (2 * math.pi)
        kept = ((turns - low_frequency) / (high_frequency - low_frequency)).clamp(0, 1)
        return (1 - kept) * frequencies / factor + kept * frequencies

    return scale


def yarn_scaling(
    factor: float, fast: float, slow: float, original_positions: int, base: float, *, rounds: bool
) -> Scaling:
    """As `llama3_scaling`, with a ramp over dimensions (Peng et al. 2023, §3.2, arXiv 2309.00071).

    Args:
        factor: Long wavelengths are divided by it.
        fast: Dimensions that turn more often within `original_positions` are kept.
        slow: Those that turn less often are divided.
        original_positions: Positions of the first training.
        base: Of the frequencies.
        rounds: Whether the ramp begins and ends at whole dimensions.
    """

    def dimension(turns: float, width: int) -> float:
        """The dimension that turns so often, not whole."""
        return width * math.log(original_positions / (turns * 2 * math.pi)) / (2 * math.log(base))

    def scale(frequencies: Tensor) -> Tensor:
        width = 2 * len(frequencies)
        first, last = dimension(fast, width), dimension(slow, width)
        if rounds:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        length = last - first or 0.001
        dimensions = torch.arange(len(frequencies), dtype=torch.float32)
        divided = ((dimensions - first) / length).clamp(0, 1)
        return (1 - divided) * frequencies + divided * frequencies / factor

    return scale


def yarn_amplitude(factor: float, weight: float = 1.0) -> float:
    """Factor of cosines and sines that sharpens the scores of long contexts (§3.3)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def longrope_scaling(factors: tuple[float, ...]) -> Scaling:
    """Each frequency is divided by its own factor (Ding et al. 2024, §3, arXiv 2402.13753)."""
    return lambda frequencies: frequencies / torch.tensor(factors, dtype=torch.float32)


def longrope_amplitude(factor: float, original_positions: int) -> float:
    """Factor of cosines and sines for contexts so many times longer than the trained ones."""
    if factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_positions))


@dataclass(frozen=True)
class Rotary:
    """How the heads of a model rotate; layers of one model share one object and its tables."""

    width: int
    """w, the first dimensions of each head; the rest of K stays as it is."""
    positions: int
    """Length of the tables."""
    base: float = 10000.0
    is_interleaved: bool = False
    """2 i rotates with 2 i + 1, else i with i + w / 2."""
    scaling: Scaling = unscaled
    amplitude: float = 1.0
    """Factor of cosines and sines."""
    sections: tuple[int, ...] = ()
    """Positions have several axes, and so many of the w / 2 pairs in turn rotate by each of them
    (Wang et al. 2024, "Qwen2-VL", §2.1, arXiv 2409.12191); () for positions of one axis."""
    alternates: bool = False
    """Neighbouring pairs rotate by each axis in turn, as far as the section of each reaches; the
    others by the first axis (Bai et al. 2025, "Qwen3-VL Technical Report", §2, arXiv
    2511.21631)."""

    @cached_property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines, (positions, w / 2) each; in float32, as `transformers` has them."""
        exponents = torch.arange(0, self.width, 2, dtype=torch.float32) / self.width
        frequencies = self.scaling(1.0 / self.base**exponents)
        angles = torch.arange(self.positions, dtype=torch.float32)[:, None] * frequencies
        return angles.cos() * self.amplitude, angles.sin() * self.amplitude

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """(R, H, T, ≥ w) at positions (R, T), or (A, R, T), rotated; padding may lie beyond."""
        read = self._by_axis if self.sections else self._by_place
        cosine, sine = (read(table, positions)[:, None] for table in self.tables)
        turned, rest = x[..., : self.width], x[..., self.width :]
        if not self.is_interleaved:
            return torch.cat([turn_halves(turned, cosine, sine), rest], dim=-1)
        first, second = turned[..., ::2], turned[..., 1::2]
        pair = (first * cosine - second * sine, second * cosine + first * sine)
        return torch.cat([torch.stack(pair, dim=-1).flatten(-2), rest], dim=-1)

    def _by_place(self, table: Tensor, positions: Tensor) -> Tensor:
        """Rows of a table, (R, T, w / 2)."""
        return table[positions.clamp(max=self.positions - 1)]

    def _by_axis(self, table: Tensor, positions: Tensor) -> Tensor:
        """Rows of a table, (R, T, w / 2), each section of them at the positions of its axis."""
        index = positions.clamp(min=0, max=self.positions - 1)
        if self.alternates:
            pair, read = torch.arange(table.shape[1]), table[index]
            chosen = read[0]
            for axis in range(1, len(self.sections)):
                is_of_axis = (pair % len(self.sections) == axis) & (
                    pair < self.sections[axis] * len(self.sections)
                )
                chosen = torch.where(is_of_axis, read[axis], chosen)
            return chosen
        parts = table.split(list(self.sections), dim=1)
        axes = len(positions)
        return torch.cat([part[index[place % axes]] for place, part in enumerate(parts)], dim=-1)


def turn_halves(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """(…, w) whose dimensions i and i + w / 2 rotate by angles (…, w / 2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


DEFAULT_BASE = 10000.0
TRAINED = "original_max_position_embeddings"
_SHARE = "partial_rotary_factor"


def read_rotary(
    reader: ConfigReader, head_width: int, positions: int, share: float | None = None
) -> Rotary:
    """The rotary positions that all layers share.

    Args:
        head_width: K.
        positions: Length of the tables, `max_position_embeddings`.
        share: As of `rotary_of`.

    Raises:
        CheckpointError: a kind of scaling that is not supported.
    """
    values = reader.values
    given = values.get("rope_scaling") or values.get("rope_parameters")
    base = reader.number("rope_theta", DEFAULT_BASE)
    return rotary_of(reader, given, head_width, positions, base, share)


def rotary_of(
    reader: ConfigReader,
    given: object,
    head_width: int,
    positions: int,
    default_base: float,
    share: float | None = None,
) -> Rotary:
    """The rotary positions of one set of parameters.

    Args:
        given: `rope_scaling`, or `rope_parameters` of one kind of layer; may be empty.
        default_base: Where they have no `rope_theta`.
        share: Of a head's dimensions, which rotate, where the file has none; None: all of them, and
            a file with a smaller share is refused.
    """
    parameters = ConfigReader(rope_parameters(reader, given), f"{reader.place}, rope parameters")
    if share is not None:
        share = parameters.number(_SHARE, reader.number(_SHARE, share))
        if not 0 < share <= 1:
            raise CheckpointError(f"{reader.place}: {_SHARE} = {share} must be above 0, at most 1")
        head_width = int(head_width * share)
    else:
        for holder in (reader, parameters):
            holder.refuse_unless(partial_rotary_factor=1.0)
    if head_width % 2 or not head_width:
        raise CheckpointError(f"{reader.place}: heads of width {head_width} cannot rotate in pairs")
    base = parameters.number("rope_theta", default_base)
    # Phi-3's field, which `transformers` prefers for all models
    trained = reader.integer(TRAINED, parameters.integer(TRAINED, positions))
    if _kind(parameters) == "yarn":
        return _yarn(parameters, Rotary(head_width, positions, base), trained)
    if _kind(parameters) == "longrope":
        return _longrope(parameters, Rotary(head_width, positions, base), trained)
    return Rotary(head_width, positions, base, scaling=_scaling(parameters, trained))


def rope_parameters(reader: ConfigReader, given: object) -> Mapping[str, Any]:
    """Parameters as a file has them; none where it has none.

    Raises:
        CheckpointError: they are no dictionary.
    """
    parameters = given or {}
    if not isinstance(parameters, Mapping):
        raise CheckpointError(
            f"{reader.place}: rope parameters must be a dictionary, not {given!r}"
        )
    return parameters


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
    if trained < 2:  # by whose logarithm the amplitude is divided
        raise CheckpointError(f"{parameters.place}: {TRAINED} = {trained} must be at least 2")
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
