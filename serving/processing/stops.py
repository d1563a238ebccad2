"""Stop strings: a text ends before the first of them, found while the text is still coming.

Knuth, Morris and Pratt (1977), one automaton a string: each character is looked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class StopStrings:
    """Passes one text on until a stop string is complete in it.

    A string that is complete first ends the text, whatever others have begun; of several that are
    complete at the same character, the longest. How the text is cut into pieces does not matter.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._automata = [_Automaton(string, _failures(string)) for string in strings]
        self._held = ""
        self.is_stopped = False

    def add(self, text: str) -> str:
        """The text that is certain to stay: an end that may begin a stop string is held back."""
        if self.is_stopped:
            return ""
        held = self._held + text
        for place, character in enumerate(text, start=len(self._held) + 1):
            complete = 0
            for automaton in self._automata:
                if automaton.step(character):
                    complete = max(complete, len(automaton.string))
            if complete:
                self.is_stopped = True
                self._held = ""
                return held[: place - complete]
        begun = max((automaton.matched for automaton in self._automata), default=0)
        self._held = held[len(held) - begun :]
        return held[: len(held) - begun]

    def finish(self) -> str:
        """What was held back, now that nothing more comes."""
        held, self._held = self._held, ""
        return held


@dataclass
class _Automaton:
    """How much of a string the text ends with.

    Attributes:
        failures: For each prefix, the length of the longest shorter one that it ends with.
        matched: Characters of the string that the text ends with.
    """

    string: str
    failures: list[int]
    matched: int = 0

    def step(self, character: str) -> bool:
        """Whether the string is complete with this character."""
        while self.matched and self.string[self.matched] != character:
            self.matched = self.failures[self.matched - 1]
        self.matched += self.string[self.matched] == character
        return self.matched == len(self.string)


def _failures(string: str) -> list[int]:
    failures, matched = [0], 0
    for character in string[1:]:
        while matched and string[matched] != character:
            matched = failures[matched - 1]
        matched += string[matched] == character
        failures.append(matched)
    return failures
