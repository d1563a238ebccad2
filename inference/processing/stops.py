"""Stop strings: a text ends before the first of them, found while the text arrives."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes a text on until a stop string is complete in it.

    The string that is complete first ends the text; of several that are complete at the same
    character, the longest. How the text is cut into pieces makes no difference.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._first_characters = {string[0] for string in strings}
        self._longest = max(map(len, strings), default=0)
        self._held = ""
        self.is_stopped = False

    def add(self, text: str) -> str:
        """The text that is certain; an end that may begin a stop string is held back."""
        if self.is_stopped:
            return ""
        text = self._held + text
        found = [
            (start + len(string), -len(string))
            for string in self._strings
            if (start := text.find(string)) >= 0
        ]
        if found:
            end, minus_length = min(found)
            self.is_stopped = True
            self._held = ""
            return text[: end + minus_length]
        certain = self._certain(text)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """The text that was held back; nothing may be added afterwards."""
        held, self._held = self._held, ""
        return held

    def _certain(self, text: str) -> int:
        """Length of the text before the longest end that begins a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first_characters:
                end = text[start:]
                if any(string.startswith(end) for string in self._strings):
                    return start
        return len(text)
