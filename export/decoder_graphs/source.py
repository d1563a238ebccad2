"""Sources of a generator: the inputs of `admit`, and the encoded positions."""

from __future__ import annotations

from dataclasses import dataclass

from export.layers.images.vision import pixels_port
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Graph, Growth, Role, State
from inference.bundle.manifest import Tensor as Port

LENGTHS = Port(name="source", dtype="int32", shape=("B",), role=Role.SOURCE)
"""Source positions of each sequence."""


@dataclass(frozen=True)
class Source:
    """The source of an encoder-decoder.

    Attributes:
        ports: Inputs of the encoder, in the order of its `forward`.
        positions: Positions that the decoder attends to: "S" where sources differ in length (then
            SOURCE holds their lengths), else their fixed number.
        vocabulary: Tokens of a text encoder's table; None for images.
    """

    ports: tuple[Port, ...]
    positions: int | str
    vocabulary: int | None = None

    @property
    def length_ports(self) -> tuple[Port, ...]:
        """SOURCE, which `step` takes too; nothing where all sources have the same positions."""
        return tuple(port for port in self.ports if port.role is Role.SOURCE)

    def admit_graph(self, outputs: tuple[Port, ...]) -> Graph:
        """The interface of `admit`."""
        return Graph(file="admit.onnx", inputs=self.ports, outputs=outputs)


def text_source(vocabulary: int) -> Source:
    """Tokens (B, S), right-padded, and lengths (B,)."""
    tokens = Port(name="source_tokens", dtype="int64", shape=("B", "S"), role=Role.SOURCE_TOKENS)
    return Source((tokens, LENGTHS), "S", vocabulary)


def image_source(image: ImageSpec, positions: int) -> Source:
    """Pixels.

    Args:
        positions: Feature vectors that the encoder makes of an image.
    """
    return Source((pixels_port(image),), positions)


def held_state(port: Port) -> State:
    """A state that `admit` writes under the name by which `step` reads it."""
    return State(
        name=port.name,
        growth=Growth.HOLD,
        dtype=port.dtype,
        shape=port.shape,
        step_input=port.name,
        admit_output=port.name,
    )
