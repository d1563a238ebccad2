"""Words, phrases and clauses whose words have tags.

The tables are data: one entry per `;`, or words between spaces. Inflection is in `english`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

from examples.texts import english
from examples.texts.lexicon import ADJECTIVES, CITIES, NAMES, NOUNS, VERBS

# Singular nouns, "/" before an irregular plural; most have nothing to do with the example world.
_PEOPLE = """woman/women man/men child/children person/people girl boy teacher student doctor nurse
    lawyer driver farmer soldier painter writer singer actor manager worker guard judge
    thief/thieves
    baker guest customer visitor partner leader player scientist pilot sailor captain uncle aunt
    brother sister mother father son daughter cousin friend neighbor boss cook king queen guide
    hunter dentist student baby reporter police_officer"""
_ANIMALS = """dog cat horse bird cow sheep/sheep mouse/mice lion bear rabbit duck monkey fox
    wolf/wolves goat snake frog spider bee ant shark whale tiger puppy kitten parrot turtle"""
_THINGS = """assignment book letter paper table chair lamp key phone computer camera bag box/boxes
    knife/knives spoon plate glass/glasses bottle picture gift toy ball flower stone ticket map
    pencil bed door window wall roof floor car bike train bus/buses boat plane truck shirt dress
    coat hat shoe jacket ring clock radio engine machine tool hammer saw nail rope net can cup
    watch light match letter note card report story poem song film test exam answer question
    homework sandwich cake apple egg soup salad pizza meal breakfast dinner drink guitar piano
    drum house garden tree field river road bridge tower plan project idea problem dream promise
    order call visit walk run play cut paint fish/fish water fire mail stamp sign board page"""
_PLACES = """house kitchen garden city village park school hospital museum shop market restaurant
    hotel library office square beach/beaches forest island station airport church/churches theater
    farm university bank castle room street yard corner mountain lake town factory court camp"""
_UNCOUNTED = """food bread meat rice cheese milk coffee tea wine juice sugar salt music money help
    advice news work homework information snow rain sand wood paper love hope time traffic"""

# Base, and where irregular past, participle and -ing form.
_TRANSITIVE = """eat ate eaten; see saw seen; find found found; buy bought bought; sell sold sold;
    take took taken taking; break broke broken; lose lost lost; bring brought brought; hide hid
    hidden hiding; steal stole stolen; write wrote written; read read read; draw drew drawn;
    paint; clean; wash; open; close; watch; follow; call; help; visit; need; want; like; love;
    hate; cook; cut cut cut cutting; drink drank drunk; order; carry; paint; build built built;
    repair; move; answer; ask; check; choose chose chosen choosing; catch caught caught; chase;
    remember; forget forgot forgotten forgetting; finish; start; plan planned planned planning;
    book; light lit lit; throw threw thrown; push; pull; drop dropped dropped dropping; hold held
    held; keep kept kept; leave left left; meet met met; send sent sent; print; sign; cover; fill;
    burn; plant; pack; study; teach taught taught; change; use; play; test; train; guard; hunt;
    water; mail; measure; count; paint; enjoy; describe; explain; fix; lift; feed fed fed"""
_INTRANSITIVE = """sleep slept slept; run ran run running; walk; swim swam swum swimming; work; cry;
    dance; rest; wait; fall fell fallen; laugh; smile; arrive; stay; sing sang sung; jump; shout;
    travel; dream; fish; play; talk; bark; grow grew grown; sit sat sat sitting; stand stood stood;
    fly flew flown; drive drove driven driving; leave left left; return; cook; swim swam swum
    swimming; listen; hurry; cough; sneeze; vanish; shine shone shone shining; hope; study; read
    read read"""
_CLAUSAL = """think thought thought; know knew known; say said said; hope; believe; hear heard
    heard; notice; forget forgot forgotten forgetting; explain; doubt; dream; promise; guess"""
_TO_VERBS = """want; try; hope; need; like; love; plan planned planned planning; forget forgot
    forgotten forgetting; promise; decide; refuse; learn; start"""
_GIVING = """give gave given giving; show showed shown; send sent sent; tell told told; offer;
    bring brought brought; teach taught taught; sell sold sold; promise; read read read"""

_ADJECTIVES = """big small old new young good bad long short tall high low hot cold warm cool dry
    wet
    clean dirty open closed full empty heavy light dark bright quiet loud fast slow hard soft easy
    difficult rich poor strong weak happy sad angry tired hungry thirsty sick busy lonely kind
    brave clever honest lazy funny serious strange famous expensive cheap beautiful ugly pretty
    red blue green yellow black white brown gray round square wooden broken lost hidden burned
    important possible impossible useful boring interesting dangerous safe ready late early
    right left wrong sharp sweet bitter fresh deep wide narrow thick thin free foreign local
    modern ancient huge tiny gentle cruel polite rude secret public simple perfect"""
_MANNERS = """quickly slowly quietly loudly carefully badly well hard fast late early together alone
    easily happily sadly suddenly again outside inside there here away back home upstairs
    today yesterday tomorrow tonight now soon later"""
_FREQUENCIES = "always never often sometimes usually rarely still already just also almost even"
_DEGREES = "very really quite so too rather extremely almost"
_PREPOSITIONS = """in on at near behind under above below beside inside outside across through
    around over along past after before without with for from like against about to of"""
_NUMBERS = """two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty thirty forty fifty 2 3 4 7 12 15 24 30 48 75 100"""
_PERSON_NAMES = """Anna Tom Maria Peter John Mary Emma Jack Lucy Sam Paul Kate Ben Nora Max Lisa
    Oscar
    Mark Rose Will Grace Bill Frank May June"""
_PLACE_NAMES = """Berlin Vienna Oslo Boston Chicago Texas Canada Germany China India Egypt Brazil
    Africa Europe"""

Forms = tuple[str, ...]
"""Base, and where irregular past, participle and -ing form."""


def _words(table: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.replace("_", " ") for word in table.split()))


def _nouns(table: str, kinds: str) -> tuple[str, ...]:
    """Singular, or singular/plural; the world's nouns of these kinds as well."""
    world = (
        noun.english + (f"/{noun.english_plural}" if noun.english_plural else "")
        for noun in NOUNS
        if noun.kind in kinds.split() and noun.countability == "count"
    )
    named = {word.partition("/")[0]: word for word in (*_words(table), *world)}
    return tuple(word for word in named.values() if " " not in word)


def _verbs(table: str, frame: str = "") -> tuple[Forms, ...]:
    """One entry per `;`, and the world's verbs of a frame; none of several words."""
    own = [tuple(entry.split()) for entry in table.split(";")]
    world = [verb.english for verb in VERBS if verb.frame == frame]
    found = {forms[0]: forms for forms in (*world, *own) if " " not in forms[0]}
    return tuple(found.values())


PEOPLE = _nouns(_PEOPLE, "person")
ANIMALS = _nouns(_ANIMALS, "animal")
THINGS = _nouns(_THINGS, "food text thing clothes vehicle opening instrument idea")
PLACES = _nouns(_PLACES, "place")
UNCOUNTED = _words(_UNCOUNTED)
TRANSITIVE = _verbs(_TRANSITIVE, "object")
INTRANSITIVE = _verbs(_INTRANSITIVE, "alone")
CLAUSAL = _verbs(_CLAUSAL)
TO_VERBS = _verbs(_TO_VERBS)
GIVING = _verbs(_GIVING)
QUALITIES = tuple(dict.fromkeys((*_words(_ADJECTIVES), *(one.english for one in ADJECTIVES))))
MANNERS = _words(_MANNERS)
FREQUENCIES = _words(_FREQUENCIES)
DEGREES = _words(_DEGREES)
PREPOSITIONS = _words(_PREPOSITIONS)
NUMBERS = _words(_NUMBERS)
PERSON_NAMES = (*_words(_PERSON_NAMES), *(name for name, _ in NAMES))
PLACE_NAMES = (*_words(_PLACE_NAMES), *(name for _, name in CITIES))
SINGULAR_DETERMINERS = _words("the a this that every another each some no")
PLURAL_DETERMINERS = _words("the these those some many few several all both most no")
POSSESSIVES = _words("my your his her its our their")
MODALS = _words("will can must may might could should would")
# Subject → its person as `english` numbers them, and its object form.
PRONOUNS: Mapping[str, tuple[int, str]] = {
    "I": (0, "me"),
    "you": (1, "you"),
    "we": (1, "us"),
    "they": (1, "them"),
    "he": (2, "him"),
    "she": (2, "her"),
    "it": (2, "it"),
}


Tag = Literal[
    "adjective", "adverb", "auxiliary", "conjunction", "determiner", "name", "noun", "number",
    "particle", "possessive", "preposition", "pronoun", "punctuation", "verb",
]  # fmt: skip
TAGS: tuple[Tag, ...] = (
    "adjective", "adverb", "auxiliary", "conjunction", "determiner", "name", "noun", "number",
    "particle", "possessive", "preposition", "pronoun", "punctuation", "verb",
)  # fmt: skip

Tagged = tuple[tuple[str, Tag], ...]
"""Words with their parts of speech."""


@dataclass(frozen=True)
class Phrase:
    """Words with tags, and the pairs of content words that decide the split.

    Attributes:
        head: The content word that pairs are made with; none for a pronoun.
        person: Of a subject, as `english` numbers them.
    """

    words: Tagged
    pairs: frozenset[str] = frozenset()
    head: str = ""
    person: int = 2

    def __add__(self, other: Phrase) -> Phrase:
        return Phrase(self.words + other.words, self.pairs | other.pairs, self.head, self.person)


def one(word: str, tag: Tag) -> Phrase:
    """Words of one tag."""
    return Phrase(tuple((part, tag) for part in word.split()))


def _plural(entry: str) -> str:
    singular, _, irregular = entry.partition("/")
    return irregular or english.plural(singular)


def paired(phrase: Phrase, *pairs: tuple[str, str]) -> Phrase:
    """The phrase with pairs of content words; those with an empty side are left out."""
    named = frozenset(f"{one}|{other}" for one, other in pairs if one and other)
    return Phrase(phrase.words, phrase.pairs | named, phrase.head, phrase.person)


def noun_phrase(rng: Random, *tables: tuple[str, ...], depth: int = 0) -> Phrase:
    """Determiner or owner, perhaps adjectives, a noun, perhaps a prepositional phrase."""
    entry = rng.choice(rng.choice(tables or (PEOPLE, ANIMALS, THINGS)))
    is_plural = entry not in UNCOUNTED and rng.random() < 0.3
    singular = entry.partition("/")[0]
    noun = _plural(entry) if is_plural else singular
    qualities, pairs = _qualities(rng, singular)
    following = (qualities.words or ((noun, "noun"),))[0][0]
    phrase = _determined(rng, following, is_plural, entry in UNCOUNTED, depth) + qualities
    phrase += one(noun, "noun")
    if depth < 1 and rng.random() < 0.12:
        phrase += prepositional_phrase(rng, depth + 1)
    return Phrase(phrase.words, phrase.pairs | pairs, singular, 1 if is_plural else 2)


def _qualities(rng: Random, noun: str) -> tuple[Phrase, frozenset[str]]:
    phrase, pairs = Phrase(()), set()
    for _ in range(rng.choices((0, 1, 2), (6, 3, 1))[0]):
        quality = rng.choice(QUALITIES)
        pairs.add(f"{quality}|{noun}")
        if rng.random() < 0.12:
            phrase += one(rng.choice(DEGREES), "adverb")
        phrase += one(quality, "adjective")
    return phrase, frozenset(pairs)


def _determined(
    rng: Random, following: str, is_plural: bool, is_uncounted: bool, depth: int
) -> Phrase:
    roll = rng.random()
    if roll < 0.3:
        return one("the", "determiner")
    if roll < 0.5:
        return one(rng.choice(POSSESSIVES), "possessive")
    if roll < 0.6 and depth < 1:
        if rng.random() < 0.5:
            return one(rng.choice(PERSON_NAMES), "name") + one("'s", "possessive")
        owner = noun_phrase(rng, PEOPLE, depth=2)
        clitic = english.genitive(owner.words[-1][0]).removeprefix(owner.words[-1][0])
        return owner + one(clitic, "possessive")
    if is_uncounted:
        return Phrase(()) if roll < 0.85 else one(rng.choice(("some", "this")), "determiner")
    if is_plural:
        if roll < 0.7:
            return Phrase(())
        if roll < 0.8:
            return one(rng.choice(NUMBERS), "number")
        return one(rng.choice(PLURAL_DETERMINERS), "determiner")
    chosen = rng.choice(("a", "a", *SINGULAR_DETERMINERS))
    return one(english.article(following) if chosen == "a" else chosen, "determiner")


def object_phrase(rng: Random) -> Phrase:
    """A pronoun, a name, or a noun phrase."""
    roll = rng.random()
    if roll < 0.2:
        return one(rng.choice(tuple(PRONOUNS.values()))[1], "pronoun")
    if roll < 0.28:
        return one(rng.choice(PERSON_NAMES), "name")
    return noun_phrase(rng, THINGS, THINGS, THINGS, ANIMALS, PEOPLE, UNCOUNTED)


def prepositional_phrase(rng: Random, depth: int = 0) -> Phrase:
    """Behind the old tree; in Rome. At depth 1 its noun has no such phrase in turn."""
    preposition = one(rng.choice(PREPOSITIONS), "preposition")
    if rng.random() < 0.2:
        return preposition + one(rng.choice(PLACE_NAMES), "name")
    return preposition + noun_phrase(rng, PLACES, PLACES, THINGS, PEOPLE, depth=depth + 1)


BEING = ("am", "are", "is"), ("was", "were", "was")
"""Present and past, by person."""


def subject_phrase(rng: Random) -> Phrase:
    """A pronoun, a name, or a noun phrase, perhaps with a relative clause."""
    roll = rng.random()
    if roll < 0.3:
        word = rng.choice(tuple(PRONOUNS))
        return Phrase(((word, "pronoun"),), person=PRONOUNS[word][0])
    if roll < 0.42:
        return Phrase(((rng.choice(PERSON_NAMES), "name"),))
    if roll < 0.46:
        word = rng.choice(("somebody", "everybody", "nobody", "everything", "nothing", "that"))
        return Phrase(((word, "pronoun"),))
    subject = noun_phrase(rng, PEOPLE, PEOPLE, ANIMALS, THINGS)
    return _relative(rng, subject) if rng.random() < 0.08 else subject


def _relative(rng: Random, subject: Phrase) -> Phrase:
    """The cook who lost her keys; the book that fell."""
    who = one(rng.choice(("who", "that")), "pronoun")
    said = subject + who + predicate(rng, subject, is_simple=True)
    return Phrase(said.words, said.pairs, subject.head, subject.person)


def verb_phrase(rng: Random, forms: Forms, person: int) -> Phrase:
    """A verb in some tense, perhaps negated or with an adverb."""
    roll = rng.random()
    often = rng.random() < 0.1
    adverb = one(rng.choice(FREQUENCIES), "adverb") if often else Phrase(())
    no = one(rng.choice(("not", "n't")), "particle")
    if roll < 0.3:
        return adverb + one(english.past(forms), "verb")
    if roll < 0.5:
        form = english.third_person(forms[0]) if person == 2 else forms[0]
        return adverb + one(form, "verb")
    if roll < 0.62:
        do = rng.choice(("did", "does" if person == 2 else "do"))
        return one(do, "auxiliary") + no + one(forms[0], "verb")
    if roll < 0.76:
        modal = rng.choice(MODALS)
        not_ = one("not", "particle") if rng.random() < 0.2 else adverb
        return one(modal, "auxiliary") + not_ + one(forms[0], "verb")
    if roll < 0.88:
        be = rng.choice(BEING)[person]
        not_ = one("not", "particle") if rng.random() < 0.2 else adverb
        return one(be, "auxiliary") + not_ + one(english.progressive(forms), "verb")
    have = rng.choice(("has" if person == 2 else "have", "had"))
    return one(have, "auxiliary") + adverb + one(english.participle(forms), "verb")


def predicate(rng: Random, subject: Phrase, *, is_simple: bool = False) -> Phrase:
    """What is said of a subject; a simple one has no further clause, place or manner."""
    choices = (_transitive, _intransitive, _being, _giving, _thinking, _wanting, _passive)
    weights = (8, 4, 5, 1, 0 if is_simple else 2, 2, 2)
    phrase = rng.choices(choices, weights)[0](rng, subject)
    if not is_simple and rng.random() < 0.2:
        phrase += prepositional_phrase(rng)
    if not is_simple and rng.random() < 0.15:
        phrase += one(rng.choice(MANNERS), "adverb")
    return phrase


def _transitive(rng: Random, subject: Phrase) -> Phrase:
    forms, patient = rng.choice(TRANSITIVE), object_phrase(rng)
    verb = verb_phrase(rng, forms, subject.person)
    return paired(verb + patient, (subject.head, forms[0]), (forms[0], patient.head))


def _intransitive(rng: Random, subject: Phrase) -> Phrase:
    forms = rng.choice(INTRANSITIVE)
    return paired(verb_phrase(rng, forms, subject.person), (subject.head, forms[0]))


def _being(rng: Random, subject: Phrase) -> Phrase:
    """Is tired; was not a good doctor; seems cold; is behind the tree."""
    be = one(rng.choice(BEING)[subject.person], "verb")
    if rng.random() < 0.15:
        seem = (rng.choice(("seem", "look", "feel", "become", "sound")),)
        form = english.third_person(seem[0]) if subject.person == 2 else seem[0]
        be = one(form, "verb")
    elif rng.random() < 0.3:
        be += one(rng.choice(("not", "n't", "never", "still")), "particle")
        be = Phrase(tuple((w, "adverb" if w in ("never", "still") else t) for w, t in be.words))
    roll = rng.random()
    if roll < 0.6:
        quality = rng.choice(QUALITIES)
        degree = one(rng.choice(DEGREES), "adverb") if rng.random() < 0.4 else Phrase(())
        return paired(be + degree + one(quality, "adjective"), (quality, subject.head))
    return be + (noun_phrase(rng, PEOPLE, THINGS) if roll < 0.8 else prepositional_phrase(rng))


def _giving(rng: Random, subject: Phrase) -> Phrase:
    forms, patient = rng.choice(GIVING), noun_phrase(rng, THINGS)
    verb = verb_phrase(rng, forms, subject.person)
    taker = one(rng.choice(tuple(PRONOUNS.values()))[1], "pronoun")
    taker = taker if rng.random() < 0.5 else noun_phrase(rng, PEOPLE)
    if rng.random() < 0.5:
        phrase = verb + patient + one("to", "preposition") + taker
    else:
        phrase = verb + taker + patient
    return paired(phrase, (subject.head, forms[0]), (forms[0], patient.head))


def _thinking(rng: Random, subject: Phrase) -> Phrase:
    forms = rng.choice(CLAUSAL)
    that = one("that", "conjunction") if rng.random() < 0.6 else Phrase(())
    inner = subject_phrase(rng)
    said = inner + predicate(rng, inner, is_simple=True)
    verb = verb_phrase(rng, forms, subject.person)
    return paired(verb + that + said, (subject.head, forms[0]))


def _wanting(rng: Random, subject: Phrase) -> Phrase:
    forms = rng.choice(TO_VERBS)
    verb = verb_phrase(rng, forms, subject.person) + one("to", "particle")
    if rng.random() < 0.4:
        return verb + one(rng.choice(INTRANSITIVE)[0], "verb")
    inner, patient = rng.choice(TRANSITIVE), object_phrase(rng)
    return paired(verb + one(inner[0], "verb") + patient, (inner[0], patient.head))


def _passive(rng: Random, subject: Phrase) -> Phrase:
    forms = rng.choice(TRANSITIVE)
    be = one(rng.choice(BEING)[subject.person], "auxiliary")
    done = be + one(english.participle(forms), "verb")
    if rng.random() < 0.5:
        done += one("by", "preposition") + noun_phrase(rng, PEOPLE, ANIMALS)
    return paired(done, (forms[0], subject.head))
