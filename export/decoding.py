"""The engine's graphs for any transformer decoder: `admit`, `step` and `align`.

A decoder model gives a `Decoder`; this file gives its graphs their names, roles and states, as
`serving/bundle.py` fixes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from export.architecture import Lowering
from export.layers.attention import Heads, KeyValue, Rows
from serving.bundle import Graph, Growth, Role, State
from serving.bundle import Tensor as Port

_DEEP = 6  # layers


class Decoder(Protocol):
    """What a model's decoder must offer."""

    heads: Heads
    layers: int
    vocabulary_size: int

    def __call__(
        self,
        tokens: Tensor,
        rows: Rows,
        past: Sequence[KeyValue],
        memory: Sequence[KeyValue],
        source: Tensor | None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """(R, T) tokens → hidden states (R, T, D) and the caches with the new positions."""
        ...

    def align(
        self,
        tokens: Tensor,
        rows: Rows,
        past: Sequence[KeyValue],
        memory: Sequence[KeyValue],
        source: Tensor | None,
        layer: int,
    ) -> Tensor:
        """Like a call, but → (B, T, S): what each position looks at in that layer."""
        ...

    def memorise(self, source: Tensor) -> list[KeyValue]:
        """Encoder output (B, S, D) → each layer's cross-attention keys and values."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        ...


class Admit(nn.Module):
    """`admit`: source → what the decoder's cross-attention reads."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, *source: Tensor) -> tuple[Tensor, ...]:
        """The encoder's inputs → keys and values of every decoder layer."""
        memory = self.decoder.memorise(self.encoder(*source))
        return tuple(tensor for pair in memory for tensor in pair)


class Step(nn.Module):
    """`step`: the decoder as the engine calls it, every input and state a plain tensor."""

    def __init__(self, decoder: nn.Module, *, has_source: bool) -> None:
        super().__init__()
        self.decoder = decoder
        self.has_source = has_source

    def forward(
        self, tokens: Tensor, lengths: Tensor, total: Tensor, last: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        """Logits (R, V) after each row's last real token, then the caches, key before value.

        Args:
            rest: SOURCE where the model has one, then 2·layers caches, then 2·layers memories;
                a decoder without cross-attention has caches only.
        """
        source, states = (rest[0], rest[1:]) if self.has_source else (None, rest)
        pairs = list(zip(states[::2], states[1::2], strict=True))
        past, memory = pairs[: self.decoder.layers], pairs[self.decoder.layers :]
        looked_at = (memory, source) if memory else ()
        hidden, present = self.decoder(tokens, Rows(lengths, total, last), past, *looked_at)
        index = last[:, None, None].expand(-1, 1, hidden.shape[-1])
        final = hidden.gather(1, index).squeeze(1)  # (R, D)
        return self.decoder.logits(final), *(tensor for pair in present for tensor in pair)


class Align(nn.Module):
    """`align`: what each token of a finished hypothesis looked at, in one call.

    Args:
        layer: Whose cross-attention tells, counted from 0.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, layer: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        """The encoder's inputs, then tokens (1, T) → probabilities (1, T, S), mean over heads."""
        *source, tokens = inputs
        lengths = source[1] if len(source) > 1 else None
        memory = self.decoder.memorise(self.encoder(*source))
        rows, past = self._whole(tokens)
        return self.decoder.align(tokens, rows, past, memory, lengths, self.layer)

    def _whole(self, tokens: Tensor) -> tuple[Rows, list[KeyValue]]:
        """All positions are new: control inputs, and room for the keys and values."""
        count = torch.ones_like(tokens).sum(dim=1)  # (1,)
        heads = self.decoder.heads
        # (1, H, T, K), as long as the tokens
        empty = torch.zeros(1, heads.count, 1, heads.cache_width) * tokens[:, None, :, None]
        rows = Rows(count.int(), count.max().int(), count - 1)
        return rows, [(empty, empty)] * self.decoder.layers


def tied_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Scores: hidden (R, D) · weightᵀ (D, V) + bias (V,).

    As `Gemm` the embedding table is used where it lies; a linear layer would store it a second
    time, transposed.
    """
    if not torch.onnx.is_in_onnx_export():
        return nn.functional.linear(hidden, weight, bias)
    return torch.onnx.ops.symbolic(
        "::Gemm",
        [hidden, weight] if bias is None else [hidden, weight, bias],
        {"transB": 1},
        dtype=hidden.dtype,
        shape=[hidden.shape[0], weight.shape[0]],
    )


def text_admit_lowering(encoder: nn.Module, decoder: nn.Module) -> Lowering:
    """The `admit` graph of a text encoder: called with tokens (B, S) and lengths (B,)."""
    graph = Graph(
        file="admit.onnx",
        inputs=(
            Port(name="source_tokens", dtype="int64", shape=("B", "S"), role=Role.SOURCE_TOKENS),
            Port(name="source", dtype="int32", shape=("B",), role=Role.SOURCE),
        ),
        outputs=memory_ports(decoder, "S"),
    )
    return Lowering(Admit(encoder, decoder), graph)


def image_admit_lowering(
    encoder: nn.Module, decoder: nn.Module, image_shape: tuple[int, int, int], positions: int
) -> Lowering:
    """The `admit` graph of an image tower: called with pixels (B, height, width, 3) uint8."""
    pixels = Port(name="pixels", dtype="uint8", shape=("B", *image_shape), role=Role.PIXELS)
    graph = Graph(file="admit.onnx", inputs=(pixels,), outputs=memory_ports(decoder, positions))
    return Lowering(Admit(encoder, decoder), graph)


def alignment_layer(layers: int) -> int:
    """The layer, counted from 0, whose cross-attention aligns best.

    In a deep decoder that is the last but one (Garg et al. 2019, "Jointly Learning to Align and
    Translate with Transformer Models", §4.1, arXiv 1909.02074). In the examples, of two and three
    layers, it is the last: `export/examples/inversions.py` counts 99.8 % of inverted words aligned
    there and 94.5 % one below, `glances.py` 92 % of looks on the thing named and 59 %.
    """
    return layers - 2 if layers >= _DEEP else layers - 1


def align_lowering(encoder: nn.Module, decoder: nn.Module, admit: Graph, layer: int) -> Lowering:
    """The `align` graph: takes what `admit` takes, for one sequence, and its tokens.

    Weights are what it is for, so it keeps to standard operators: fused ones do not tell them.
    """
    memory = admit.outputs[0]
    source = [port.model_copy(update={"shape": (1, *port.shape[1:])}) for port in admit.inputs]
    tokens = Port(name="tokens", dtype="int64", shape=(1, "T"), role=Role.TOKENS)
    alignment = Port(
        name="alignment", dtype="float32", shape=(1, "T", memory.shape[2]), role=Role.EMIT
    )
    graph = Graph(file="align.onnx", inputs=(*source, tokens), outputs=(alignment,))
    return Lowering(Align(encoder, decoder, layer), graph, is_fused=False)


def step_lowering(decoder: nn.Module, source_length: int | str | None) -> Lowering:
    """The `step` graph.

    Args:
        source_length: "S" where sources differ in length, else the number of image positions;
            None for a decoder without cross-attention.
    """
    has_source = source_length == "S"
    inputs = [
        Port(name="tokens", dtype="int64", shape=("R", "T"), role=Role.TOKENS),
        Port(name="lengths", dtype="int32", shape=("R",), role=Role.LENGTHS),
        Port(name="total", dtype="int32", shape=(), role=Role.TOTAL),
        Port(name="last", dtype="int64", shape=("R",), role=Role.LAST),
    ]
    if has_source:
        inputs.append(Port(name="source", dtype="int32", shape=("B",), role=Role.SOURCE))
    logits = Port(
        name="logits", dtype="float32", shape=("R", decoder.vocabulary_size), role=Role.LOGITS
    )
    past, present = _cache_ports(decoder, "past"), _cache_ports(decoder, "present")
    memory = memory_ports(decoder, source_length)
    graph = Graph(file="step.onnx", inputs=(*inputs, *past, *memory), outputs=(logits, *present))
    return Lowering(Step(decoder, has_source=has_source), graph)


def memory_ports(decoder: Decoder, source_length: int | str | None) -> tuple[Port, ...]:
    """The HOLD tensors that `admit` writes and `step` reads: cross-attention keys and values."""
    if source_length is None:
        return ()
    shape = ("B", decoder.heads.count, source_length, decoder.heads.width)
    return tuple(
        Port(name=f"cross_{kind}_{layer}", dtype="float32", shape=shape, role=Role.STATE)
        for layer in range(decoder.layers)
        for kind in ("key", "value")
    )


def states(decoder: Decoder, source_length: int | str | None) -> tuple[State, ...]:
    """The decoder's states: a cache that grows in place and, of a source, a memory that is held."""
    caches = [
        State(
            name=past.name.removeprefix("past_"),
            growth=Growth.APPEND,
            dtype="float32",
            shape=past.shape,
            step_input=past.name,
            step_output=present.name,
            layout="in_place",
        )
        for past, present in zip(
            _cache_ports(decoder, "past"), _cache_ports(decoder, "present"), strict=True
        )
    ]
    memories = [
        State(
            name=port.name,
            growth=Growth.HOLD,
            dtype="float32",
            shape=port.shape,
            step_input=port.name,
            admit_output=port.name,
        )
        for port in memory_ports(decoder, source_length)
    ]
    return (*caches, *memories)


def _cache_ports(decoder: Decoder, tense: str) -> tuple[Port, ...]:
    shape = ("R", decoder.heads.count, "P", decoder.heads.cache_width)
    return tuple(
        Port(name=f"{tense}_{kind}_{layer}", dtype="float32", shape=shape, role=Role.STATE)
        for layer in range(decoder.layers)
        for kind in ("key", "value")
    )
