"""Phrases that an output must contain, as tokens: how far a hypothesis has come with them.

The tokens so far are read from left to right: a phrase is met where one of its spellings begins and
ends at the edges of words; of several the longest counts (of those that share the spelling the one
that was required last), and no token counts twice. So a phrase that is required twice must occur
twice, also where another required phrase contains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from inference.processing.words import WordEdges

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
            found = self._next[state] = tuple(dict.fromkeys(self._continuing(state)))
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

    def _continuing(self, state: State) -> Iterator[int]:
        for _, _, rest in self._partial(state):
            yield rest[0]
        ended = self._read(state, None, is_last=True)
        for _, spelling in self._unmet(ended.met):
            if not (ended.follows_word and self._edges.begins[spelling[0]]):
                yield spelling[0]

    def _reach(self, spelling: Spelling) -> int:
        """The tokens that meet a phrase wherever it begins: one more behind a word."""
        return len(spelling) + int(self._edges.begins[spelling[0]])
