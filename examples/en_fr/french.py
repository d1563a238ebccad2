"""French inflection: agreement, plurals, verb forms, elision and contraction.

Persons are 2 (third singular) and 4 (third plural), numbered as in `spanish`.
"""

from collections.abc import Sequence

from examples.texts.lexicon import Gender

_VOWELS = frozenset("aeiouàâéèêëîïôùûh")  # every h of the example world is mute
_BEFORE_VOWEL = {
    "le": "l'",
    "la": "l'",
    "de": "d'",
    "ne": "n'",
    "que": "qu'",
    "ce": "cet",
    "nouveau": "nouvel",
}
_CONTRACTED = {
    ("de", "le"): "du",
    ("de", "les"): "des",
    ("à", "le"): "au",
    ("à", "les"): "aux",
}
_FEMININES = {
    "nouveau": "nouvelle",
    "bon": "bonne",
    "long": "longue",
    "public": "publique",
    "grec": "grecque",
    "secret": "secrète",
    "tout": "toute",
}
_FEMININE_ENDINGS = {"en": "enne", "el": "elle", "er": "ère", "eux": "euse", "if": "ive"}
_PLURALS = {"tout": "tous"}
_AUXILIARIES = {
    "avoir": {"present": ("a", "ont"), "imperfect": ("avait", "avaient")},
    "être": {
        "present": ("est", "sont"),
        "imperfect": ("était", "étaient"),
        "future": ("sera", "seront"),
    },
    "devoir": {"present": ("doit", "doivent")},
    "pouvoir": {"present": ("peut", "peuvent")},
}


def feminine(word: str) -> str:
    """The feminine singular of an adjective or participle."""
    if word in _FEMININES:
        return _FEMININES[word]
    for ending, changed in _FEMININE_ENDINGS.items():
        if word.endswith(ending):
            return word.removesuffix(ending) + changed
    return word if word.endswith("e") else word + "e"


def plural(word: str) -> str:
    """The plural of a noun, adjective or participle."""
    if word in _PLURALS:
        return _PLURALS[word]
    if word[-1] in "sxz":
        return word
    if word.endswith("al"):
        return word[:-2] + "aux"
    return word + ("x" if word.endswith("eau") else "s")


def agree(word: str, gender: Gender, is_plural: bool) -> str:
    """An adjective or participle that agrees with its noun."""
    form = feminine(word) if gender == "f" else word
    return plural(form) if is_plural else form


def auxiliary(infinitive: str, tense: str, is_plural: bool) -> str:
    """A third person of avoir, être, devoir or pouvoir."""
    return _AUXILIARIES[infinitive][tense][is_plural]


def settle(words: Sequence[str]) -> tuple[list[str], list[int]]:
    """Elides and contracts: le accord → l' accord, de le → du.

    Returns:
        The settled words, an elided one ending in an apostrophe; and each given word's new place.
    """
    elided = [
        _BEFORE_VOWEL.get(word, word) if following[:1].lower() in _VOWELS else word
        for word, following in zip(words, [*words[1:], ""], strict=True)
    ]
    settled: list[str] = []
    places: list[int] = []
    for word in elided:
        if settled and (settled[-1], word) in _CONTRACTED:
            settled[-1] = _CONTRACTED[settled[-1], word]
        else:
            settled.append(word)
        places.append(len(settled) - 1)
    return settled, places
