"""Beam search whose results contain phrases: dynamic beam allocation.

Post & Vilar 2018 (arXiv 1804.06609): beside the best continuations of all beams, each beam is
continued by every token that begins or continues a phrase it lacks. Continuations compete with
those that have come equally far (a bank), and the beam is divided among the banks. A hypothesis
ends only when all phrases are met, and none runs on that has too few tokens left for them.

The tokens so far are read from left to right: a phrase is met where one of its spellings begins and
ends at the edges of words; of several the longest counts (of those that share the spelling the one
that was required last), and no token counts twice. So a phrase that is required twice must occur
twice, also where another required phrase contains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from inference.engine.request import EngineRequest
from inference.engine.runners.candidates import CandidateRequest
from inference.engine.search.beam import BeamSearch
from inference.engine.search.logits_processors import TokenRecord
from inference.engine.search.protocol import Continuations, SearchInput, StepResult
from inference.errors import InvalidRequest
from inference.processing.terms import WordEdges

Spelling = tuple[int, ...]
Spellings = tuple[Spelling, ...]


class State(NamedTuple):
    """Where a hypothesis stands.

    Attributes:
        met: How many times each phrase is met for good.
        follows_word: Whether the token before `open` ends with a letter or digit.
        open: Tokens that later ones may still complete to a phrase, or to a longer one.
    """

    met: tuple[int, ...]
    follows_word: bool = False
    open: tuple[int, ...] = ()


class PhraseTracker:
    """Follows the required phrases of one request, each state and token computed once.

    Args:
        phrases: The spellings of each phrase, one of which the output must contain.
        edges: Of the vocabulary.
    """

    def __init__(self, phrases: Sequence[Spellings], edges: WordEdges) -> None:
        counted = Counter(phrases)
        self._spellings = tuple(counted)
        self._counts = tuple(counted.values())
        self._edges = edges
        self._tokens = {token for one in counted for spelling in one for token in spelling}
        best = [min(one, key=self._reach) for one in self._spellings]
        self._shortest = tuple(map(len, best))
        self._begin_inside = tuple(bool(edges.begins[one[0]]) for one in best)
        self._followed: dict[tuple[State, int], State] = {}
        self._remaining: dict[State, int] = {}
        self._next: dict[State, tuple[int, ...]] = {}
        self.start = State((0,) * len(self._spellings))
        self.total = self.remaining(self.start)
        """The least tokens that meet all phrases."""

    def follow(self, state: State, token: int) -> State:
        """The state after one more token."""
        known = token
        if token not in self._tokens:  # all such tokens are alike, up to their edges
            known = -1 - int(self._edges.begins[token]) - 2 * int(self._edges.ends[token])
        found = self._followed.get((state, known))
        if found is None:
            found = self._followed[state, known] = self._read(state, token, is_last=False)
        return found

    def remaining(self, state: State) -> int:
        """The least further tokens that meet all phrases; 0 where the text may end here."""
        found = self._remaining.get(state)
        if found is None:
            found = self._remaining[state] = self._least(state)
        return found

    def next_tokens(self, state: State) -> tuple[int, ...]:
        """Tokens that begin or continue a phrase which is not met."""
        found = self._next.get(state)
        if found is None:
            found = self._next[state] = tuple(dict.fromkeys(self._continuations(state)))
        return found

    def _read(self, state: State, token: int | None, *, is_last: bool) -> State:
        """Counts the phrases that nothing can change any more; all where the text ends."""
        met, follows_word = list(state.met), state.follows_word
        tokens = state.open if token is None else (*state.open, token)
        while tokens:
            waits, ended = self._matches(met, follows_word, tokens)
            length, phrase = max(ended, default=(0, -1))
            if not is_last and (waits or length == len(tokens)):
                break  # may become longer, or a word may go on behind it
            if length:
                met[phrase] += 1
            taken = max(1, length)
            follows_word = bool(self._edges.ends[tokens[taken - 1]])
            tokens = tokens[taken:]
        return State(tuple(met), follows_word, tokens)

    def _matches(
        self, met: Sequence[int], follows_word: bool, tokens: tuple[int, ...]
    ) -> tuple[bool, list[tuple[int, int]]]:
        """Phrases not met yet that the tokens begin with.

        Returns:
            Whether a spelling is longer than the tokens; (length, phrase) of those that are whole.
        """
        waits = False
        ended: list[tuple[int, int]] = []
        if follows_word and self._edges.begins[tokens[0]]:
            return waits, ended
        for phrase, spelling in self._unmet(met):
            length = len(spelling)
            if length > len(tokens):
                waits |= spelling[: len(tokens)] == tokens
            elif tokens[:length] == spelling and not self._joins(tokens, length):
                ended.append((length, phrase))
        return waits, ended

    def _joins(self, tokens: tuple[int, ...], place: int) -> bool:
        """Whether a word goes on over that place."""
        if place == len(tokens):
            return False
        return bool(self._edges.ends[tokens[place - 1]] and self._edges.begins[tokens[place]])

    def _unmet(self, met: Sequence[int]) -> Iterator[tuple[int, Spelling]]:
        for phrase, (count, wanted) in enumerate(zip(met, self._counts, strict=True)):
            if count < wanted:
                for spelling in self._spellings[phrase]:
                    yield phrase, spelling

    def _least(self, state: State) -> int:
        ended = self._read(state, None, is_last=True)
        options = [self._missing(ended.met, ended.follows_word)]
        for met, phrase, rest in self._partial(state):
            after = (*met[:phrase], met[phrase] + 1, *met[phrase + 1 :])
            follows_word = bool(self._edges.ends[rest[-1]])
            options.append(len(rest) + self._missing(after, follows_word))
        return min(options)

    def _missing(self, met: Sequence[int], follows_word: bool) -> int:
        """The tokens of all missing phrases, and one in front of each that cannot follow a word."""
        missing = [wanted - count for count, wanted in zip(met, self._counts, strict=True)]
        pairs = zip(missing, self._begin_inside, strict=True)
        inside = sum(count for count, begins_inside in pairs if begins_inside)
        lengths = zip(missing, self._shortest, strict=True)
        total = sum(count * length for count, length in lengths)
        return total + max(0, inside - (not follows_word))

    def _partial(self, state: State) -> Iterator[tuple[tuple[int, ...], int, Spelling]]:
        """Each spelling that the open tokens end in the midst of.

        Yields:
            What is met before it, its phrase, and its missing tokens.
        """
        for start in range(len(state.open)):
            before = self._read(state._replace(open=state.open[:start]), None, is_last=True)
            tail = state.open[start:]
            if before.follows_word and self._edges.begins[tail[0]]:
                continue
            for phrase, spelling in self._unmet(before.met):
                if len(spelling) > len(tail) and spelling[: len(tail)] == tail:
                    yield before.met, phrase, spelling[len(tail) :]

    def _continuations(self, state: State) -> Iterator[int]:
        for _, _, rest in self._partial(state):
            yield rest[0]
        ended = self._read(state, None, is_last=True)
        for _, spelling in self._unmet(ended.met):
            if not (ended.follows_word and self._edges.begins[spelling[0]]):
                yield spelling[0]

    def _reach(self, spelling: Spelling) -> int:
        """The tokens that meet a phrase wherever it begins: one more behind a word."""
        return len(spelling) + int(self._edges.begins[spelling[0]])


class _Ranked(NamedTuple):
    """A continuation of a beam, and the state that it leads to."""

    score: float
    parent: int
    token_id: int
    state: State


class ConstrainedBeamSearch(BeamSearch):
    """`BeamSearch` over hypotheses that contain the rules' `force_words_ids`.

    Without phrases it would choose what `BeamSearch` chooses.

    Raises:
        InvalidRequest: the phrases have more tokens than the output may have.
    """

    def __init__(self, request: EngineRequest) -> None:
        rules = request.rules
        tokens = (max(map(max, spellings)) for spellings in rules.force_words_ids)
        edges = request.word_edges or WordEdges.none(1 + max(tokens))
        self._tracker = PhraseTracker(rules.force_words_ids, edges)
        self._states = [self._tracker.start]
        # A forced end token takes the last place.
        self._places = rules.max_new_tokens - (rules.forced_eos_token_id is not None)
        if self._tracker.total > self._places:
            raise InvalidRequest(
                f"the required phrases take {self._tracker.total} tokens or more, the output has "
                f"at most {self._places}: require less",
                field="force_words_ids",
            )
        super().__init__(request)

    @property
    def row_requests(self) -> Sequence[CandidateRequest]:
        """Those of a beam search, with the tokens that bring a beam's phrases further."""
        requests = list(super().row_requests)
        for row, state, constraint in zip(
            self._beams.rows, self._states, self._constraints, strict=False
        ):
            given = self._tracker.next_tokens(state)
            if given and constraint.forced is None:
                requests[row] = replace(requests[row], given=given)
        return requests

    @property
    def beams(self) -> None:
        """None: its beams are ranked by banks, in `advance`."""
        return None

    def advance(self, search_input: SearchInput) -> StepResult | None:
        """Chooses the next beams; None when no beam can improve the result.

        Raises:
            InvalidRequest: the rules ban every token, or no output contains all phrases.
        """
        ranked = self._rank(search_input)
        length = len(self._steps) + 1
        is_last = length >= self._rules.max_new_tokens
        whole, running = [], []
        for one in ranked:
            ends = one.token_id in self._ends
            remaining = self._tracker.remaining(one.state)
            if not remaining:
                whole.append(one)
            if not ends and not is_last and remaining <= self._places - length:
                running.append(one)
        self._end(_continuations(whole), length, search_input)
        chosen = self._allocate(running)
        if chosen and not self._is_settled(chosen[0].score, length):
            self._states = [one.state for one in chosen]
            return self._continue(_continuations(chosen), range(len(chosen)), search_input)
        if not self._finished:
            raise InvalidRequest(
                f"no output of at most {self._rules.max_new_tokens} tokens with all required "
                "phrases was found: require less, or ask for more beams",
                field="force_words_ids",
            )
        return None

    def _rank(self, search_input: SearchInput) -> list[_Ranked]:
        """All continuations, best first; those that end a hypothesis too early are left out."""
        candidates, first, _ = search_input
        found: list[_Ranked] = []
        for parent, (row, score, state, constraint) in enumerate(
            zip(self._beams.rows, self._beams.scores, self._states, self._constraints, strict=False)
        ):
            if constraint.forced is not None:
                options = {constraint.forced: np.float32(0)}
            else:
                place = first + row
                given = self._tracker.next_tokens(state)
                options = dict(zip(given, candidates.given.get(place, ()), strict=True))
                # Of a token that is both, the score of the ranking stands.
                options |= zip(candidates.ids[place], candidates.log_probs[place], strict=True)
            for token, log_prob in options.items():
                if token in constraint.banned or not log_prob > -np.inf:
                    continue
                if token in self._ends:
                    if self._tracker.remaining(state):
                        continue
                    following = state
                else:
                    following = self._tracker.follow(state, token)
                total = float(np.float32(score) + log_prob)
                found.append(_Ranked(total, parent, token, following))
        found.sort(key=lambda one: -one.score)
        return found

    def _allocate(self, running: Sequence[_Ranked]) -> list[_Ranked]:
        """The next beams, best first: as many of each bank as it may have."""
        total = self._tracker.total
        banks = [max(0, total - self._tracker.remaining(one.state)) for one in running]
        return [running[index] for index in allocate_places(banks, self._width)]

    def _record(self, best: Continuations, index: int, search_input: SearchInput) -> TokenRecord:
        """The record of one continuation's token, which need not be among the best ones."""
        parent, token_id = best.parents[index], best.token_ids[index]
        row = search_input.first + self._beams.rows[parent]
        candidates = search_input.candidates
        if token_id in candidates.ids[row] or self._constraints[parent].forced is not None:
            return super()._record(best, index, search_input)
        given = self._tracker.next_tokens(self._states[parent])
        log_prob = candidates.given[row][given.index(token_id)]
        record = self._trace.record(candidates.ids[row], candidates.log_probs[row], candidates, row)
        return TokenRecord(float(log_prob), record.top, record.emitted)


def allocate_places(banks: Sequence[int], width: int) -> list[int]:
    """Places of the continuations that become beams, in order.

    Every bank that has continuations gets an equal share; what a bank leaves goes to the others'
    best. With more banks than beams, those that have come farthest get one each.

    Args:
        banks: Of the continuations, best first.
        width: Beams.
    """
    places: dict[int, list[int]] = {}
    for place, bank in enumerate(banks):
        places.setdefault(bank, []).append(place)
    share = max(1, width // max(1, len(places)))
    kept: list[int] = []
    for bank in sorted(places, reverse=True)[:width]:
        kept += places[bank][:share]
    kept_set = set(kept)
    others = (place for place in range(len(banks)) if place not in kept_set)
    kept += [place for place, _ in zip(others, range(width - len(kept)), strict=False)]
    return sorted(kept)


def _continuations(ranked: Sequence[_Ranked]) -> Continuations:
    return Continuations(
        [one.parent for one in ranked],
        [one.token_id for one in ranked],
        [one.score for one in ranked],
    )
