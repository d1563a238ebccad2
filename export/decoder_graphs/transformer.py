"""The engine's graphs of a Transformer decoder: `admit`, `step` and `align`.

A model file builds the decoder (`export/layers/decoder.py`); this file defines the names, roles
and states of its graphs, as `inference/bundle/manifest.py` defines them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from export.architecture import Graphs, Lowering
from export.decoder_graphs.source import Source, held_state, text_source
from export.layers.attention.heads import KeyValue, Rows
from export.layers.decoder import TransformerDecoder
from inference.bundle.inputs import AlignmentSpec
from inference.bundle.manifest import Graph, Growth, Role, State
from inference.bundle.manifest import Tensor as Port

_DEEP = 6  # layers
_ENCODING = ("admit", "align")
CONTROLS = (
    Port(name="tokens", dtype="int64", shape=("R", "T"), role=Role.TOKENS),
    Port(name="lengths", dtype="int32", shape=("R",), role=Role.LENGTHS),
    Port(name="total", dtype="int32", shape=(), role=Role.TOTAL),
    Port(name="last", dtype="int64", shape=("R",), role=Role.LAST),
)
"""Inputs of `step` that say where its tokens lie, in the order of its `forward`."""


def language_model_graphs(decoder: TransformerDecoder) -> Graphs:
    """`step` alone, of a decoder without a source (R, T, P dynamic; caches in place)."""
    return Graphs({"step": _step(decoder, None)}, cache_states(decoder))


def encoder_decoder_graphs(
    encoder: nn.Module, decoder: TransformerDecoder, source: Source
) -> Graphs:
    """`admit`, `step` and `align` of an encoder and a decoder with cross-attention.

    Args:
        encoder: Called with the source's inputs → (B, S, D).
    """
    held = cross_ports(decoder, source)
    lowerings = {
        "admit": Lowering(Admit(encoder, decoder), source.admit_graph(held)),
        "step": _step(decoder, source),
    }
    if decoder.is_aligned:
        layer = alignment_layer(decoder.layers)
        lowerings["align"] = _align(encoder, decoder, source, layer)
    states = (*cache_states(decoder), *(held_state(port) for port in held))
    return Graphs(lowerings, states, source_vocabulary=source.vocabulary)


def text_to_text_graphs(model: Any, tokens: nn.Embedding, traced: int | None = None) -> Graphs:
    """The graphs of a model whose `encoder` reads texts.

    Args:
        tokens: The encoder's table.
        traced: Source positions while the encoder is traced: several of its blocks, because a
            graph traced with one block has no dimension for them.
    """
    source = text_source(tokens.num_embeddings)
    graphs = encoder_decoder_graphs(model.encoder, model.decoder, source)
    if traced is None:
        return graphs
    sizes = {"S": traced}
    encoding = {
        key: replace(lowering, traced_sizes=sizes)
        for key, lowering in graphs.lowerings.items()
        if key in _ENCODING
    }
    return replace(graphs, lowerings={**graphs.lowerings, **encoding})


def prefix_graphs(encoder: nn.Module, decoder: TransformerDecoder, source: Source) -> Graphs:
    """`admit` and `step` of a decoder whose caches begin with a source's positions.

    The source's positions attend to each other and to no token, so their keys and values are
    computed once; `step` is that of a language model, whose tokens attend to all of the cache.

    Args:
        encoder: Called with the source's inputs → (B, N, D), the decoder's input.
        decoder: Adds no position of its own to these.
        source: With a fixed number of positions.
    """
    assert isinstance(source.positions, int)
    heads = decoder.heads
    shape = ("B", heads.groups, source.positions, heads.cache_width)
    ports = layer_ports(decoder.layers, "prefix", shape)
    states = tuple(
        state.model_copy(update={"admit_output": port.name, "prefix": source.positions})
        for state, port in zip(cache_states(decoder), ports, strict=True)
    )
    lowerings = {
        "admit": Lowering(ReadPrefix(encoder, decoder), source.admit_graph(ports)),
        "step": _step(decoder, None),
    }
    return Graphs(lowerings, states, source_vocabulary=source.vocabulary)


def alignment(
    decoder: TransformerDecoder, grid: tuple[int, int] | None = None
) -> Mapping[str, AlignmentSpec]:
    """The manifest's field for attention over the source; none of decoders that do not align.

    Args:
        grid: Rows and columns of an image's patches; None for texts.
    """
    if not decoder.is_aligned:
        return {}
    over: Literal["tokens", "patches"] = "tokens" if grid is None else "patches"
    layer = alignment_layer(decoder.layers)
    return {"alignment": AlignmentSpec(over=over, grid=grid, layer=layer)}


def alignment_layer(layers: int) -> int:
    """The layer, counted from 0, whose cross-attention aligns best.

    In a deep decoder that is the last but one (Garg et al. 2019, "Jointly Learning to Align and
    Translate with Transformer Models", §4.1, arXiv 1909.02074). In the examples, of two and three
    layers, it is the last: `examples/es_en/alignment_by_layer.py` counts 99.8 % of inverted
    words aligned there and 94.5 % one below, `attention_by_layer.py` 92 % of words aligned with
    their thing and 59 %.
    """
    return layers - 2 if layers >= _DEEP else layers - 1


class Admit(nn.Module):
    """`admit`: source → what the decoder's cross-attention reads."""

    def __init__(self, encoder: nn.Module, decoder: TransformerDecoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, *source: Tensor) -> tuple[Tensor, ...]:
        """The encoder's inputs → keys and values of every decoder layer."""
        return tuple(tensor for pair in self.project(self.encoder(*source)) for tensor in pair)

    def project(self, source: Tensor) -> list[KeyValue]:
        """(B, S, D) → keys and values of every decoder layer."""
        return self.decoder.project_cross_kv(source)


class ReadPrefix(Admit):
    """`admit`: source → the first positions of the decoder's caches.

    Not a HOLD state: one softmax covers image and text, and the operator that writes the cache has
    no second source of keys.
    """

    def project(self, source: Tensor) -> list[KeyValue]:
        """(B, N, D) → keys and values of every decoder layer, (B, G, N, K)."""
        return self.decoder.read_prefix(source)


class Step(nn.Module):
    """`step`: the decoder as the engine calls it, every input and state a plain tensor."""

    def __init__(self, decoder: TransformerDecoder, *, has_source: bool) -> None:
        super().__init__()
        self.decoder = decoder
        self.has_source = has_source

    def forward(
        self, tokens: Tensor, lengths: Tensor, total: Tensor, last: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        """Logits (R, V) after each row's last real token, then the caches, key before value.

        Args:
            rest: SOURCE where the model has one, then 2·layers caches, then 2·layers keys and
                values of the source; a decoder without cross-attention has caches only.
        """
        source, states = (rest[0], rest[1:]) if self.has_source else (None, rest)
        pairs = list(zip(states[::2], states[1::2], strict=True))
        past, cross = pairs[: self.decoder.layers], pairs[self.decoder.layers :]
        rows = Rows(lengths, total, last)
        hidden, present = self.decoder(tokens, rows, past, cross, source)
        logits = self.decoder.logits(final_vectors(hidden, last))
        return logits, *(tensor for pair in present for tensor in pair)


class AdmitCounted(Admit):
    """`admit`: how many positions of a source are read, and what cross-attention reads of them."""

    def forward(self, *source: Tensor) -> tuple[Tensor, ...]:
        """The encoder's inputs → (B, 1), then keys and values of every decoder layer."""
        vectors, count = self.encoder(*source)
        return count[:, None], *(tensor for pair in self.project(vectors) for tensor in pair)


class CountedStep(Step):
    """`step`, whose number of source positions is a state."""

    def forward(
        self, tokens: Tensor, lengths: Tensor, total: Tensor, last: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        """As of `Step`; the first of `rest` is (B, 1) int64."""
        count, *states = rest
        return super().forward(tokens, lengths, total, last, count.squeeze(1).int(), *states)


def counted_source_graphs(
    encoder: nn.Module, decoder: TransformerDecoder, source: Source, name: str
) -> Graphs:
    """`admit` and `step` of an encoder that decides how many positions are read.

    Args:
        encoder: Called with the source's inputs → (B, S, D) and (B,) int64.
        name: Of the state with that number.
    """
    count = Port(name=name, dtype="int64", shape=("B", 1), role=Role.STATE)
    held = (count, *cross_ports(decoder, source))
    step = step_graph(decoder, (count,), held[1:])
    lowerings = {
        "admit": Lowering(AdmitCounted(encoder, decoder), source.admit_graph(held)),
        "step": Lowering(CountedStep(decoder, has_source=True), step),
    }
    states = (*cache_states(decoder), *(held_state(port) for port in held))
    return Graphs(lowerings, states, source_vocabulary=source.vocabulary)


def final_vectors(hidden: Tensor, last: Tensor) -> Tensor:
    """Hidden states (R, T, D) → (R, D): each row's at its last real token, whose index is (R,)."""
    return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1])).squeeze(1)


class Align(nn.Module):
    """`align`: the attention of each token of a finished hypothesis over the source, in one call.

    Args:
        layer: Whose cross-attention it is, counted from 0.
    """

    def __init__(self, encoder: nn.Module, decoder: TransformerDecoder, layer: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        """The encoder's inputs, then tokens (1, T) → probabilities (1, T, S), mean over heads."""
        *source, tokens = inputs
        lengths = source[1] if len(source) > 1 else None
        cross = self.decoder.project_cross_kv(self.encoder(*source))
        rows, past = self._whole(tokens)
        return self.decoder.cross_weights(tokens, rows, past, cross, lengths, self.layer)

    def _whole(self, tokens: Tensor) -> tuple[Rows, list[KeyValue]]:
        """All positions are new: control inputs, and room for the keys and values."""
        count = torch.ones_like(tokens).sum(dim=1)  # (1,)
        heads = self.decoder.heads
        # (1, G, T, K), as long as the tokens
        empty = torch.zeros(1, heads.groups, 1, heads.cache_width) * tokens[:, None, :, None]
        rows = Rows(count.int(), count.max().int(), count - 1)
        return rows, [(empty, empty)] * self.decoder.layers


def _align(encoder: nn.Module, decoder: TransformerDecoder, source: Source, layer: int) -> Lowering:
    """The `align` graph: takes what `admit` takes, for one sequence, and its tokens.

    Its output is attention weights, which fused operators do not return: standard operators only.
    """
    single = [port.model_copy(update={"shape": (1, *port.shape[1:])}) for port in source.ports]
    tokens = Port(name="tokens", dtype="int64", shape=(1, "T"), role=Role.TOKENS)
    shape = (1, "T", source.positions)
    alignment = Port(name="alignment", dtype="float32", shape=shape, role=Role.EMIT)
    graph = Graph(file="align.onnx", inputs=(*single, tokens), outputs=(alignment,))
    return Lowering(Align(encoder, decoder, layer), graph, is_fused=False)


def _step(decoder: TransformerDecoder, source: Source | None) -> Lowering:
    """The `step` graph."""
    lengths = source.length_ports if source else ()
    held = cross_ports(decoder, source) if source else ()
    graph = step_graph(decoder, lengths, held)
    return Lowering(Step(decoder, has_source=bool(lengths)), graph)


def step_graph(
    decoder: TransformerDecoder,
    before: tuple[Port, ...],
    behind: tuple[Port, ...] = (),
    written: tuple[Port, ...] = (),
    **fields: Any,
) -> Graph:
    """The interface of `step`.

    Args:
        before: Inputs in front of the caches.
        behind: Inputs behind them.
        written: Outputs in front of them.
        fields: Of the graph.
    """
    shape = ("R", decoder.vocabulary_size)
    logits = Port(name="logits", dtype="float32", shape=shape, role=Role.LOGITS)
    return Graph(
        file="step.onnx",
        inputs=(*CONTROLS, *before, *cache_ports(decoder, "past"), *behind),
        outputs=(logits, *written, *cache_ports(decoder, "present")),
        **fields,
    )


def cross_ports(decoder: TransformerDecoder, source: Source) -> tuple[Port, ...]:
    """The HOLD tensors that `admit` writes and `step` reads: cross-attention keys and values."""
    heads = decoder.heads
    shape = ("B", heads.groups, source.positions, heads.width)
    return layer_ports(decoder.layers, "cross", shape)


def cache_ports(decoder: TransformerDecoder, tense: str) -> tuple[Port, ...]:
    """The caches before or after a call (`tense`: past or present)."""
    heads = decoder.heads
    return layer_ports(decoder.layers, tense, ("R", heads.groups, "P", heads.cache_width))


def layer_ports(layers: int, prefix: str, shape: tuple[int | str, ...]) -> tuple[Port, ...]:
    """Keys and values of every layer, key before value."""
    return tuple(
        Port(name=f"{prefix}_{kind}_{layer}", dtype="float32", shape=shape, role=Role.STATE)
        for layer in range(layers)
        for kind in ("key", "value")
    )


def cache_states(decoder: TransformerDecoder) -> tuple[State, ...]:
    """Caches of self-attention, which grow in place."""
    return tuple(
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
            cache_ports(decoder, "past"), cache_ports(decoder, "present"), strict=True
        )
    )
