"""Recurrent decoders, and the engine's graphs of them.

A model file defines the cell, this file its graphs `admit` and `step`. The source becomes
annotations, which are held and attended to, and initial states, which every step replaces; without
attention, one vector and initial states. A language model has no source; its states begin as zeros.
Tapes of what earlier steps computed grow as the caches of a Transformer do.

Legend: B sequences, R rows (B x beams), S annotations, D width of an annotation, A width of the
attention, C width of a context, V vocabulary, P positions of a tape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from export.architecture import Graphs, Lowering
from export.decoder_graphs.source import Source, held_state
from export.layers.attention.additive_attention import AdditiveAttention
from inference.bundle.manifest import Graph, Growth, Role, State
from inference.bundle.manifest import Tensor as Port

_TOKENS = Port(name="tokens", dtype="int64", shape=("R", 1), role=Role.TOKENS)
_LENGTHS = Port(name="lengths", dtype="int32", shape=("R",), role=Role.LENGTHS)


class RecurrentDecoder(nn.Module):
    """One token a call.

    `forward` takes tokens (R,), the states, (R, width) each, the tapes, (R, 1, P, width) each, and
    what `held` returned; with attention the source's lengths too, (B,) int32, where sources are
    padded, and with tapes those of the rows behind this token, (R,) int32. It returns logits
    (R, V), the new states and tapes and, with attention, its weights (R, S). Beams of one sequence
    share what is held.

    Attributes:
        vocabulary_size: V.
        state_widths: Name → width of each state, in the order of `initial_states`.
        tape_widths: Name → width of each tape.
        attention: Over annotations; None: steps read one vector of the source, or none.
        context_width: C, of the vector that every step reads; None where none does.
    """

    vocabulary_size: int
    state_widths: Mapping[str, int]
    tape_widths: Mapping[str, int] = {}
    attention: AdditiveAttention | None
    context_width: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.attention = None

    def initial_states(self, read: Tensor) -> tuple[Tensor, ...]:
        """The encoder's output, (B, S, D) or (B, C) → the states before the first token.

        (B, width) each; of decoders with a source.
        """
        raise NotImplementedError

    def held(self, read: Tensor) -> tuple[Tensor, ...]:
        """What steps read of the encoder's output: annotations and their keys, or the context."""
        if self.attention is not None:
            return read, self.attention.project_keys(read)
        return () if self.context_width is None else (read,)

    def held_ports(self, source: Source) -> tuple[Port, ...]:
        """The tensors that `held` returns."""
        if self.attention is not None:
            key, positions = self.attention.key, source.positions
            return (
                _port("annotations", "B", positions, key.in_features),
                _port("keys", "B", positions, key.out_features),
            )
        return () if self.context_width is None else (_port("context", "B", self.context_width),)


class Admit(nn.Module):
    """`admit`: a source → what is held of it and the initial states."""

    def __init__(self, encoder: nn.Module, decoder: RecurrentDecoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, *source: Tensor) -> tuple[Tensor, ...]:
        """The encoder's inputs → (B, S, D) and (B, S, A), or (B, C); (B, width) for each state."""
        read = self.encoder(*source)
        return *self.decoder.held(read), *self.decoder.initial_states(read)


class Step(nn.Module):
    """`step`: one token a row.

    Args:
        lengths: 1 where lengths of the source or of rows are an input, else 0.
    """

    def __init__(self, decoder: RecurrentDecoder, lengths: int) -> None:
        super().__init__()
        self.decoder, self.lengths = decoder, lengths

    def forward(self, tokens: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """(R, 1) tokens → logits (R, V), the new states and, with attention, its weights (R, S).

        Args:
            rest: SOURCE or LENGTHS where it is an input, the states, the tapes, what is held.
        """
        lengths, rest = rest[: self.lengths], rest[self.lengths :]
        count = len(self.decoder.state_widths) + len(self.decoder.tape_widths)
        logits, new, *attention = self.decoder(tokens[:, 0], rest[:count], *rest[count:], *lengths)
        return logits, *new, *attention


def recurrent_graphs(
    decoder: RecurrentDecoder, encoder: nn.Module | None = None, source: Source | None = None
) -> Graphs:
    """`admit` and `step` (R, B and the source's sizes dynamic; one token a call).

    Args:
        encoder: Called with the source's inputs → annotations (B, S, D), or a context (B, C); None
            for a language model, which has `step` alone.
    """
    widths = decoder.state_widths
    held = () if source is None else decoder.held_ports(source)
    lengths: tuple[Port, ...] = (_LENGTHS,) if decoder.tape_widths else ()
    tapes = [
        _state(name, "R", 1, "P", width, growth=Growth.APPEND, layout="in_place")
        for name, width in decoder.tape_widths.items()
    ]
    emitted: tuple[Port, ...] = ()
    if source is not None and decoder.attention is not None:
        lengths = source.length_ports
        emitted = (_port("attention", "R", source.positions, role=Role.EMIT),)
    step = Graph(
        file="step.onnx",
        inputs=(
            _TOKENS,
            *lengths,
            *(_port(name, "R", width) for name, width in widths.items()),
            *(_port(tape.name, *tape.shape) for tape in tapes),
            *held,
        ),
        outputs=(
            _port("logits", "R", decoder.vocabulary_size, role=Role.LOGITS),
            *(_port(f"next_{name}", "R", width) for name, width in widths.items()),
            *(_port(str(tape.step_output), *tape.shape) for tape in tapes),
            *emitted,
        ),
        max_tokens_per_call=1,
    )
    lowerings = {"step": Lowering(Step(decoder, len(lengths)), step)}
    states = [
        _state(name, "R", width, growth=Growth.REPLACE, admit_output=f"initial_{name}")
        for name, width in widths.items()
    ]
    if source is None or encoder is None:
        bare = (state.model_copy(update={"admit_output": None}) for state in states)
        return Graphs(lowerings, (*bare, *tapes))
    initial = (_port(f"initial_{name}", "B", width) for name, width in widths.items())
    admit = Lowering(Admit(encoder, decoder), source.admit_graph((*held, *initial)))
    states += map(held_state, held)
    return Graphs({"admit": admit, **lowerings}, tuple(states), source_vocabulary=source.vocabulary)


def _port(name: str, *shape: int | str, role: Role = Role.STATE) -> Port:
    return Port(name=name, dtype="float32", shape=shape, role=role)


def _state(name: str, *shape: int | str, **fields: Any) -> State:
    after = f"next_{name}"
    return State(
        name=name, dtype="float32", shape=shape, step_input=name, step_output=after, **fields
    )
