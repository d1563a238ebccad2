"""The live sequences of one beam width, in step with the runner's slots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.engine.drafts import MOST_ROWS, trim_drafts
from inference.engine.runners.candidates import Candidates, GreedyRule
from inference.engine.runners.protocol import RaggedGroup, Runner
from inference.engine.search.protocol import SearchInput, search_inputs
from inference.engine.sequence import PrefillingSequence, SequenceState, longest
from inference.engine.state.group_state import BufferShape
from inference.engine.state.prefix_cache import Block, CachedPrefix, PrefixCache


class StepCounts(NamedTuple):
    """What one call for a running batch did.

    Attributes:
        tokens: Decoded over all rows.
        drafted: Draft tokens that it verified.
        accepted: Those of them that were right.
        prefilled: Tokens of a prompt that it prefilled beside them.
    """

    tokens: int
    drafted: int = 0
    accepted: int = 0
    prefilled: int = 0


class RunningBatch:
    """Admission, prefill and steps of the sequences of one width.

    Slot i of the group holds `sequences[i]`; every change is made to both.

    Args:
        prefixes: Where prefixes of prompts are stored, if at all.
        draft_tokens: The longest draft of a sequence; 0 where none is looked for.

    Attributes:
        prefilling: Sequences that get a slot when their prompts are prefilled.
        reservation: Sizes that the group's arenas stay within until another sequence is admitted.
    """

    def __init__(
        self,
        runner: Runner,
        width: int,
        prefixes: PrefixCache[Block] | None = None,
        draft_tokens: int = 0,
    ) -> None:
        self.group = runner.group(width)
        self.sequences: list[SequenceState] = []
        self.prefilling: list[PrefillingSequence] = []
        self.reservation = BufferShape()
        self._runner, self._align, self._prefixes = runner, runner.align, prefixes
        self._defers_prefill = runner.capabilities.defers_admission and width == 1
        self._greedy_steps = runner.capabilities.greedy_steps if width == 1 else 0
        has_drafts = width == 1 and isinstance(self.group, RaggedGroup)
        self._draft_tokens = draft_tokens if has_drafts else 0

    @property
    def members(self) -> list[SequenceState]:
        """Sequences with a slot, and those that will get one."""
        return [*self.sequences, *(each.sequence for each in self.prefilling)]

    @property
    def rows(self) -> int:
        """Rows in use."""
        return (len(self.sequences) + len(self.prefilling)) * self.group.width

    @property
    def state_bytes(self) -> int:
        """Bytes held now."""
        return self.group.state_bytes + sum(e.prefill.state_bytes for e in self.prefilling)

    def abort_expired(self, now_s: float) -> None:
        """Ends sequences that were cancelled or whose deadline has passed."""
        for prefilling in list(self.prefilling):
            if prefilling.sequence.finish_if_due(now_s):
                self.drop_prefill(prefilling)
        for slot in reversed(range(len(self.sequences))):
            if self.sequences[slot].finish_if_due(now_s):
                self._retire(slot, unread=1)

    def drop_prefill(self, prefilling: PrefillingSequence) -> None:
        """Gives up a prompt in prefill and its memory."""
        prefilling.prefill.release()
        self.prefilling.remove(prefilling)

    def put_back(self, sequence: SequenceState) -> None:
        """Takes a member's memory away."""
        for prefilling in self.prefilling:
            if prefilling.sequence is sequence:
                self.drop_prefill(prefilling)
                break
        else:
            self._retire(self.sequences.index(sequence), unread=1)
        sequence.put_back()

    def needs(self, joining: Sequence[SequenceState] = ()) -> BufferShape:
        """The smallest sizes that hold members and newcomers at their maximal lengths."""
        return longest([*self.members, *joining])

    def reservation_with(self, joining: Sequence[SequenceState]) -> BufferShape:
        """The reservation once newcomers are admitted; without members also a smaller one."""
        needed = self.needs(joining)
        if self.rows:
            return self.reservation.union(needed)
        return self.reservation.adapt(needed, needed)

    def reserve(self, joining: Sequence[SequenceState], expected_sequences: int) -> None:
        """Reserves memory for newcomers and for sequences that are expected soon."""
        reservation = self.reservation_with(joining)
        if not self.rows and reservation != self.reservation:
            self.group.shrink()
        self.reservation = reservation
        self.group.reserve(reservation, expected_sequences)

    def shrink(self) -> None:
        """Gives back memory that no member needs."""
        self.group.shrink()
        self.reservation = self.needs()

    def admit(self, batch: list[SequenceState]) -> None:
        """Prefills whole prompts together; their sequences take a first step now or next turn.

        Prompts of one token are left to the next decode step, which saves a call.
        """
        prompts = [sequence.prompt for sequence in batch]
        if self._defers_prefill and all(len(prompt.token_ids) == 1 for prompt in prompts):
            self.group.admit_deferred(prompts)
            for sequence in batch:
                sequence.defer_prefill()
            self.sequences += batch
            return
        candidates = self.group.admit(prompts, [each.row_requests[0] for each in batch])
        self._begin(batch, candidates)

    def begin_prefill(self, sequence: SequenceState, cached: CachedPrefix[Block]) -> None:
        """Starts the prefill of one prompt behind its cached prefix."""
        prefill = self._runner.begin_prefill(sequence.prompt, cached)
        self.prefilling.append(PrefillingSequence(sequence, prefill))

    def prefill(self, prefilling: PrefillingSequence, tokens: int) -> None:
        """Prefills at most `tokens` of a prompt; after its end the sequence takes a first step."""
        sequence, prefill = prefilling.sequence, prefilling.prefill
        if sequence.reads_given:
            self._read_given(prefilling, tokens)
        elif prefill.remaining_tokens > tokens:
            prefill.read(tokens)
        else:
            candidates = self.group.admit_prefilled(prefill, sequence.row_requests[0])
            self.prefilling.remove(prefilling)
            self._begin([sequence], candidates)

    def _read_given(self, prefilling: PrefillingSequence, tokens: int) -> None:
        """Prefills a chunk of a sequence whose tokens are given, and takes those that it scores.

        It ends with its prompt, and never joins the group.
        """
        sequence, prefill = prefilling.sequence, prefilling.prefill
        size = min(prefill.remaining_tokens, tokens)
        stop = len(sequence.decoder_ids) - prefill.remaining_tokens + size
        scored = min(size, stop - len(sequence.request.decoder_ids) + 1)
        if scored <= 0:
            prefill.read(size)
            return
        requests = sequence.given_requests(scored)
        candidates = prefill.score(size, requests)
        for row in range(len(requests)):
            if sequence.advance(SearchInput(candidates, row), self._align) is None:
                self.drop_prefill(prefilling)
                break

    def step(self, *, is_alone: bool = False, chunk_tokens: int = 0) -> StepCounts:
        """Takes every sequence one token further, or several where these can be known.

        Args:
            is_alone: Whether nothing waits for the end of the step.
            chunk_tokens: So many of a prompt in prefill are taken along (D99).
        """
        prefilled, joining = self._take_along(chunk_tokens)
        counts, candidates = self._step(is_alone=is_alone)
        if joining is not None:
            assert isinstance(self.group, RaggedGroup)
            assert candidates is not None
            self.group.join(joining.prefill)
            self.prefilling.remove(joining)
            self._begin([joining.sequence], candidates, row=len(candidates.token_ids) - 1)
        return counts._replace(prefilled=prefilled)

    def _step(self, *, is_alone: bool) -> tuple[StepCounts, Candidates | None]:
        """What was done, and the candidates of a call of one step."""
        rows = len(self.sequences) * self.group.width
        rule = self._rule_of_steps() if is_alone and not self.prefilling else None
        if rule is not None:
            return StepCounts(rows * self._step_greedily(rule)), None
        drafts = self._find_drafts() if self._draft_tokens else []
        if any(drafts):
            return self._step_with_drafts(drafts)
        requests = [request for sequence in self.sequences for request in sequence.row_requests]
        candidates = self.group.step(self._next_ids(), requests)
        self._advance(candidates, 0, rows_each=self.group.width)
        return StepCounts(rows), candidates

    def takes_along(self, prefilling: PrefillingSequence) -> bool:
        """Whether the next step can prefill tokens of a prompt in its call (D99)."""
        is_one_call = isinstance(self.group, RaggedGroup) and not self.group.pads_rows
        return is_one_call and not prefilling.sequence.reads_given and bool(self.sequences)

    def _take_along(self, tokens: int) -> tuple[int, PrefillingSequence | None]:
        """Lets the next call prefill at most so many tokens of a prompt.

        Returns:
            How many it will, and the sequence whose prompt they end.
        """
        for each in self.prefilling[:1] if tokens else ():
            if self.takes_along(each):
                assert isinstance(self.group, RaggedGroup)
                remaining = each.prefill.remaining_tokens
                if remaining > tokens:
                    self.group.take_along(each.prefill, tokens)
                    return tokens, None
                self.group.take_along(each.prefill, remaining, each.sequence.row_requests[0])
                return remaining, each
        return 0, None

    def _next_ids(self) -> NDArray[np.int64]:
        """(R,) the next input of each row."""
        return np.array([s.next_ids for s in self.sequences], np.int64).reshape(-1)

    def restart(self) -> None:
        """Replaces a group whose state is suspect by an empty one, and drops its sequences."""
        group = self._runner.group(self.group.width)
        self.sequences = []
        self.group.release()
        self.group, self.reservation = group, self.needs()

    def _rule_of_steps(self) -> GreedyRule | None:
        """What every sequence follows at each of several steps in one call, if that is possible."""
        if not self._greedy_steps:
            return None
        rules = {sequence.greedy_rule for sequence in self.sequences}
        return rules.pop() if len(rules) == 1 else None

    def _step_greedily(self, rule: GreedyRule) -> int:
        """Takes several steps in one call, then drops what ended within it; returns steps."""
        steps = min(self._greedy_steps, *(sequence.steps_of_rule for sequence in self.sequences))
        ends = {end for each in self.sequences for end in each.request.rules.eos_token_ids}
        found = self.group.step_greedily(self._next_ids(), rule, steps, frozenset(ends))
        rows = list(zip(self.sequences, found.token_ids.tolist(), found.log_probs, strict=True))
        ended = [
            slot
            for slot, (sequence, taken, log_probs) in enumerate(rows)
            if not sequence.take(taken, log_probs, self._align)
        ]
        for slot in reversed(ended):
            self._retire(slot)
        return found.token_ids.shape[1]

    def _find_drafts(self) -> Sequence[Sequence[int]]:
        """What may follow the next input of each sequence, where that pays and has room (D100)."""
        group = self.group
        assert isinstance(group, RaggedGroup)
        if len(self.sequences) >= MOST_ROWS:
            return []
        most, vocabulary_size = self._draft_tokens, self._runner.vocabulary_size
        found = [sequence.draft(most, vocabulary_size) for sequence in self.sequences]
        if not any(draft.token_ids for draft in found):
            return []
        drafts = trim_drafts(found, is_padded=group.pads_rows)
        return drafts if group.has_room(drafts) else []

    def _step_with_drafts(self, drafts: Sequence[Sequence[int]]) -> tuple[StepCounts, Candidates]:
        """Takes every sequence as many tokens further as its draft is right, and one more."""
        group = self.group
        assert isinstance(group, RaggedGroup)
        sizes = [1 + len(draft) for draft in drafts]
        if group.pads_rows:
            sizes = [max(sizes)] * len(sizes)
        sized = zip(self.sequences, sizes, strict=True)
        requests = [sequence.row_requests[0] for sequence, size in sized for _ in range(size)]
        candidates = group.step_with_drafts(self._next_ids(), drafts, requests)
        firsts = accumulate(sizes[:-1], initial=0)
        counts: list[int] = []
        ended: list[int] = []
        rows = list(zip(self.sequences, drafts, firsts, strict=True))
        for slot, (sequence, draft, first) in enumerate(rows):
            count, runs_on = self._accept(sequence, draft, candidates, first)
            counts.append(count)
            if not runs_on:
                ended.append(slot)
        group.keep(counts)
        for slot in reversed(ended):
            self._retire(slot)
        tokens = sum(counts)
        return StepCounts(tokens, sum(map(len, drafts)), tokens - len(counts)), candidates

    def _accept(
        self, sequence: SequenceState, draft: Sequence[int], candidates: Candidates, first: int
    ) -> tuple[int, bool]:
        """Lets a search choose tokens while its choice is the draft's.

        It goes on only if it needs of the next row what that row was computed with.

        Returns:
            Tokens chosen, and whether the sequence runs on.
        """
        request = sequence.row_requests[0]
        for place, drafted in enumerate((*draft, None)):
            result = sequence.advance(SearchInput(candidates, first + place), self._align)
            if result is None:
                return place + 1, False
            if result.token_ids[0] != drafted or sequence.row_requests[0] is not request:
                break
        return place + 1, True

    def _begin(self, batch: list[SequenceState], candidates: Candidates, row: int = 0) -> None:
        """Adds sequences that were just prefilled as the last slots.

        Args:
            row: The first one's in the candidates.
        """
        first = len(self.sequences)
        self.sequences += batch
        if self._prefixes is not None:
            for slot, sequence in enumerate(batch, start=first):
                self._prefixes.put(sequence.prefix_ids, partial(self.group.copy_block, slot))
        self._advance(candidates, first, rows_each=1, row=row)

    def _advance(self, candidates: Candidates, first: int, rows_each: int, row: int = 0) -> None:
        """Lets searches choose tokens, then moves state: beams first, then retired slots."""
        sources: list[int] = []
        targets: list[int] = []
        ended: list[int] = []
        stepped = self.sequences[first:]
        beams = [sequence.beams for sequence in stepped]
        inputs = search_inputs(candidates, beams, rows_each, row)
        for slot, (sequence, each) in enumerate(zip(stepped, inputs, strict=True), start=first):
            result = sequence.advance(each, self._align)
            if result is None:
                ended.append(slot)
                continue
            for source, target in result.copies:
                sources.append(slot * self.group.width + source)
                targets.append(slot * self.group.width + target)
        if sources:
            self.group.copy(sources, targets)
        for slot in reversed(ended):
            self._retire(slot)

    def _retire(self, slot: int, *, unread: int = 0) -> None:
        """Drops a sequence; the last one takes its slot, as in the group.

        Its tokens are kept for the next turn of a conversation, the last block in part: none but
        this sequence wrote to that, so nothing is copied for it while it runs (D119).

        Args:
            unread: Of its last tokens, those that were no inputs yet.
        """
        sequence = self.sequences[slot]
        if self._prefixes is not None and sequence.generated:
            ids = sequence.prefix_ids
            ids = ids[: len(ids) - unread]
            self._prefixes.put(ids, partial(self.group.copy_block, slot), has_rest=True)
        self.group.retire(slot)
        self.sequences[slot] = self.sequences[-1]
        self.sequences.pop()
