"""English inflection: plurals, articles, verb forms and the auxiliary of each tense.

Persons are those of `be`: I 0, you/we/they 1, he/she/it 2.
"""

import re
from dataclasses import dataclass

_PRESENT_BE = ("am", "are", "is")
_PAST_BE = ("was", "were", "was")


@dataclass(frozen=True)
class VerbGroup:
    """A verb as in a statement, and split into auxiliary and lexical verb.

    `plain` is "eats"; `auxiliary` and `lexical` are "does" and "eat".
    """

    plain: str
    auxiliary: str
    lexical: str

    @property
    def is_supported(self) -> bool:
        """Whether the auxiliary is the do of do-support, which statements omit."""
        return self.auxiliary in ("do", "does", "did")

    @property
    def negated(self) -> str:
        """The verb with its not."""
        negation = "cannot" if self.auxiliary == "can" else f"{self.auxiliary} not"
        return f"{negation} {self.lexical}".strip()

    def modified(self, adverb: str) -> str:
        """The verb with an adverb where English puts it: always eats, has always eaten."""
        if self.is_supported:
            return f"{adverb} {self.plain}"
        return f"{self.auxiliary} {adverb} {self.lexical}".strip()


def plural(noun: str) -> str:
    """The regular plural: dog, dogs; city, cities; church, churches; tomato, tomatoes."""
    if re.search("[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    if noun in ("potato", "tomato") or re.search("(s|x|ch|sh)$", noun):
        return noun + "es"
    return noun + "s"


def article(following: str) -> str:
    """A or an, by the sound of what follows."""
    is_glide = following.lower().startswith(("eu", "uni", "use"))
    is_vowel = following[0].lower() in "aeiou" and not is_glide
    return "an" if is_vowel or following.startswith("honest") else "a"


def genitive(owner: str) -> str:
    """The owner with 's, or ' alone after a common noun's s: Carlos's, the boss'."""
    return owner + ("'" if owner.endswith("s") and owner[0].islower() else "'s")


def third_person(base: str) -> str:
    """He eats, she studies, it goes; only a phrasal verb's first word changes."""
    head, space, rest = base.partition(" ")
    irregular = {"have": "has", "go": "goes"}
    return irregular.get(head, plural(head)) + space + rest


def past(forms: tuple[str, ...]) -> str:
    """The preterite, given a verb's listed forms."""
    return forms[1] if len(forms) > 1 else _regular_past(forms[0])


def participle(forms: tuple[str, ...]) -> str:
    """The form after have."""
    return forms[2] if len(forms) > 2 else past(forms)


def progressive(forms: tuple[str, ...]) -> str:
    """The -ing form."""
    if len(forms) > 3:
        return forms[3]
    base = forms[0]
    is_silent = base.endswith("e") and not base.endswith("ee")
    return (base[:-1] if is_silent else base) + "ing"


def _regular_past(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if re.search("[^aeiou]y$", base):
        return base[:-1] + "ied"
    return base + "ed"


def be(tense: str, person: int) -> VerbGroup:
    """The copula, which is its own auxiliary."""
    compound = {
        "future": ("will", "be"),
        "near future": (_PRESENT_BE[person], "going to be"),
        "perfect": ("has" if person == 2 else "have", "been"),
        "can": ("can", "be"),
        "must": ("must", "be"),
    }
    if tense in compound:
        auxiliary, lexical = compound[tense]
        return VerbGroup(f"{auxiliary} {lexical}", auxiliary, lexical)
    form = (_PRESENT_BE if tense == "present" else _PAST_BE)[person]
    return VerbGroup(form, form, "")


def verb_group(forms: tuple[str, ...], tense: str, person: int) -> VerbGroup:
    """A verb in any of the grammar's tenses."""
    base = forms[0]
    does = "does" if person == 2 else "do"
    if tense in ("preterite", "imperfect"):
        return VerbGroup(past(forms), "did", base)
    if tense in ("present", "want", "have to"):
        lexical = {"present": base, "want": f"want to {base}", "have to": f"have to {base}"}[tense]
        return VerbGroup(third_person(lexical) if person == 2 else lexical, does, lexical)
    auxiliary, lexical = {
        "future": ("will", base),
        "near future": (_PRESENT_BE[person], f"going to {base}"),
        "progressive": (_PRESENT_BE[person], progressive(forms)),
        "past progressive": (_PAST_BE[person], progressive(forms)),
        "perfect": ("has" if person == 2 else "have", participle(forms)),
        "can": ("can", base),
        "must": ("must", base),
    }[tense]
    return VerbGroup(f"{auxiliary} {lexical}", auxiliary, lexical)
