"""When things happen: time phrases in both languages, by the tense they suit."""

from random import Random

from examples.texts.phrases import Phrase

_DAYS = """lunes Monday; martes Tuesday; miércoles Wednesday; jueves Thursday; viernes Friday;
    sábado Saturday; domingo Sunday"""
_MONTHS = """enero January; abril April; mayo May; junio June; julio July; agosto August;
    octubre October; diciembre December"""
_DAY_NAMES = [entry.split() for entry in _DAYS.split(";")]
_MONTH_NAMES = [entry.split() for entry in _MONTHS.split(";")]

_PAST = [
    ("ayer", "yesterday"),
    ("anoche", "last night"),
    ("la semana pasada", "last week"),
    ("el año pasado", "last year"),
    ("hace dos días", "two days ago"),
    ("esta mañana", "this morning"),
    *((f"el {day} pasado", f"last {translation}") for day, translation in _DAY_NAMES),
]
_FUTURE = [
    ("mañana", "tomorrow"),
    ("pronto", "soon"),
    ("esta noche", "tonight"),
    ("la próxima semana", "next week"),
    ("el próximo año", "next year"),
    *((f"el {day}", f"on {translation}") for day, translation in _DAY_NAMES),
    *((f"en {month}", f"in {translation}") for month, translation in _MONTH_NAMES),
]
_PRESENT = [
    ("hoy", "today"),
    ("todos los días", "every day"),
    ("cada mañana", "every morning"),
    ("por la tarde", "in the afternoon"),
    ("por la noche", "at night"),
    ("en verano", "in summer"),
    ("en invierno", "in winter"),
]
_NOW = [("ahora", "now"), ("en este momento", "at the moment"), ("hoy", "today")]
_UNTIL_NOW = [("hoy", "today"), ("esta semana", "this week"), ("muchas veces", "many times")]
_TIMES = {
    "present": _PRESENT,
    "preterite": _PAST,
    "past progressive": _PAST,
    "imperfect": _PAST,
    "progressive": _NOW,
    "perfect": _UNTIL_NOW,
}


def when(rng: Random, tense: str) -> Phrase:
    """When, in words that suit the tense."""
    source, target = rng.choice(_TIMES.get(tense, _FUTURE))
    return Phrase(source, target)
