"""Greedy and beam tokens: the serving engine against PyTorch and float64.

Where two searches return other tokens, one of them may have chosen between candidates that rounding
cannot tell apart. Here the search follows the served runner, and every log-probability that it sees
is compared with that of float64: if none is too far away, its choices are explained.

Decision D90.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.architecture import Graphs
from export.layers.images.vision import checked_shape
from export.parity.parity_inputs import limit_images
from export.parity.torch_runner import TorchRunner
from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Bundle, Manifest, Role
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runner_factory import make_runner
from inference.engine.runners.candidates import CandidateRequest, Candidates, plain_request
from inference.engine.runners.protocol import Group, Prompt, Runner
from inference.engine.scheduler import Capacity
from inference.engine.state.group_state import BufferShape, MemoryModel
from inference.generation import Generation, Hypothesis
from inference.process_limits import return_memory

MULTIPLE = 4
"""Of PyTorch's own distance from float64 that a log-probability may have."""
CEILING = 0.1
"""Most that is allowed, in nats."""


class LockstepRunner(TorchRunner):
    """A `Runner` that serves another one's candidates and measures them.

    Attributes:
        served: Largest difference of a candidate's log-probability from float64's, in nats.
        torch: The same of PyTorch in float32.
    """

    def __init__(self, runner: Runner, graphs: Graphs, manifest: Manifest) -> None:
        super().__init__(graphs, manifest)
        self._runner = runner
        self._exact = TorchRunner(graphs, manifest, is_exact=True)
        self.served = 0.0
        self.torch = 0.0

    def is_allowed(self, tolerance: float) -> bool:
        """Whether the served log-probabilities are as near to float64 as PyTorch's.

        Args:
            tolerance: Allowed however near PyTorch is.
        """
        return self.served <= max(tolerance, min(MULTIPLE * self.torch, CEILING))  # NaN is not

    def group(self, width: int) -> Group:
        rounded = super().group(width)
        return _LockstepGroup(self, self._runner.group(width), self._exact.group(width), rounded)

    def add(self, served: Candidates, exact: Candidates, rounded: Candidates) -> None:
        """Adds one call's candidates; float64 and PyTorch have all tokens."""
        count = served.token_ids.shape[1]
        wanted, other = _by_token(exact), _by_token(rounded)
        near = np.take_along_axis(wanted, served.token_ids, 1)
        self.served = max(
            self.served,
            _largest(served.log_probs, near),
            _largest(served.log_probs, exact.log_probs[:, :count]),  # none better was left out
        )
        listed = np.take_along_axis(other, served.token_ids, 1)
        self.torch = max(self.torch, _largest(listed, near))


class _LockstepGroup(Group):
    """Groups that take the same calls; the first one's candidates are returned."""

    def __init__(self, runner: LockstepRunner, *groups: Group) -> None:
        self._runner, self._groups = runner, groups
        self.width = groups[0].width

    @property
    def blocks_of_step(self) -> int:
        return self._groups[0].blocks_of_step

    @property
    def state_bytes(self) -> int:
        return self._groups[0].state_bytes

    def admit(
        self, prompts: Sequence[Prompt], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        return self._compare_call(
            lambda group, requests: group.admit(prompts, requests), row_requests
        )

    def step(
        self, token_ids: NDArray[np.int64], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        return self._compare_call(
            lambda group, requests: group.step(token_ids, requests), row_requests
        )

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for group in self._groups:
            group.copy(sources, targets)

    def retire(self, slot: int) -> None:
        for group in self._groups:
            group.retire(slot)

    def reserve(self, reservation: BufferShape, expected_sequences: int) -> None:
        for group in self._groups:
            group.reserve(reservation, expected_sequences)

    def shrink(self) -> None:
        for group in self._groups:
            group.shrink()

    def release(self) -> None:
        for group in self._groups:
            group.release()

    def _compare_call(
        self,
        call: Callable[[Group, Sequence[CandidateRequest]], Candidates],
        row_requests: Sequence[CandidateRequest],
    ) -> Candidates:
        size = self._runner.vocabulary_size
        whole = {id(each): replace(each, count=size) for each in row_requests}
        full = [whole[id(each)] for each in row_requests]
        served, *others = self._groups
        candidates = call(served, row_requests)
        self._runner.add(candidates, *(call(group, full) for group in others))
        return candidates


def _by_token(candidates: Candidates) -> NDArray[np.float64]:
    """Log-probabilities of all tokens in the order of their ids, (rows, V)."""
    found = np.empty(candidates.token_ids.shape)
    np.put_along_axis(found, candidates.token_ids, candidates.log_probs.astype(np.float64), 1)
    return found


def _largest(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest difference; banned tokens of both are equal, those of one are not."""
    with np.errstate(invalid="ignore"):
        apart = np.where(one == other, 0.0, np.abs(one.astype(np.float64) - other))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max(initial=0.0))


SCORE_TOLERANCE = 1e-4
"""Of a log-probability, in nats."""
MAX_NEW_TOKENS = 24
SOURCE_LENGTHS = (3, 11, 6, 1, 8)
BEAMS = (1, 4)
_MOST_BYTES = 512 << 20
"""Of the states of all searches; where they need more, two are decoded at a time."""


@dataclass
class TokenParity:
    """How two decodings compare.

    Attributes:
        compared: Hypotheses.
        ties: Other tokens, but float64 cannot tell the candidates apart
            (`export/parity/token_parity.py`).
        onnx: Largest difference of a log-probability from float64's, in nats, in the searches that
            were repeated because their tokens or scores differ.
        torch: The same of PyTorch's float32.
        differences: One line for each that is not explained so.
    """

    compared: int = 0
    ties: int = 0
    worst_score_difference: float = 0.0
    onnx: float = 0.0
    torch: float = 0.0
    differences: list[str] = field(default_factory=list)


def compare_tokens(graphs: Graphs, bundle: Bundle) -> TokenParity:
    """Decodes random sources with both, ONNX also one at a time.

    PyTorch is done before the graphs are opened: what each needs for a call is not held together.
    """
    reference = TorchRunner(graphs, bundle.manifest, keeps_prompts=True)
    drawn = {beams: mixed_requests(bundle.manifest, beams) for beams in BEAMS}
    searches = [(each, _capacity(graphs, bundle.manifest, n, each)) for n, each in drawn.items()]
    expected = [[a.hypotheses for a in decode(reference, *given)] for given in searches]
    del reference  # and the states of its prompts
    return_memory()
    runner = make_runner(bundle, spare_bytes=128 << 20)  # as it is served, with less kept
    parity = TokenParity()
    for beams, (requests, capacity), wanted in zip(BEAMS, searches, expected, strict=True):
        batched = decode(runner, requests, capacity)
        alone = [decode(runner, [request])[0] for request in requests]
        for how, given, together in (("batched", batched, capacity), ("alone", alone, None)):
            search = _Search(graphs, bundle.manifest, runner, requests, together)
            for index, (want, got) in enumerate(zip(wanted, given, strict=True)):
                place = f"{beams} beams, request {index}, {how}"
                _compare(parity, search, index, place, want, got.hypotheses)
    runner.close()
    return parity


def _capacity(
    graphs: Graphs, manifest: Manifest, beams: int, requests: Sequence[EngineRequest]
) -> Capacity:
    """Of searches together. Two at a time where the states of all are large, or short sources are
    padded to an encoder's blocks, whose scores take 0.1 GB each; others join when one has ended.
    """
    admit, count = graphs.lowerings.get("admit"), len(requests)
    lengths = [(each.final_length, each.source_length) for each in requests]
    shape = BufferShape.holding(count, *map(max, *lengths))
    states = MemoryModel.of(manifest.states).bytes(beams, shape)
    is_divided = admit is not None and "S" in admit.traced_sizes
    rows = 2 * beams if is_divided or states > _MOST_BYTES else Capacity.rows
    return Capacity(rows=rows, prefix_bytes=0)  # their prompts have no prefix in common


class _Search:
    """The searches of a runner again, with float64 beside them; each at most once.

    Args:
        together: Of searches together; without it each is alone.
    """

    def __init__(
        self,
        graphs: Graphs,
        manifest: Manifest,
        runner: Runner,
        requests: Sequence[EngineRequest],
        together: Capacity | None,
    ) -> None:
        self._graphs, self._manifest, self._runner = graphs, manifest, runner
        self._requests, self._together = requests, together
        self._repeated: dict[int, tuple[LockstepRunner, Sequence[Hypothesis]]] = {}

    def repeat(self, index: int) -> tuple[LockstepRunner, Sequence[Hypothesis]]:
        """One request's search and what it found."""
        if index not in self._repeated:
            lockstep = LockstepRunner(self._runner, self._graphs, self._manifest)
            indices = range(len(self._requests)) if self._together else [index]
            answers = decode(lockstep, [self._requests[each] for each in indices], self._together)
            for each, answer in zip(indices, answers, strict=True):
                self._repeated[each] = lockstep, answer.hypotheses
        return self._repeated[index]


def teacher_forced_score(
    runner: TorchRunner, request: EngineRequest, tokens: Sequence[int]
) -> float:
    """Score of given tokens under PyTorch, as the engine counts it.

    A forced end adds nothing.
    """
    group = runner.group(1)
    vocabulary = runner.vocabulary_size
    total, rules = 0.0, request.rules
    following = group.admit([request.prompt], [plain_request(vocabulary)])
    for position, token in enumerate(tokens):
        is_forced = position + 1 == rules.max_new_tokens and token == rules.forced_eos_token_id
        if not is_forced:
            place = np.flatnonzero(following.token_ids[0] == token)[0]
            total += float(following.log_probs[0, place])
        following = group.step(np.array([token], np.int64), [plain_request(vocabulary)])
    return float(total / len(tokens) ** rules.length_penalty)


def _compare(
    parity: TokenParity,
    search: _Search,
    index: int,
    place: str,
    wanted: Sequence[Hypothesis],
    given: Sequence[Hypothesis],
) -> None:
    for rank, (want, got) in enumerate(zip(wanted, given, strict=True)):
        parity.compared += 1
        difference = abs(want.score - got.score)
        if want.token_ids == got.token_ids and difference <= SCORE_TOLERANCE:
            parity.worst_score_difference = max(parity.worst_score_difference, difference)
            continue
        lockstep, found = search.repeat(index)
        parity.onnx = max(parity.onnx, lockstep.served)
        parity.torch = max(parity.torch, lockstep.torch)
        if lockstep.is_allowed(SCORE_TOLERANCE) and found[rank].token_ids == got.token_ids:
            parity.ties += want.token_ids != got.token_ids
            continue
        parity.differences.append(
            f"{place}: {list(got.token_ids)} ({got.score:.5f}) instead of "
            f"{list(want.token_ids)} ({want.score:.5f}); log-probabilities differ from float64's "
            f"by {lockstep.served:.1e}, PyTorch's by {lockstep.torch:.1e}"
        )


def mixed_requests(manifest: Manifest, beams: int) -> list[EngineRequest]:
    """Sources, or prompts, of mixed lengths under the bundle's own rules, with that many beams."""
    assert manifest.generation is not None
    rules = manifest.generation.model_copy(
        update={
            "num_beams": beams,
            "num_return_sequences": beams,
            "do_sample": False,  # a draw would fall beside a boundary one day
            "max_new_tokens": min(manifest.generation.max_new_tokens, MAX_NEW_TOKENS),
        }
    )
    return [
        random_request(manifest, rules, length, np.random.default_rng(length))
        for length in SOURCE_LENGTHS
    ]


def random_request(
    manifest: Manifest, rules: Generation, length: int, random: np.random.Generator
) -> EngineRequest:
    """A source, or a prompt, of about that many random tokens, with images where it takes them."""
    admit, vocabulary = manifest.graphs.get("admit"), manifest.vocabulary_size or 0
    drawn = manifest.source_vocabulary_size or vocabulary
    if manifest.images is not None and manifest.image is not None:
        request = _interleaved_request(manifest, manifest.images, rules, length)
        if admit is None or admit.input(Role.SOURCE_TOKENS) is None:
            return request
        return replace(request, source_ids=random.integers(0, drawn or 1, length))
    port = admit and admit.input(Role.PIXELS)
    pixels = None
    if port:
        shape = [int(size) for size in port.shape[1:]]
        if manifest.takes_image_lists:
            shape = [length % 3, *shape]
        pixels = random.integers(0, 256, shape, dtype=np.uint8).astype(port.dtype)
        if manifest.source_image is None:
            return EngineRequest(rules, pixels=pixels)
    ids: NDArray[np.int64] = random.integers(0, drawn, length)
    if admit is None:
        ids = ids[: manifest.limits.max_input_tokens]
        return EngineRequest(_within(manifest, rules, len(ids)), prompt_ids=tuple(ids.tolist()))
    if manifest.source_image is not None:
        count = length % 3 if manifest.takes_image_lists else 1
        ids = _with_images(ids, manifest.source_image, random, count)
    if manifest.instruction_start is not None:
        ids = ids[np.argsort(ids < manifest.instruction_start, kind="stable")]
    return EngineRequest(rules, source_ids=ids, pixels=pixels)


def _with_images(
    ids: NDArray[np.int64], image: PromptImages, random: np.random.Generator, count: int
) -> NDArray[np.int64]:
    """A source with the tokens of so many images."""
    ids = ids[ids != image.token_id]
    places = np.repeat(random.integers(len(ids) + 1, size=count), image.tokens)
    return np.insert(ids, places, image.token_id)


def _within(manifest: Manifest, rules: Generation, prompt_tokens: int) -> Generation:
    """Rules whose answer to a prompt of that length ends within the model's positions."""
    positions = manifest.limits.max_total_tokens
    if positions is None:
        return rules
    new_tokens = min(rules.max_new_tokens, positions - prompt_tokens)
    return rules.model_copy(update={"max_new_tokens": new_tokens})


def _interleaved_request(
    manifest: Manifest, images: PromptImages, rules: Generation, length: int
) -> EngineRequest:
    """A prompt of about that many random tokens, with up to three images between them."""
    assert manifest.image is not None
    random = np.random.default_rng(length)
    positions = manifest.limits.max_total_tokens or images.tokens * 8
    ids = random.integers(0, manifest.vocabulary_size or 0, length)
    ids = np.insert(ids[ids != images.token_id], 0, int(random.integers(3)))
    shape = checked_shape(manifest.image, images, length)
    count = min(length % 4, positions // (2 * images.tokens), limit_images(shape))
    places = np.sort(random.integers(0, len(ids) + 1, count))
    pixels = random.integers(0, 256, (count, *shape), dtype=np.uint8)
    tokens = images.tokens_of(*shape[:2])
    prompt_ids = np.insert(ids, np.repeat(places, tokens), images.token_id)
    return EngineRequest(
        _within(manifest, rules, len(prompt_ids)),
        pixels=pixels if count else None,
        prompt_ids=tuple(prompt_ids.tolist()),
        images=images,
    )
