"""Spanish inflection: number and gender agreement, contractions, and the tenses the grammar uses.

Persons are numbered yo 0, tú 1, él/ella 2, nosotros 3, ellos/ustedes 4.
"""

import re
from functools import cache

from examples.texts.lexicon import Gender

_UNACCENTED = str.maketrans("áéíóú", "aeiou")

_ENDINGS = {
    "present": {"ar": "o as a amos an", "er": "o es e emos en", "ir": "o es e imos en"},
    "preterite": {
        "ar": "é aste ó amos aron",
        "er": "í iste ió imos ieron",
        "ir": "í iste ió imos ieron",
    },
}
_FUTURE_ENDINGS = "é ás á emos án".split()

# Only what the rules below would get wrong; a future entry is the stem the endings join.
_IRREGULAR: dict[str, dict[str, str]] = {
    "ser": {
        "present": "soy eres es somos son",
        "preterite": "fui fuiste fue fuimos fueron",
        "imperfect": "era eras era éramos eran",
    },
    "estar": {
        "present": "estoy estás está estamos están",
        "preterite": "estuve estuviste estuvo estuvimos estuvieron",
        "imperfect": "estaba estabas estaba estábamos estaban",
    },
    "ir": {
        "present": "voy vas va vamos van",
        "preterite": "fui fuiste fue fuimos fueron",
        "gerund": "yendo",
    },
    "haber": {"present": "he has ha hemos han"},
    "tener": {
        "present": "tengo tienes tiene tenemos tienen",
        "preterite": "tuve tuviste tuvo tuvimos tuvieron",
        "imperfect": "tenía tenías tenía teníamos tenían",
        "future": "tendr",
    },
    "querer": {
        "present": "quiero quieres quiere queremos quieren",
        "preterite": "quise quisiste quiso quisimos quisieron",
        "future": "querr",
    },
    "poder": {"present": "puedo puedes puede podemos pueden"},
    "traer": {
        "present": "traigo traes trae traemos traen",
        "preterite": "traje trajiste trajo trajimos trajeron",
        "participle": "traído",
        "gerund": "trayendo",
    },
    "ver": {
        "present": "veo ves ve vemos ven",
        "preterite": "vi viste vio vimos vieron",
        "participle": "visto",
    },
    "leer": {
        "preterite": "leí leíste leyó leímos leyeron",
        "participle": "leído",
        "gerund": "leyendo",
    },
    "construir": {
        "present": "construyo construyes construye construimos construyen",
        "preterite": "construí construiste construyó construimos construyeron",
        "gerund": "construyendo",
    },
    "conocer": {"present": "conozco conoces conoce conocemos conocen"},
    "enviar": {"present": "envío envías envía enviamos envían"},
    "dormir": {
        "present": "duermo duermes duerme dormimos duermen",
        "preterite": "dormí dormiste durmió dormimos durmieron",
        "gerund": "durmiendo",
    },
    "pedir": {
        "present": "pido pides pide pedimos piden",
        "preterite": "pedí pediste pidió pedimos pidieron",
        "gerund": "pidiendo",
    },
    "servir": {
        "present": "sirvo sirves sirve servimos sirven",
        "preterite": "serví serviste sirvió servimos sirvieron",
        "gerund": "sirviendo",
    },
    "probar": {"present": "pruebo pruebas prueba probamos prueban"},
    "encontrar": {"present": "encuentro encuentras encuentra encontramos encuentran"},
    "recordar": {"present": "recuerdo recuerdas recuerda recordamos recuerdan"},
    "jugar": {"present": "juego juegas juega jugamos juegan"},
    "cerrar": {"present": "cierro cierras cierra cerramos cierran"},
    "perder": {"present": "pierdo pierdes pierde perdemos pierden"},
    "volver": {"present": "vuelvo vuelves vuelve volvemos vuelven", "participle": "vuelto"},
    "escribir": {"participle": "escrito"},
    "abrir": {"participle": "abierto"},
    "romper": {"participle": "roto"},
}


@cache
def conjugate(infinitive: str, tense: str, person: int) -> str:
    """The simple form of a verb; `tense` is present, preterite, imperfect or future."""
    irregular = _IRREGULAR.get(infinitive, {})
    if tense == "future":
        return irregular.get("future", infinitive) + _FUTURE_ENDINGS[person]
    if tense in irregular:
        return irregular[tense].split()[person]
    stem, ending = infinitive[:-2], infinitive[-2:]
    if tense == "preterite" and person == 0 and ending == "ar":
        stem = _soften(stem)
    return stem + _ENDINGS[tense][ending].split()[person]


def _soften(stem: str) -> str:
    """The stem before an e that must not change its sound: buscar, busqué; jugar, jugué."""
    return re.sub("g$", "gu", re.sub("c$", "qu", re.sub("z$", "c", stem)))


def participle(infinitive: str) -> str:
    """The form after haber: comido, escrito."""
    regular = infinitive[:-2] + ("ado" if infinitive.endswith("ar") else "ido")
    return _IRREGULAR.get(infinitive, {}).get("participle", regular)


def gerund(infinitive: str) -> str:
    """The form after estar: comiendo, leyendo."""
    regular = infinitive[:-2] + ("ando" if infinitive.endswith("ar") else "iendo")
    return _IRREGULAR.get(infinitive, {}).get("gerund", regular)


def verb_group(infinitive: str, tense: str, person: int) -> str:
    """A verb in any of the grammar's tenses, several words long where Spanish has several."""
    auxiliaries = {
        "near future": ("ir", "present", f"a {infinitive}"),
        "progressive": ("estar", "present", gerund(infinitive)),
        "past progressive": ("estar", "imperfect", gerund(infinitive)),
        "perfect": ("haber", "present", participle(infinitive)),
        "can": ("poder", "present", infinitive),
        "must": ("deber", "present", infinitive),
        "want": ("querer", "present", infinitive),
        "have to": ("tener", "present", f"que {infinitive}"),
    }
    if tense not in auxiliaries:
        return conjugate(infinitive, tense, person)
    auxiliary, simple, rest = auxiliaries[tense]
    return f"{conjugate(auxiliary, simple, person)} {rest}"


def plural(word: str) -> str:
    """The plural of a noun or adjective: gato, gatos; león, leones; lápiz, lápices."""
    if word[-1] in "aeiouéáó":
        return word + "s"
    if word.endswith("z"):
        return word[:-1] + "ces"
    if word == "joven":
        return "jóvenes"
    if re.search("[áéíóú][ns]$", word):
        word = word[:-2] + word[-2:].translate(_UNACCENTED)
    return word + "es"


def agree(adjective: str, gender: Gender, is_plural: bool) -> str:
    """An adjective, or a determiner that inflects like one, that agrees with its noun."""
    if gender == "f" and adjective.endswith("o"):
        adjective = adjective[:-1] + "a"
    elif gender == "f" and adjective in ("español", "trabajador"):
        adjective += "a"
    return plural(adjective) if is_plural else adjective


def contract(text: str) -> str:
    """The text with a + el and de + el as Spanish writes them."""
    return re.sub(r"\bde el\b", "del", re.sub(r"\ba el\b", "al", text))
