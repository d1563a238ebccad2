"""The engine's runner over the PyTorch modules: the reference of the served ones.

Written for clarity, not for speed: states are plain tensors, grown by padding. The search on top is
the serving engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from export.architecture import Graphs
from export.decoder_graphs.source import LENGTHS
from export.parity.judge import in_float64
from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Growth, Manifest, Role, State
from inference.bundle.manifest import Tensor as Port
from inference.engine.runners.candidates import (
    CandidateRequest,
    Candidates,
    HostLogits,
    select_candidates,
)
from inference.engine.runners.ort import runner
from inference.engine.runners.protocol import Capabilities, Group, Prompt, Runner
from inference.engine.state.group_state import MemoryModel
from inference.errors import InvalidRequest


def rank(
    logits: NDArray[np.float32], k: int, temperatures: NDArray[np.float32] | None
) -> Candidates:
    """The k best of each row, of equal ones the lowest id first; see `edits.Rank`."""
    scores = torch.from_numpy(logits)
    order = _best(scores, k)
    log_probs = scores.log_softmax(dim=-1).gather(1, order)
    masses = None
    if temperatures is not None:
        below = scores - scores.amax(dim=-1, keepdim=True)
        masses = (below / torch.from_numpy(temperatures)).exp().sum(dim=-1).numpy()
    return Candidates(order.numpy(), log_probs.numpy(), masses)


def _best(scores: Tensor, k: int) -> Tensor:
    """Ids of the k best of each row, (rows, k), of equal ones the lowest first.

    `topk` chooses among equal scores as it likes: it gives the threshold alone.
    """
    thresholds = scores.topk(k, dim=-1).values[:, -1:]
    chosen = []
    for row, is_best in zip(scores, ~(scores < thresholds), strict=True):
        ids = is_best.nonzero()[:, 0]
        order = row[ids].sort(descending=True, stable=True).indices[:k]
        chosen.append(ids[order])
    return torch.stack(chosen)


Content = tuple[tuple[tuple[int, ...], bytes] | None, ...]
"""Shape and bytes of each array of a prompt."""
_EMPTY = {"B": 1, "S": 1}  # sizes of a sequence without a source, as the engine's buffers


@dataclass(frozen=True)
class Prefilled:
    """One prompt, read.

    Attributes:
        values: Its states, one row each.
        source: (1,) its source's length.
        logits: (1, V) behind it.
        emitted: (1, S) of graphs that emit something of each source position.
    """

    values: dict[str, Tensor]
    source: Tensor
    logits: Tensor
    emitted: NDArray[np.float32] | None


class TorchGroup(Group):
    """The live sequences of one beam width.

    Args:
        images: How prompts hold images, where they do.
        is_exact: Whether states are float64.
        kept: Prompts that were read, by their content; added to.
    """

    def __init__(
        self,
        graphs: Graphs,
        width: int,
        images: PromptImages | None = None,
        *,
        is_exact: bool = False,
        kept: dict[Content, Prefilled] | None = None,
    ) -> None:
        self._is_exact = is_exact
        self._kept = kept
        self.width = width
        self._images = images
        self._emitted: NDArray[np.float32] | None = None
        self._step = graphs.lowerings["step"]
        self._admit = graphs.lowerings.get("admit")
        self._states = graphs.states
        self._prefix = max((state.prefix for state in graphs.states), default=0)
        self._values: dict[str, Tensor] = {}
        self._lengths = torch.zeros(0, dtype=torch.int32)  # (B,)
        self._sources = torch.zeros(0, dtype=torch.int32)  # (B,)

    @property
    def state_bytes(self) -> int:
        return sum(value.nbytes for value in self._values.values())

    @torch.no_grad()
    def admit(
        self, prompts: Sequence[Prompt], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        read = [self._read(prompt) for prompt in prompts]
        for state in self._states:
            for each in read:
                new = each.values[state.name]
                if state.growth is not Growth.HOLD:
                    new = new.repeat_interleave(self.width, dim=0)
                self._values[state.name] = append_rows(self._values.get(state.name), new, state)
        lengths = torch.tensor([len(prompt.token_ids) for prompt in prompts], dtype=torch.int32)
        self._lengths = torch.cat([self._lengths, lengths])
        self._sources = torch.cat([self._sources, *(each.source for each in read)])
        emitted = [torch.from_numpy(each.emitted) for each in read if each.emitted is not None]
        width = max((each.shape[1] for each in emitted), default=0)
        rows = [_pad_behind(each, width, dim=1) for each in emitted]
        self._emitted = torch.cat(rows).numpy() if rows else None
        return self._candidates(torch.cat([each.logits for each in read]), row_requests)

    def _read(self, prompt: Prompt) -> Prefilled:
        """A prompt's states, and the logits behind it."""
        key = _content(prompt)
        if self._kept is not None and key in self._kept:
            return self._kept[key]
        tokens = torch.tensor(prompt.token_ids)[None]
        source, values = self._encode(prompt)
        for state in self._states:
            if state.prefix:
                room = state.prefix + tokens.shape[1]
                values[state.name] = _pad_behind(values[state.name], room, dim=2)
        values |= self._empty_row(tokens.shape[1])
        logits = self._prefill(values, tokens, source)
        read = Prefilled(values, source, logits, self._emitted)
        if self._kept is not None:
            self._kept[key] = read
        return read

    @torch.no_grad()
    def step(
        self, token_ids: NDArray[np.int64], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        self._lengths = self._lengths + 1
        room = int(self._lengths.max())
        for state in self._states:
            if state.growth is Growth.APPEND:
                longer = _pad_behind(self._values[state.name], state.prefix + room, dim=2)
                self._values[state.name] = longer
        lengths = self._lengths.repeat_interleave(self.width)
        tokens = torch.from_numpy(token_ids)[:, None]
        logits = self._call(
            self._values, tokens, lengths, self._sources, torch.zeros_like(lengths).long()
        )
        return self._candidates(logits, row_requests)

    def _candidates(self, logits: Tensor, row_requests: Sequence[CandidateRequest]) -> Candidates:
        emitted = self._emitted
        row_of = None if emitted is None else emitted.__getitem__
        return select_candidates(HostLogits(logits.numpy().copy(), rank), row_requests, row_of)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for state in self._states:
            if state.growth is not Growth.HOLD:
                value = self._values[state.name]
                value[list(targets)] = value[list(sources)]

    def retire(self, slot: int) -> None:
        last = len(self._lengths) - 1
        slots = torch.arange(last)
        if slot < last:
            slots[slot] = last
        rows = (slots[:, None] * self.width + torch.arange(self.width)).flatten()
        for state in self._states:
            kept = slots if state.growth is Growth.HOLD else rows
            self._values[state.name] = self._values[state.name][kept]
        self._lengths, self._sources = self._lengths[slots], self._sources[slots]

    def release(self) -> None:
        self._values = {}

    def _prefill(self, values: dict[str, Tensor], tokens: Tensor, source: Tensor) -> Tensor:
        """Logits after a prompt (1, T), (1, V); `values` holds its states afterwards."""
        size = tokens.shape[1]
        if self._step.graph.max_tokens_per_call != 1:
            length = torch.tensor([size], dtype=torch.int32)
            return self._call(values, tokens, length, source, last=length.long() - 1)
        for place in range(size):
            token, reached = tokens[:, place : place + 1], torch.tensor([place + 1]).int()
            logits = self._call(values, token, reached, source, last=torch.zeros(1).long())
        return logits

    def _encode(self, prompt: Prompt) -> tuple[Tensor, dict[str, Tensor]]:
        """The source's length (0 where there is no text) and what `admit` computes, by state
        name.
        """
        length = source_input(LENGTHS, prompt)
        if self._admit is None:
            return length, {}
        if self._images is not None:
            return self._encode_images(prompt, self._images)
        outputs = self._run_admit(prompt)
        return length, {s.name: outputs[s.admit_output] for s in self._states if s.admit_output}

    def _run_admit(self, prompt: Prompt) -> dict[str, Tensor]:
        """Outputs of `admit`, by name."""
        assert self._admit is not None
        feeds = [source_input(port, prompt) for port in self._admit.graph.inputs]
        names = [port.name for port in self._admit.graph.outputs]
        return dict(zip(names, self._admit.module(*feeds), strict=True))

    def _encode_images(
        self, prompt: Prompt, images: PromptImages
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`_encode` where prompts hold images; states of no positions for a prompt without."""
        assert self._admit is not None
        axes = {port.name: port.shape.index("S") for port in self._admit.graph.outputs}
        held: dict[str | None, Tensor] = {}
        for _, group in groupby(prompt.images, key=lambda image: image.shape):
            same = Prompt(prompt.token_ids, prompt.source_ids, np.stack(list(group)))
            for name, value in self._run_admit(same).items():
                parts = [held[name], value] if name in held else [value]
                held[name] = torch.cat(parts, dim=axes[name])
        named: dict[str, Tensor] = {}
        for state in self._states:
            if state.growth is Growth.HOLD:
                sizes = (_EMPTY[d] if isinstance(d, str) else d for d in state.shape)
                empty = torch.zeros(*sizes, dtype=getattr(torch, state.dtype))
                named[state.name] = held.get(state.admit_output, empty)
        count = sum(images.positions_of(*image.shape[:2]) for image in prompt.images)
        return torch.tensor([count], dtype=torch.int32), named

    def _empty_row(self, positions: int) -> dict[str, Tensor]:
        """Zeros for states that are no output of `admit`."""
        sizes = {"R": 1, "B": 1, "P": positions}
        empty = {
            state.name: torch.zeros(
                [sizes[d] if isinstance(d, str) else d for d in state.shape],
                dtype=getattr(torch, state.dtype),
            )
            for state in self._states
            if state.admit_output is None
        }
        return {name: each.double() for name, each in empty.items()} if self._is_exact else empty

    def _call(
        self,
        values: dict[str, Tensor],
        tokens: Tensor,
        lengths: Tensor,
        sources: Tensor,
        last: Tensor,
    ) -> Tensor:
        """One call of `step`; new states replace the old ones in `values`."""
        lengths = lengths + self._prefix
        controls = {
            Role.TOKENS: tokens,
            Role.LENGTHS: lengths,
            Role.TOTAL: lengths.max(),
            Role.LAST: last,
            Role.SOURCE: sources,
        }
        by_input = {state.step_input: values[state.name] for state in self._states}
        feeds = [
            by_input[port.name] if port.role in (Role.STATE, None) else controls[port.role]
            for port in self._step.graph.inputs
        ]
        names = [port.name for port in self._step.graph.outputs]
        outputs = dict(zip(names, self._step.module(*feeds), strict=True))
        for state in self._states:
            if state.step_output is not None:
                values[state.name] = outputs[state.step_output]
        logits = self._step.graph.output(Role.LOGITS)
        assert logits is not None
        emitted = self._step.graph.output(Role.EMIT)
        self._emitted = outputs[emitted.name].numpy() if emitted else None
        scores: Tensor = outputs[logits.name]
        return scores


def _content(prompt: Prompt) -> Content:
    """A key that equal prompts share."""
    parts = prompt.token_ids, prompt.source_ids, prompt.pixels, prompt.image_sizes
    return tuple(None if each is None else (each.shape, each.tobytes()) for each in parts)


def source_input(port: Port, prompt: Prompt) -> Tensor:
    """An input of the encoder, of one row.

    Args:
        port: SOURCE (the length, 0 without a text), SOURCE_TOKENS or PIXELS.
    """
    if port.role is Role.PIXELS:
        return torch.from_numpy(runner.source_input(port, [prompt]))
    text = np.zeros(0, np.int64) if prompt.source_ids is None else prompt.source_ids
    if port.role in (Role.SOURCE, Role.LENGTHS):
        return torch.tensor([len(text)], dtype=torch.int32)
    return torch.tensor(text)[None]


def append_rows(old: Tensor | None, new: Tensor, state: State) -> Tensor:
    """Rows of both, stretched to one size along the dynamic dimension."""
    if old is None or not len(old):
        return new
    for dim, size in enumerate(state.shape):
        if dim and isinstance(size, str):
            room = max(old.shape[dim], new.shape[dim])
            old, new = _pad_behind(old, room, dim), _pad_behind(new, room, dim)
    return torch.cat([old, new])


def _pad_behind(value: Tensor, size: int, dim: int) -> Tensor:
    """The tensor with zeros behind, up to `size` along `dim`."""
    missing = max(0, size - value.shape[dim])
    padding = [0, 0] * (value.ndim - 1 - dim) + [0, missing]
    return functional.pad(value, padding)


class TorchRunner(Runner):
    """Eager modules. Prompts are prefilled one by one: a long one is no padding of others.

    Args:
        graphs: The modules, in eager form.
        manifest: For the vocabulary's size and the generation rules.
        is_exact: Whether they compute in float64.
        keeps_prompts: Whether the states of all prompts are kept, for searches of the same ones.
    """

    def __init__(
        self,
        graphs: Graphs,
        manifest: Manifest,
        *,
        is_exact: bool = False,
        keeps_prompts: bool = False,
    ) -> None:
        assert manifest.vocabulary_size is not None
        self._kept: dict[Content, Prefilled] | None = {} if keeps_prompts else None
        self.graphs = in_float64(graphs) if is_exact else graphs
        self._is_exact = is_exact
        self._images = manifest.images
        self.vocabulary_size = manifest.vocabulary_size
        self.footprint = MemoryModel()
        self.capabilities = Capabilities(
            reads_whole_prompts=graphs.lowerings["step"].graph.whole_prompts,
            whole_image_token=manifest.whole_image_token,
        )

    def group(self, width: int) -> Group:
        return TorchGroup(
            self.graphs, width, self._images, is_exact=self._is_exact, kept=self._kept
        )

    @torch.no_grad()
    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        align = self.graphs.lowerings.get("align")
        if align is None:
            raise InvalidRequest("this model has no alignments", field="return_alignment")
        forced = torch.tensor([[*prompt.token_ids, *token_ids[:-1]]])
        feeds = [
            forced if port.role is Role.TOKENS else source_input(port, prompt)
            for port in align.graph.inputs
        ]
        weights: Tensor = align.module(*feeds)
        attention: NDArray[np.float32] = weights[0, len(prompt.token_ids) - 1 :].numpy()
        return attention
