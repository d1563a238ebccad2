"""Sentences in six languages from one kind of pattern, split for testing.

Splits as in `grammar`: `compositional` sentences have at least one withheld pair of a verb and its
subject or object. English, Spanish and French have some sentences of the other two worlds as well,
whose words are others. `UNRELATED` sentences come from no pattern: written for the test alone.
"""

import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from random import Random

from examples.en_fr import gazette
from examples.history.recurrent.everyday_words import WORDS
from examples.texts import grammar
from examples.texts.grammar import PAIR_SHARE, SENTENCE_SHARE, Split, bucket

LANGUAGES = tuple(WORDS)
"""ISO 639-1 codes."""
_OTHER_WORLD_SHARE = 0.25
_FIXED_SHARE = 0.1
_SLOT = re.compile(r"\{(\w+)\}")

UNRELATED = {
    "de": """Der Wind hat sich in den letzten Stunden kaum gedreht. Wer zu spät losfährt, verpasst
        die schönste Aussicht. Am Ende blieb ihnen keine andere Wahl. Seit Jahrzehnten streiten
        Forscher über die Ursache dieses Geräuschs. Bitte schalten Sie vor dem Start alle Geräte
        aus. Die Gewerkschaft lehnte das Angebot gestern ab. Manche Pflanzen blühen nur ein
        einziges Mal. Unter diesen Umständen wäre ein Umzug unvernünftig. Keiner hatte mit so
        vielen Zuschauern gerechnet. Das Rezept verlangt drei Eier und einen Löffel Honig.""",
    "en": """The wind has hardly turned during the last few hours. Those who leave too late miss
        the finest view. In the end there was no other choice left to them. For decades
        researchers have argued about the cause of this noise. Please switch off all devices
        before takeoff. The union rejected yesterday's offer. Some plants bloom only once. Under
        these circumstances moving would be unreasonable. Hardly anybody had expected such large
        crowds. The recipe calls for three eggs and a spoonful of honey.""",
    "es": """El viento apenas ha cambiado durante las últimas horas. Quien sale demasiado tarde se
        pierde la mejor vista. Al final no les quedó otra opción. Desde hace décadas los
        investigadores discuten sobre la causa de este ruido. Apaguen todos los aparatos antes
        del despegue. El sindicato rechazó ayer la oferta. Algunas plantas florecen una sola vez.
        En estas circunstancias sería poco razonable mudarse. Casi nadie esperaba tantos
        espectadores. La receta lleva tres huevos y una cucharada de miel.""",
    "fr": """Le vent n'a guère tourné ces dernières heures. Ceux qui partent trop tard manquent la
        plus belle vue. À la fin, il ne leur restait aucun autre choix. Depuis des décennies, les
        chercheurs se disputent sur la cause de ce bruit. Veuillez éteindre tous les appareils
        avant le décollage. Le syndicat a rejeté hier cette offre. Certaines plantes ne
        fleurissent qu'une seule fois. Dans ces conditions, déménager serait déraisonnable.
        Presque personne n'attendait une telle foule. La recette demande trois œufs et une
        cuillerée de miel.""",
    "it": """Nelle ultime ore il vento è cambiato appena. Chi parte troppo tardi si perde il
        panorama più bello. Alla fine non rimase loro altra scelta. Da decenni i ricercatori
        discutono sulla causa di questo rumore. Spegnete tutti gli apparecchi prima del decollo.
        Ieri il sindacato ha respinto l'offerta. Alcune piante fioriscono una volta sola. In
        queste circostanze traslocare sarebbe irragionevole. Quasi nessuno si aspettava così tanti
        spettatori. La ricetta richiede tre uova e un cucchiaio di miele.""",
    "pt": """O vento quase não mudou nas últimas horas. Quem sai tarde demais perde a vista mais
        bela. No fim não lhes restou outra escolha. Há décadas os pesquisadores discutem a causa
        deste ruído. Desliguem todos os aparelhos antes da decolagem. O sindicato rejeitou ontem a
        proposta. Algumas plantas florescem apenas uma vez. Nestas circunstâncias, mudar de casa
        não seria razoável. Quase ninguém esperava tantos espectadores. A receita leva três ovos
        e uma colher de mel.""",
}


@dataclass(frozen=True)
class Spoken:
    """A sentence, its language, and the pairs of words that decide the split."""

    text: str
    language: str
    pairs: frozenset[str]


def everyday_sentences(split: Split, seed: int = 0) -> Iterator[Spoken]:
    """Endless sentences of one split, the languages in turn; deterministic in the arguments."""
    rng = Random(f"everyday {split} {seed}")
    worlds = _other_worlds(split, seed)
    for language in cycle(LANGUAGES):
        if language in worlds and rng.random() < _OTHER_WORLD_SHARE:
            yield Spoken(next(worlds[language]), language, frozenset())
            continue
        drawn = _draw(rng, language)
        while _split_of(drawn) != split:
            drawn = _draw(rng, language)
        yield drawn


def unrelated_sentences() -> list[Spoken]:
    """Every sentence of `UNRELATED`."""
    return [
        Spoken(sentence + ".", language, frozenset())
        for language, text in UNRELATED.items()
        for sentence in " ".join(text.split()).removesuffix(".").split(". ")
    ]


def typed(text: str, rng: Random) -> str:
    """As users type: mostly as it is, else in lower or upper case, without marks or accents."""
    roll = rng.random()
    if roll < 0.2:
        text = text.lower()
    elif roll < 0.23:
        text = text.upper()
    if rng.random() < 0.2:
        text = text.strip(".?!¿ ")
    if rng.random() < 0.08:
        apart = unicodedata.normalize("NFD", text)
        text = "".join(mark for mark in apart if not unicodedata.combining(mark))
    return text


def _split_of(spoken: Spoken) -> Split:
    if any(bucket(pair, PAIR_SHARE) == 0 for pair in spoken.pairs):
        return "compositional"
    return "held_out" if bucket(spoken.text.lower(), SENTENCE_SHARE) == 0 else "train"


def _draw(rng: Random, language: str) -> Spoken:
    words = WORDS[language]
    field = "said" if rng.random() < _FIXED_SHARE else "patterns"
    pattern = rng.choice(words.entries(field))
    chosen = {slot: rng.choice(words.entries(slot)) for slot in _SLOT.findall(pattern)}
    text = pattern.format(**chosen)
    text = text[0].upper() + text[1:]
    did = chosen.get("did")
    others = [chosen[slot] for slot in ("who", "what") if did and slot in chosen]
    pairs = frozenset(f"{language}|{did}|{other}" for other in others)
    return Spoken(text if text[-1] in "?!" else text + ".", language, pairs)


def _other_worlds(split: Split, seed: int) -> dict[str, Iterator[str]]:
    """Sentences of the translators' worlds in three of the languages."""
    return {
        "en": (pair.english for pair in grammar.sentences(split, sys.maxsize, seed)),
        "es": (pair.spanish for pair in grammar.sentences(split, sys.maxsize, seed + 1)),
        "fr": (pair.target for pair in gazette.sentences(split, sys.maxsize, seed)),
    }
