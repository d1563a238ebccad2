"""A decoder's graphs on random inputs: admission, ragged prefill, steps with beams, chunks.

The same seed draws the same inputs, whatever the graphs answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.layers.images.image_input import checked_shape
from export.parity.parity_inputs import Array, Feeds, Observation, Probe, Run
from inference.bundle.manifest import (
    Graph,
    Growth,
    Manifest,
    Role,
    State,
    Tensor,
)


def observe_decoder(run: Run, manifest: Manifest, probe: Probe) -> Iterator[Observation]:
    """Outputs of admission, ragged prefill, steps with beams, and a second chunk.

    Decoders of one token a call are prefilled with one. All sources are admitted first: the graphs
    of a large model are not in memory together (`export/parity/verify.py`).
    """
    step = manifest.graphs["step"]
    longest = min(4, step.max_tokens_per_call or 4)
    longest = 1 if manifest.prefix else longest  # several tokens behind it: one row at a time
    sizes = (1, 4, 1, 1), (3, 9, longest, 2), (4, 6, 1, 3)
    cases = [_Case.draw(manifest, probe, *each) for each in sizes]
    chunks = ((4, 4), (3, 7)) if step.max_tokens_per_call != 1 else ()
    if chunks:  # several tokens on a past, which engines use at batch one only
        sources = _Sources.draw(manifest, probe, 1, 5)
        tokens = [probe.tokens(1, new, probe.vocabulary) for new, _ in chunks]
    admissions = [case.sources.admit(run, manifest) for case in cases]
    admitted = sources.admit(run, manifest) if chunks else None
    for case, each in zip(cases, admissions, strict=True):
        yield from case.observe(run, manifest, each)
    if admitted is not None:
        call = StepLoop(run, manifest, admitted, room=8)
        for (new, total), ids in zip(chunks, tokens, strict=True):
            logits = call(ids, np.array([total], np.int32), new)
            yield Observation(f"chunk of {new} ending at {total}", logits)


def observe_alignment(run: Run, manifest: Manifest, probe: Probe) -> Iterator[Observation]:
    """Outputs of `align`, if there is one, for sources and hypotheses of several lengths."""
    graph = manifest.graphs.get("align")
    if graph is None:
        return
    for source, tokens in ((1, 1), (4, 1), (1, 3), (9, 6)):
        lengths = np.array([source], np.int32)
        feeds = {
            port.name: probe.tokens(1, tokens, probe.vocabulary)
            if port.role is Role.TOKENS
            else _source(port, probe, lengths)
            for port in graph.inputs
        }
        for name, value in run("align", feeds).items():
            yield Observation(f"align S={source} T={tokens} {name}", value)


@dataclass(frozen=True)
class _Sources:
    """Random sources.

    Attributes:
        feeds: Of `admit`; None for a decoder without it.
        lengths: (count,) of the sources, of images the positions.
    """

    feeds: Feeds | None
    lengths: NDArray[np.int32]

    @classmethod
    def draw(cls, manifest: Manifest, probe: Probe, count: int, longest: int) -> _Sources:
        graph = manifest.graphs.get("admit")
        if graph is None or manifest.images is None:
            lengths = probe.lengths(longest, count)
            inputs = () if graph is None else graph.inputs
            feeds = {port.name: _source(port, probe, lengths) for port in inputs}
            return cls(feeds if graph else None, lengths)
        counts = probe.image_counts(count)
        lengths = probe.lengths(longest, count) if len(graph.inputs) > 1 else counts
        assert manifest.image is not None
        shape = checked_shape(manifest.image, manifest.images, longest)
        feeds = {}
        for port in graph.inputs:
            if port.role is Role.PIXELS:
                feeds[port.name] = probe.pixels(count, (int(counts.max()), *shape))
            elif port.role is Role.LENGTHS:
                feeds[port.name] = lengths
            else:
                feeds[port.name] = probe.words(count, int(lengths.max()))
        positions = np.int32(manifest.images.positions_of(*shape[:2]))
        return cls(feeds, counts * positions)

    def admit(self, run: Run, manifest: Manifest) -> Admitted:
        outputs = {} if self.feeds is None else run("admit", self.feeds)
        return Admitted(outputs, self.lengths, manifest.states)


@dataclass(frozen=True)
class _Case:
    """A batch of sources, each with `width` rows behind a prompt of `lengths`."""

    place: str
    sources: _Sources
    lengths: NDArray[np.int32]
    width: int
    tokens: Sequence[NDArray[np.int64]]
    """Of the prefill, then of three steps."""

    @classmethod
    def draw(
        cls, manifest: Manifest, probe: Probe, count: int, source: int, prompt: int, width: int
    ) -> _Case:
        sources = _Sources.draw(manifest, probe, count, source)
        lengths = probe.lengths(prompt, count)
        shapes = (count, prompt), *[(count * width, 1)] * 3
        tokens = [probe.tokens(*shape, probe.vocabulary) for shape in shapes]
        return cls(f"B={count} S={source} T={prompt} W={width}", sources, lengths, width, tokens)

    def observe(self, run: Run, manifest: Manifest, admitted: Admitted) -> Iterator[Observation]:
        for name, value in admitted.observed():
            yield Observation(f"admit {self.place} {name}", value)
        prompt, *steps = self.tokens
        call, lengths = StepLoop(run, manifest, admitted, room=prompt.shape[1] + 5), self.lengths
        yield Observation(f"prefill {self.place}", call(prompt, lengths))
        yield from call.observed(f"prefill {self.place}")
        call.widen(self.width)
        lengths = np.repeat(lengths, self.width)
        for index, tokens in enumerate(steps):
            lengths = lengths + 1
            yield Observation(f"step {index} {self.place}", call(tokens, lengths))
            yield from call.observed(f"step {index} {self.place}")


@dataclass(frozen=True)
class Admitted:
    """Outputs of `admit` for some sources."""

    outputs: Feeds
    source: NDArray[np.int32]
    states: tuple[State, ...]

    @classmethod
    def make(cls, run: Run, manifest: Manifest, probe: Probe, count: int, longest: int) -> Admitted:
        """Runs `admit` on random sources."""
        return _Sources.draw(manifest, probe, count, longest).admit(run, manifest)

    def observed(self) -> Iterator[tuple[str, Array]]:
        """The states, without padding; prefixes are observed by what `step` makes of them."""
        for state in self.states:
            if state.admit_output is None or state.prefix:
                continue
            value = self.outputs[state.admit_output]
            if "S" in state.shape:
                axis = state.shape.index("S")
                inside = np.arange(value.shape[axis]) < self.source[:, None]  # (B, S)
                value = np.moveaxis(value, axis, 1)[inside]
            yield state.name, value


class StepLoop:
    """Consecutive calls of `step`, each on the states of the call before."""

    def __init__(self, run: Run, manifest: Manifest, admitted: Admitted, room: int) -> None:
        self.run = run
        self.graph: Graph = manifest.graphs["step"]
        self.states = manifest.states
        self.source = admitted.source
        sizes = {"R": len(admitted.source), "B": len(admitted.source), "P": room}
        self.prefix = manifest.prefix
        self.values = {
            state.step_input: _with_room(state, admitted.outputs[state.admit_output], room)
            if state.admit_output
            else np.zeros([sizes[d] if isinstance(d, str) else d for d in state.shape], state.dtype)
            for state in self.states
        }
        self.emitted: Feeds = {}

    def observed(self, place: str) -> Iterator[Observation]:
        """EMIT outputs of the last call."""
        for name, value in self.emitted.items():
            yield Observation(f"{place} {name}", value)

    def widen(self, width: int) -> None:
        """Makes `width` rows of each sequence, with equal states."""
        for state in self.states:
            if state.growth is not Growth.HOLD:
                self.values[state.step_input] = np.repeat(self.values[state.step_input], width, 0)

    def __call__(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int32], new: int | None = None
    ) -> Array:
        """Logits (R, V).

        Args:
            lengths: (R,) after this call.
            new: Real tokens of each row in this call, when not all of T or all of the row.
        """
        columns = tokens.shape[1]
        last = np.full(len(lengths), (new or columns) - 1, np.int64)
        if new is None and columns > 1:  # a ragged first prefill
            last = lengths.astype(np.int64) - 1
        controls: dict[Role, Array] = {
            Role.TOKENS: tokens,
            Role.LENGTHS: lengths + np.int32(self.prefix),
            Role.TOTAL: np.array(lengths.max() + self.prefix, np.int32),
            Role.LAST: last,
            Role.SOURCE: self.source,
        }
        feeds = {
            port.name: self.values[port.name] if port.role is Role.STATE else controls[port.role]
            for port in self.graph.inputs
            if port.role is not None
        }
        outputs = self.run("step", feeds)
        for state in self.states:
            if state.step_output is not None:
                self.values[state.step_input] = outputs[state.step_output]
        self.emitted = {p.name: outputs[p.name] for p in self.graph.outputs if p.role is Role.EMIT}
        logits = self.graph.output(Role.LOGITS)
        assert logits is not None
        return outputs[logits.name]


def _with_room(state: State, value: Array, room: int) -> Array:
    """An output of `admit` as `step` takes it: a prefix with room for tokens behind it."""
    if not state.prefix:
        return value
    return np.pad(value, [(0, 0), (0, 0), (0, room), (0, 0)])


def _source(port: Tensor, probe: Probe, lengths: NDArray[np.int32]) -> Array:
    if port.role is Role.SOURCE:
        return lengths
    if port.role is Role.PIXELS:
        shape = [int(size) for size in port.shape[1:]]
        return probe.pixels(len(lengths), shape).astype(port.dtype)
    return probe.tokens(len(lengths), int(lengths.max()), probe.source_vocabulary)
