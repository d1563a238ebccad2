"""The runner over ONNX Runtime: bound buffers, caches written in place.

Keys and values never pass through Python, and on devices other than the CPU never leave the
device: the host fetches candidates, and EMIT rows that a request needs.

GroupQueryAttention takes several tokens on a past at batch size 1 only, and a group's rows must
stay dense for its running sequences. So the prompt is prefilled apart and its state copied to a
slot at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Bundle, Growth, Manifest, Role, State, Tensor
from inference.engine.runners.candidates import (
    CandidateRequest,
    Candidates,
    GreedyRule,
    GreedyTokens,
    select_candidates,
)
from inference.engine.runners.ort.bound_graph import (
    BoundGreedyStep,
    BoundStep,
    RuleInputs,
    padded_sequences,
)
from inference.engine.runners.ort.greedy_graph import STEPS
from inference.engine.runners.ort.sessions import CpuDevice, ImageStates, OrtSessions, pad_right
from inference.engine.runners.protocol import Capabilities, Group, Prefill, Prompt, Runner
from inference.engine.state.device import Device, DeviceTensor
from inference.engine.state.group_state import BufferShape, GroupState, MemoryModel
from inference.engine.state.prefix_cache import Block, CachedPrefix
from inference.errors import InvalidRequest

_IMAGES = 8
"""Encoded in one call, which bounds its memory."""
_NO_TOKENS = np.zeros(0, np.int64)


def write_initial(
    sessions: OrtSessions, state: GroupState, prompts: Sequence[Prompt], first: int
) -> None:
    """Writes HOLD and REPLACE states of new slots from `first` on, and prefixes of APPEND states.

    REPLACE and APPEND states are written to one row per prompt, [first x width, first x width + m).
    """
    if sessions.manifest.images is None:
        values = _encode(sessions, prompts)
        state.write_held(first, values)
    else:
        values = {}
        _write_images(sessions, state, prompts, first)
    start = first * state.width
    for arena in state.of(Growth.APPEND):
        if arena.state.admit_output is not None:
            arena.write(start, values[arena.state.admit_output])
    for arena in state.of(Growth.REPLACE):
        if arena.state.admit_output is None:
            arena.clear(start, start + len(prompts))
        else:
            arena.write(start, values[arena.state.admit_output])


def _write_images(
    sessions: OrtSessions, state: GroupState, prompts: Sequence[Prompt], first: int
) -> None:
    """Writes HOLD states of prompts with images; images that are not kept are encoded together.

    What is kept is a copy of what was written.
    """
    keys = [
        [ImageStates.key(image, prompt.source_ids) for image in prompt.images] for prompt in prompts
    ]
    alone = [
        [Prompt(_NO_TOKENS, prompt.source_ids, image[None]) for image in prompt.images]
        for prompt in prompts
    ]
    pixels = dict(zip(chain(*keys), chain(*alone), strict=True))
    kept = {key: sessions.images.get(key) for key in pixels}
    missing = [key for key, found in kept.items() if found is None]
    encoded = _encode_images(sessions, state, [pixels[key] for key in missing])
    states = kept | dict(zip(missing, encoded, strict=True))
    arenas = state.of(Growth.HOLD)
    for slot, held in enumerate(keys, first):
        for arena in arenas:
            arena.clear(slot, slot + 1)
        start = stop = 0
        for key in held:
            found = states[key]
            assert found is not None
            for arena, value in zip(arenas, found, strict=True):
                assert arena.axis is not None
                arena.write_positions(slot, start, value)
                stop = start + value.shape[arena.axis]
            if kept[key] is None:
                copies = [arena.read_positions(slot, start, stop) for arena in arenas]
                sessions.images.put(key, copies)
            start = stop


def _encode_images(
    sessions: OrtSessions, state: GroupState, images: Sequence[Prompt]
) -> Iterator[Sequence[DeviceTensor]]:
    """The states of each image, (1, …), in the order of the arenas.

    Args:
        images: Prompts of one image.
    """
    for batch in _of_one_size(images):
        values = _encode(sessions, batch)
        named = [values[arena.state.admit_output or ""] for arena in state.of(Growth.HOLD)]
        for place in range(len(batch)):
            yield [sessions.device.entries(value, place, place + 1) for value in named]


def _of_one_size(images: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    """Neighbours whose images have one size, at most `_IMAGES` of them."""
    for _, group in groupby(images, key=lambda image: image.images[0].shape):
        same = list(group)
        for start in range(0, len(same), _IMAGES):
            yield same[start : start + _IMAGES]


def source_input(tensor: Tensor, prompts: Sequence[Prompt]) -> NDArray[Any]:
    """One input of the graphs `admit` and `align` for a batch of prompts."""
    if tensor.role is Role.PIXELS:
        given = [prompt.pixels for prompt in prompts if prompt.pixels is not None]
        if tensor.shape[0] == "I":  # of all prompts
            return np.concatenate([np.zeros((0, *map(int, tensor.shape[1:])), np.uint8), *given])
        return np.stack(given)
    sources = [prompt.source_ids for prompt in prompts if prompt.source_ids is not None]
    if tensor.role in (Role.SOURCE, Role.LENGTHS):
        return np.array([len(ids) for ids in sources], np.int32)
    return pad_right(sources)


def align_tokens(
    manifest: Manifest,
    prompt: Prompt,
    token_ids: Sequence[int],
    run: Callable[[dict[str, NDArray[Any]]], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Attention of each generated token to the source, (tokens, S), as `Runner.align` returns it.

    Args:
        run: Inputs of the graph `align` → its output for all tokens, (1, T, S).

    Raises:
        InvalidRequest: the model has no such graph.
    """
    graph = manifest.graphs.get("align")
    if graph is None:
        raise InvalidRequest("this model has no alignment", field="return_alignment")
    forced = np.array([*prompt.token_ids, *token_ids[:-1]], np.int64)[None]
    arrays = {
        tensor.name: forced if tensor.role is Role.TOKENS else source_input(tensor, [prompt])
        for tensor in graph.inputs
    }
    return run(arrays)[0, len(prompt.token_ids) - 1 :]


def _encode(sessions: OrtSessions, prompts: Sequence[Prompt]) -> dict[str, DeviceTensor]:
    """Outputs of the graph `admit` by name; {} without such a graph."""
    if sessions.admit is None:
        return {}
    manifest = sessions.manifest
    names = [state.admit_output for state in manifest.states if state.admit_output is not None]
    inputs = manifest.graphs["admit"].inputs
    arrays = {tensor.name: source_input(tensor, prompts) for tensor in inputs}
    for name, value in arrays.items():
        if not len(value) and not sessions.device.is_host:  # kernels may take no empty input
            arrays[name] = np.zeros((1, *value.shape[1:]), value.dtype)  # an image without tokens
    return dict(zip(names, sessions.device.run(sessions.admit, names, arrays), strict=True))


_ONLY = slice(0, 1)


@dataclass(frozen=True, eq=False)
class OrtPrefixBlock:
    """Some positions of a row: one tensor (1, H, positions, K) for each APPEND state."""

    values: list[DeviceTensor]
    positions: int

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(value.nbytes for value in self.values)

    def release(self) -> None:
        """Nothing: the copies are freed with this object."""


class OrtPrefill(Prefill):
    """A group of one row, apart.

    Attributes:
        state: One sequence of one row.
    """

    def __init__(self, sessions: OrtSessions, prompt: Prompt, cached: CachedPrefix[Block]) -> None:
        manifest = sessions.manifest
        self.state = GroupState(manifest.states, 1, sessions.pool)
        self._sessions = sessions
        self._token_ids = prompt.token_ids
        self._is_single = manifest.graphs["step"].max_tokens_per_call == 1
        source = sessions.source_length(prompt)
        self.state.ensure_capacity(1, len(prompt.token_ids), source)
        write_initial(sessions, self.state, [prompt], first=0)
        self._copy_blocks(cached)
        self.state.admit(cached.tokens, source)
        self._write_counts()

    @property
    def remaining_tokens(self) -> int:
        return len(self._token_ids) - self._done

    @property
    def state_bytes(self) -> int:
        return self.state.nbytes

    @property
    def _done(self) -> int:
        return self.state.lengths[0]

    def read(self, count: int) -> None:
        self._run(count)

    def finish(self) -> BoundStep:
        """Prefills the rest; the returned step has the logits after the prompt."""
        return self._run(self.remaining_tokens)

    def release(self) -> None:
        self.state.release()

    def _run(self, count: int) -> BoundStep:
        past = self._done
        new = self._token_ids[past : past + count]
        size = 1 if self._is_single else count
        step = BoundStep(self._sessions, self.state, _ONLY, _ONLY, tokens=size)
        for start in range(0, count, size):
            length = past + start + size
            step.run(new[None, start : start + size], np.array([length], np.int32), past)
        self.state.lengths[0] = past + count
        return step

    def _write_counts(self) -> None:
        """Counts the tokens of the cached prefix that states count."""
        done = self._token_ids[: self._done]
        for arena in self.state.of(Growth.REPLACE) if len(done) else ():
            entry = arena.view(_ONLY)
            count = np.count_nonzero(done == arena.state.counted_token)
            self._sessions.device.upload(np.full(entry.shape, count, np.int64), entry)

    def _copy_blocks(self, cached: CachedPrefix[Block]) -> None:
        """Writes cached blocks to the state, as far as they are the prompt's."""
        start = 0
        for block in cached.blocks:
            assert isinstance(block, OrtPrefixBlock), "a block of another runner"
            length = min(block.positions, cached.tokens - start)
            for arena, values in zip(self.state.of(Growth.APPEND), block.values, strict=True):
                arena.write_positions(0, start, values, length)
            start += length


class OrtGroup(Group):
    """Rows in arenas.

    The arenas' rows are bound once for each number of sequences, and steps run on these addresses
    until the arenas move.
    """

    def __init__(self, sessions: OrtSessions, width: int) -> None:
        self.width = width
        self._sessions = sessions
        self._state = sessions.group_state(width)
        self._state.before_move = self._unbind
        self._steps: dict[int, BoundStep] = {}  # by sequences
        self._greedy: dict[int, BoundGreedyStep] = {}
        self._rules: RuleInputs | None = None

    @property
    def state_bytes(self) -> int:
        return self._state.nbytes

    def admit(
        self, prompts: Sequence[Prompt], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        state, first = self._state, len(self._state)
        self._add_slots(prompts, [len(prompt.token_ids) for prompt in prompts])
        token_ids = [prompt.token_ids for prompt in prompts]
        try:
            candidates = self._prefill(token_ids, first, row_requests)
        except Exception:
            state.truncate(first)
            raise
        state.spread(first)
        return candidates

    def admit_deferred(self, prompts: Sequence[Prompt]) -> None:
        assert self.width == 1
        self._add_slots(prompts, [0] * len(prompts))

    def admit_prefilled(self, prefill: Prefill, row_request: CandidateRequest) -> Candidates:
        assert isinstance(prefill, OrtPrefill), "a prompt of another runner"
        step, done = prefill.finish(), prefill.state
        candidates = self._candidates(step.logits, [row_request], step.emitted)
        slots = len(self._state) + 1
        self._state.ensure_capacity(slots, done.lengths[0], done.source_lengths[0])
        self._state.adopt(done)
        done.release()
        return candidates

    def copy_block(self, slot: int, start: int, stop: int) -> OrtPrefixBlock:
        row, arenas = slot * self.width, self._state.of(Growth.APPEND)
        values = [arena.read_positions(row, start, stop) for arena in arenas]
        return OrtPrefixBlock(values, stop - start)

    def step(
        self, token_ids: NDArray[np.int64], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        state = self._state
        state.ensure_capacity(len(state), max(state.lengths) + 1)
        state.advance_lengths()
        step = self._bound_step()
        lengths = np.repeat(np.array(state.lengths, np.int32), self.width)
        step.run(token_ids[:, None], lengths)
        logits = self._sessions.device.entries(step.logits, 0, len(token_ids))
        return self._candidates(logits, row_requests, step.emitted)

    def step_greedily(
        self, token_ids: NDArray[np.int64], rule: GreedyRule, steps: int, ends: frozenset[int]
    ) -> GreedyTokens:
        assert self.width == 1
        state = self._state
        state.ensure_capacity(len(state), max(state.lengths) + steps)
        bound = self._greedy.get(len(state))
        if bound is None:
            self._rules = self._rules or RuleInputs(self._sessions)
            bound = BoundGreedyStep(self._sessions, state, self._rules)
            self._greedy[len(state)] = bound
        lengths = np.array(state.lengths, np.int32) + 1
        found = bound.run(token_ids, lengths, rule, steps, ends)
        state.advance_lengths(found.token_ids.shape[1])
        return found

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._state.copy_rows(sources, targets)

    def retire(self, slot: int) -> None:
        self._state.retire(slot)

    def reserve(self, reservation: BufferShape, expected_sequences: int) -> None:
        self._state.reservation = reservation
        self._state.expected_sequences = expected_sequences

    def shrink(self) -> None:
        self._state.shrink()

    def release(self) -> None:
        self._sessions.release(self._state)

    def _bound_step(self) -> BoundStep:
        """A step of every row."""
        is_captured = self._sessions.device.keeps_addresses
        count = padded_sequences(self._state) if is_captured else len(self._state)
        if count not in self._steps:
            rows, slots = slice(0, count * self.width), slice(0, count)
            self._steps[count] = BoundStep(
                self._sessions, self._state, rows, slots, tokens=1, is_captured=is_captured
            )
        return self._steps[count]

    def _unbind(self) -> None:
        """Drops what is bound: it must not keep buffers alive."""
        self._steps.clear()
        self._greedy.clear()

    def _add_slots(self, prompts: Sequence[Prompt], lengths: Sequence[int]) -> None:
        """Gives prompts slots with their initial states, and room for their tokens."""
        state, first = self._state, len(self._state)
        sources = [self._sessions.source_length(prompt) for prompt in prompts]
        state.ensure_capacity(first + len(prompts), max(1, *lengths), max(sources))
        write_initial(self._sessions, state, prompts, first)
        for length, source in zip(lengths, sources, strict=True):
            state.admit(length, source)

    def _prefill(
        self,
        token_ids: list[NDArray[np.int64]],
        first: int,
        row_requests: Sequence[CandidateRequest],
    ) -> Candidates:
        """Prefills prompts on one row each, [first x width, first x width + m)."""
        lengths = [len(ids) for ids in token_ids]
        is_single = self._sessions.manifest.graphs["step"].max_tokens_per_call == 1
        if max(lengths) > 1 and (is_single or self._state.prefix):
            sizes = [1 if is_single else length for length in lengths]
            return self._prefill_singly(token_ids, sizes, first, row_requests)
        rows = slice(first * self.width, first * self.width + len(token_ids))
        slots = slice(first, first + len(token_ids))
        step = BoundStep(self._sessions, self._state, rows, slots, tokens=max(lengths))
        step.run(pad_right(token_ids), np.array(lengths, np.int32))
        return self._candidates(step.logits, row_requests, step.emitted)

    def _prefill_singly(
        self,
        token_ids: list[NDArray[np.int64]],
        sizes: Sequence[int],
        first: int,
        row_requests: Sequence[CandidateRequest],
    ) -> Candidates:
        """Prompt by prompt: recurrent decoders cannot take a padded T, and several tokens behind a
        prefix are taken for one row only.

        Args:
            token_ids: (T,) of each prompt.
            sizes: Tokens a call, of which T is a multiple.
            first: The slot of the first prompt.
            row_requests: One per prompt.
        """
        logits = self._sessions.logits_scratch(len(token_ids))
        emitted: list[Callable[[int], NDArray[np.float32]]] = []
        for index, (ids, size) in enumerate(zip(token_ids, sizes, strict=True)):
            row, slot = first * self.width + index, first + index
            step = BoundStep(
                self._sessions,
                self._state,
                slice(row, row + 1),
                slice(slot, slot + 1),
                tokens=size,
                logits=self._sessions.device.entries(logits, index, index + 1),
            )
            for start in range(0, len(ids), size):
                stop = start + size
                step.run(ids[None, start:stop], np.array([stop], np.int32), start)
            if step.emitted is not None:
                emitted.append(step.emitted)
        return self._candidates(
            logits, row_requests, (lambda row: emitted[row](0)) if emitted else None
        )

    def _candidates(
        self,
        logits: DeviceTensor,
        row_requests: Sequence[CandidateRequest],
        emitted: Callable[[int], NDArray[np.float32]] | None,
    ) -> Candidates:
        return select_candidates(self._sessions.logits(logits), row_requests, emitted)


class OrtRunner(Runner):
    """Sessions of one bundle's graphs.

    Args:
        bundle: A generator's bundle.
        threads: Intra-op threads of the sessions; where `step` is small there is one.
        spare_bytes: Bound on released buffers and on states of images that are kept for reuse.
        device: Where states and logits live; by default the CPU.

    Raises:
        BundleError: a graph does not load, or needs what this runner does not support.
    """

    def __init__(
        self,
        bundle: Bundle,
        threads: int,
        spare_bytes: int = 512 << 20,
        device: Device | None = None,
    ) -> None:
        manifest = bundle.manifest
        self._sessions = OrtSessions(bundle, device or CpuDevice(), threads, spare_bytes)
        self.vocabulary_size = self._sessions.vocabulary_size
        self.footprint = MemoryModel.of(manifest.states)
        reads_whole_prompts = manifest.graphs["step"].whole_prompts
        self.capabilities = Capabilities(
            defers_admission=True,
            takes_chunks=True,
            greedy_steps=STEPS if self._sessions.has_greedy else 0,
            shares_prefixes=not reads_whole_prompts and _shares_prefixes(manifest),
            reads_whole_prompts=reads_whole_prompts,
            whole_image_token=manifest.whole_image_token,
            keeps_buffers=self._sessions.device.keeps_addresses,
        )

    @property
    def spare_bytes(self) -> int:
        """Bytes of released arenas."""
        return self._sessions.pool.spare_bytes

    @property
    def free_bytes(self) -> int | None:
        return self._sessions.device.free_bytes

    def group(self, width: int) -> OrtGroup:
        return OrtGroup(self._sessions, width)

    def begin_prefill(self, prompt: Prompt, cached: CachedPrefix[Block]) -> OrtPrefill:
        return OrtPrefill(self._sessions, prompt, cached)

    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        manifest, device = self._sessions.manifest, self._sessions.device

        def run(arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
            output = manifest.graphs["align"].output(Role.EMIT)
            assert output is not None
            [weights] = device.run(self._sessions.align, [output.name], arrays)
            return device.fetch_floats(weights)

        return align_tokens(manifest, prompt, token_ids, run)

    def trim(self) -> None:
        """Frees spare buffers; arenas that keep their addresses stay, and states of images, because
        the next turn of a conversation comes later than that.
        """
        self._sessions.pool.clear()
        self._sessions.device.trim()

    def close(self) -> None:
        self._sessions.close()


def _shares_prefixes(manifest: Manifest) -> bool:
    """Whether a prefix's states are caches, counts of its tokens, and vectors of its images."""
    counts_images = any(state.counted_token is not None for state in manifest.states)

    def follows(state: State) -> bool:
        if state.growth is Growth.APPEND:
            return state.admit_output is None
        return counts_images if state.growth is Growth.HOLD else state.counted_token is not None

    has_caches = any(state.growth is Growth.APPEND for state in manifest.states)
    return has_caches and all(map(follows, manifest.states))
