"""The pairs of languages that the served translators have, and the model of each pair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inference.errors import InvalidRequest
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.translate import TASK
from inference.tasks.translation.languages import LanguagePairs

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
        """What a language is translated into, itself included."""
        found = {
            code for each in self._directions() if source in each.sources for code in each.targets
        }
        return tuple(sorted(found | {source}))

    def sources(self, target: str) -> tuple[str, ...]:
        """What is translated into a language, itself included."""
        found = {
            code for each in self._directions() if target in each.targets for code in each.sources
        }
        return tuple(sorted(found | {target}))

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

    def model(self, source: str, target: str) -> LoadedModel:
        """The model of a pair.

        Raises:
            InvalidRequest: no model has it. Two models that have it together are not joined.
        """
        for model, directions in self.offers:
            if any((source, target) in each for each in directions):
                return model
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

    def _directions(self) -> Iterable[LanguagePairs]:
        return (each for _, directions in self.offers for each in directions)


def _breadth(directions: tuple[LanguagePairs, ...]) -> int:
    return sum(len(each.sources) * len(each.targets) for each in directions)


def name_of(code: str) -> str:
    """The name of a language; of a code that is a model's own, e.g. `zho_Hans`, the code."""
    return NAMES.get(code, code)
