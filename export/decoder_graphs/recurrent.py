"""Recurrent decoders, and the engine's graphs of them.

A model file defines the cell, this file its graphs `admit` and `step`. The source becomes
annotations, which are held and attended to, and initial states, which every step replaces; without
attention, one vector and initial states. A language model has no source; its states begin as zeros.

Legend: B sequences, R rows (B x beams), S annotations, D width of an annotation, A width of the
attention, C width of a context, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from export.architecture import Graphs, Lowering
from export.decoder_graphs.source import Source, held_state
from export.layers.attention.additive_attention import AdditiveAttention
from inference.bundle.manifest import Graph, Growth, Role, State
from inference.bundle.manifest import Tensor as Port

_TOKENS = Port(name="tokens", dtype="int64", shape=("R", 1), role=Role.TOKENS)


class RecurrentDecoder(nn.Module):
    """One token a call, with attention to annotations.

    Attributes:
        vocabulary_size: V.
        annotation_width: D.
        state_widths: Name → width of each state, in the order of `initial_states`.
        attention: Over the annotations.
    """

    vocabulary_size: int
    annotation_width: int
    state_widths: Mapping[str, int]
    attention: AdditiveAttention

    def initial_states(self, annotations: Tensor) -> tuple[Tensor, ...]:
        """(B, S, D) → the states before the first token, (B, width) each."""
        raise NotImplementedError

    def forward(
        self,
        tokens: Tensor,
        states: tuple[Tensor, ...],
        annotations: Tensor,
        keys: Tensor,
        source: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """(R,) tokens → logits (R, V), the new states and the attention (R, S).

        Args:
            states: (R, width) each.
            annotations: (B, S, D); beams of one sequence share its annotations.
            keys: (B, S, A), what `attention.project_keys` made of them.
            source: (B,) int32, source lengths, where sources are padded.
        """
        raise NotImplementedError


class StateDecoder(nn.Module):
    """One token a call, without attention.

    Attributes:
        vocabulary_size: V.
        state_widths: Name → width of each state, in the order of `initial_states`.
        context_width: C, of the vector that every step reads; None where none does.
    """

    vocabulary_size: int
    state_widths: Mapping[str, int]
    context_width: int | None = None

    def initial_states(self, context: Tensor) -> tuple[Tensor, ...]:
        """(B, C) → the states before the first token, (B, width) each; of those with a source."""
        raise NotImplementedError

    def forward(
        self, tokens: Tensor, states: tuple[Tensor, ...], *held: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(R,) tokens and (R, width) each → logits (R, V) and the new states.

        Args:
            held: (B, C) where steps read the context.
        """
        raise NotImplementedError


class Admit(nn.Module):
    """`admit`: a source → its annotations, their keys and the initial states."""

    def __init__(self, encoder: nn.Module, decoder: RecurrentDecoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, *source: Tensor) -> tuple[Tensor, ...]:
        """The encoder's inputs → (B, S, D), (B, S, A) and (B, width) for each state."""
        annotations = self.encoder(*source)
        keys = self.decoder.attention.project_keys(annotations)
        return annotations, keys, *self.decoder.initial_states(annotations)


class Step(nn.Module):
    """`step`: one token a row."""

    def __init__(self, decoder: RecurrentDecoder, *, has_source: bool) -> None:
        super().__init__()
        self.decoder = decoder
        self.has_source = has_source

    def forward(self, tokens: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """(R, 1) tokens → logits (R, V), the new states and the attention (R, S).

        Args:
            rest: SOURCE where sources are padded, the states, annotations and keys.
        """
        source, held = (rest[0], rest[1:]) if self.has_source else (None, rest)
        *states, annotations, keys = held
        logits, new, attention = self.decoder(
            tokens[:, 0], tuple(states), annotations, keys, source
        )
        return logits, *new, attention


class ContextAdmit(nn.Module):
    """`admit`: a source → its context, if steps read it, and the initial states."""

    def __init__(self, encoder: nn.Module, decoder: StateDecoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, *source: Tensor) -> tuple[Tensor, ...]:
        """The encoder's inputs → (B, C) and (B, width) for each state."""
        context = self.encoder(*source)
        states = self.decoder.initial_states(context)
        return states if self.decoder.context_width is None else (context, *states)


class StateStep(nn.Module):
    """`step`: one token a row, without attention."""

    def __init__(self, decoder: StateDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """(R, 1) tokens, (R, width) each, perhaps (B, C) → logits (R, V) and the new states."""
        count = len(self.decoder.state_widths)
        logits, after = self.decoder(tokens[:, 0], rest[:count], *rest[count:])
        return logits, *after


def recurrent_lm_graphs(decoder: StateDecoder) -> Graphs:
    """`step` alone (R dynamic; one token a call)."""
    states = tuple(
        _replaced_state(name, width).model_copy(update={"admit_output": None})
        for name, width in decoder.state_widths.items()
    )
    return Graphs({"step": _state_step(decoder, ())}, states)


def context_graphs(encoder: nn.Module, decoder: StateDecoder, source: Source) -> Graphs:
    """`admit` and `step` (R, B and the source's sizes dynamic; one token a call).

    Args:
        encoder: Called with the source's inputs → (B, C).
    """
    width = decoder.context_width
    held = () if width is None else (_port("context", "B", width),)
    widths = decoder.state_widths
    initial = (_port(f"initial_{name}", "B", width) for name, width in widths.items())
    admit = source.admit_graph((*held, *initial))
    lowerings = {
        "admit": Lowering(ContextAdmit(encoder, decoder), admit),
        "step": _state_step(decoder, held),
    }
    states = (
        *(_replaced_state(name, width) for name, width in widths.items()),
        *(held_state(port) for port in held),
    )
    return Graphs(lowerings, states, source_vocabulary=source.vocabulary)


def _state_step(decoder: StateDecoder, held: tuple[Port, ...]) -> Lowering:
    widths = decoder.state_widths
    step = Graph(
        file="step.onnx",
        inputs=(_TOKENS, *(_port(name, "R", width) for name, width in widths.items()), *held),
        outputs=(
            _port("logits", "R", decoder.vocabulary_size, role=Role.LOGITS),
            *(_port(f"next_{name}", "R", width) for name, width in widths.items()),
        ),
        max_tokens_per_call=1,
    )
    return Lowering(StateStep(decoder), step)


def recurrent_graphs(encoder: nn.Module, decoder: RecurrentDecoder, source: Source) -> Graphs:
    """`admit` and `step` (R, B and the source's sizes dynamic; one token a call).

    Args:
        encoder: Called with the source's inputs → annotations (B, S, D).
    """
    positions = source.positions
    attention_width = decoder.attention.key.out_features
    held = (
        _port("annotations", "B", positions, decoder.annotation_width),
        _port("keys", "B", positions, attention_width),
    )
    widths = decoder.state_widths
    initial = (_port(f"initial_{name}", "B", width) for name, width in widths.items())
    before = (_port(name, "R", width) for name, width in widths.items())
    after = (_port(f"next_{name}", "R", width) for name, width in widths.items())
    step = Graph(
        file="step.onnx",
        inputs=(_TOKENS, *source.length_ports, *before, *held),
        outputs=(
            _port("logits", "R", decoder.vocabulary_size, role=Role.LOGITS),
            *after,
            _port("attention", "R", positions, role=Role.EMIT),
        ),
        max_tokens_per_call=1,
    )
    lowerings = {
        "admit": Lowering(Admit(encoder, decoder), source.admit_graph((*held, *initial))),
        "step": Lowering(Step(decoder, has_source=bool(source.length_ports)), step),
    }
    states = (
        *(_replaced_state(name, width) for name, width in widths.items()),
        *(held_state(port) for port in held),
    )
    return Graphs(lowerings, states, source_vocabulary=source.vocabulary)


def _port(name: str, *shape: int | str, role: Role = Role.STATE) -> Port:
    return Port(name=name, dtype="float32", shape=shape, role=role)


def _replaced_state(name: str, width: int) -> State:
    return State(
        name=name,
        growth=Growth.REPLACE,
        dtype="float32",
        shape=("R", width),
        step_input=name,
        step_output=f"next_{name}",
        admit_output=f"initial_{name}",
    )
