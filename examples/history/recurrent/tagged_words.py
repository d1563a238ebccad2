"""A generic English lexicon by part of speech, for the tagger; many words are in several tables.

The tables are data: one entry per `;`, or words between spaces. Inflection is in `english`.
"""

from collections.abc import Mapping

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
