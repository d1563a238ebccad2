"""The words of the example world's two languages, each Spanish word with its one English rendering.

The tables are data: one entry per `;`, grouped by kind. Restrictions by kind (what can be
eaten, what has a colour) keep generated sentences sensible. Inflection is in `spanish` and
`english`.
"""

from dataclasses import dataclass
from typing import Literal

Gender = Literal["m", "f"]
Countability = Literal["count", "mass", "unique"]


@dataclass(frozen=True)
class Noun:
    """A noun pair; `preposition` is the English one for a place ("on the table")."""

    spanish: str
    english: str
    gender: Gender
    kind: str
    countability: Countability = "count"
    spanish_plural: str | None = None
    english_plural: str | None = None
    preposition: str = "in"


@dataclass(frozen=True)
class Adjective:
    """An adjective pair, the kinds of noun it fits, and the copula it takes as a predicate."""

    spanish: str
    english: str
    kinds: frozenset[str]
    copula: Literal["ser", "estar"] = "ser"
    is_attributive: bool = True


@dataclass(frozen=True)
class Verb:
    """A verb pair. `frame` names its complement, `kinds` the kinds of its object or goal.

    `english` holds the base form and, where they are irregular, past, participle and -ing form.
    """

    spanish: str
    english: tuple[str, ...]
    frame: Literal["object", "alone", "goal", "name"]
    kinds: tuple[str, ...] = ()
    spanish_link: str = ""
    english_link: str = ""


# Kind -> "spanish gender english[/english plural][@preposition]".
_COUNT_NOUNS = {
    "person": """hombre m man/men; mujer f woman/women; niño m boy; niña f girl; médico m doctor;
        profesor m teacher; profesora f teacher; estudiante m student; amigo m friend;
        amiga f friend; vecino m neighbor; vecina f neighbor; camarero m waiter;
        cocinero m cook; artista m artist; ingeniera f engineer; abogado m lawyer; jefe m boss;
        enfermera f nurse; turista m tourist; pintor m painter; rey m king; reina f queen;
        hermano m brother; hermana f sister; padre m father/parents; madre f mother; hijo m son;
        hija f daughter; abuelo m grandfather/grandparents; abuela f grandmother;
        primo m cousin; tío m uncle; tía f aunt""",
    "animal": """gato m cat; perro m dog; caballo m horse; pájaro m bird; vaca f cow;
        oveja f sheep/sheep; ratón m mouse/mice; león m lion; tigre m tiger; oso m bear;
        conejo m rabbit; gallina f hen; pato m duck; mono m monkey; elefante m elephant;
        mariposa f butterfly; cerdo m pig; lobo m wolf/wolves; zorro m fox""",
    "food": """manzana f apple; naranja f orange; plátano m banana; huevo m egg; tomate m tomato;
        patata f potato; galleta f cookie; pastel m cake; bocadillo m sandwich; limón m lemon;
        pera f pear; fresa f strawberry; zanahoria f carrot; ensalada f salad; sopa f soup""",
    "text": """libro m book; carta f letter; periódico m newspaper; revista f magazine;
        novela f novel; poema m poem; mensaje m message; informe m report;
        diccionario m dictionary""",
    "thing": """mesa f table@on; silla f chair@on; lámpara f lamp; reloj m clock; llave f key;
        teléfono m phone; ordenador m computer; cámara f camera; bolsa f bag; caja f box/boxes;
        cuchillo m knife/knives; cuchara f spoon; tenedor m fork; plato m plate@on;
        vaso m glass/glasses; botella f bottle; espejo m mirror; cuadro m painting; regalo m gift;
        juguete m toy; pelota f ball; flor f flower; piedra f stone; billete m ticket;
        maleta f suitcase; foto f photo; mapa m map; lápiz m pencil; cuaderno m notebook;
        cama f bed""",
    "clothes": """camisa f shirt; falda f skirt; vestido m dress/dresses; abrigo m coat;
        sombrero m hat; zapato m shoe; chaqueta f jacket""",
    "vehicle": """coche m car; bicicleta f bicycle@on; tren m train@on; autobús m bus/buses@on;
        barco m boat@on; avión m plane@on; camión m truck; moto f motorcycle@on""",
    "place": """casa f house; cocina f kitchen; jardín m garden; ciudad f city; pueblo m village;
        parque m park; escuela f school@at; hospital m hospital; museo m museum; tienda f shop;
        mercado m market@at; restaurante m restaurant; hotel m hotel; biblioteca f library;
        oficina f office; plaza f square; playa f beach/beaches@on; bosque m forest;
        río m river; isla f island@on; estación f station@at; aeropuerto m airport@at;
        iglesia f church/churches; teatro m theater; puente m bridge@on; granja f farm@on;
        universidad f university@at; banco m bank; castillo m castle; habitación f room""",
    "opening": "puerta f door; ventana f window",
    "instrument": "guitarra f guitar; piano m piano; violín m violin; flauta f flute",
    "song": "canción f song",
    "film": "película f movie",
    "idea": """problema m problem; idea f idea; pregunta f question; respuesta f answer;
        examen m exam; viaje m trip; trabajo m job; lección f lesson; plan m plan;
        precio m price""",
}
_MASS_NOUNS = {
    "food": """comida f food; pan m bread; carne f meat; arroz m rice; queso m cheese;
        pescado m fish; pollo m chicken; miel f honey; chocolate m chocolate; fruta f fruit""",
    "drink": """agua f water; leche f milk; café m coffee; té m tea; vino m wine;
        cerveza f beer; zumo m juice; limonada f lemonade""",
    "subject": """español m Spanish; inglés m English; francés m French; música f music;
        historia f history; química f chemistry; física f physics""",
    "sport": "fútbol m football; tenis m tennis; baloncesto m basketball; ajedrez m chess",
    "means": "dinero m money; ropa f clothing; ayuda f help",
}
_UNIQUE_NOUNS = {"world": "mundo m world; vida f life; sol m sun; cielo m sky; luna f moon"}

# Kinds of noun -> "spanish english"; a trailing + marks the kinds' adjectives as predicates only.
_SER_ADJECTIVES = {
    "animal thing clothes vehicle opening place": """rojo red; negro black; blanco white;
        verde green; azul blue; amarillo yellow; gris gray; marrón brown""",
    "animal food thing clothes vehicle place opening text idea world": """grande big;
        pequeño small""",
    "person animal food drink text thing clothes vehicle place film song idea world": """bueno good;
        malo bad; extraño strange; perfecto perfect""",
    "thing clothes vehicle place text film song instrument idea": """nuevo new; caro expensive;
        barato cheap; moderno modern; viejo old; especial special""",
    "animal place clothes thing world song": "bonito pretty; feo ugly; increíble incredible",
    "text film song idea": """interesante interesting; aburrido boring; importante important;
        difícil difficult; fácil easy; largo long; corto short; útil useful""",
    "person place text film song": "famoso famous",
    "place vehicle animal": "peligroso dangerous; tranquilo quiet; seguro safe",
    "thing vehicle": "pesado heavy; ligero light; redondo round",
    "person": """joven young; alto tall; bajo short; inteligente intelligent; simpático nice;
        rico rich; pobre poor; amable kind; rubio blond; trabajador hardworking; serio serious;
        divertido funny; tímido shy; valiente brave; honesto honest; español Spanish""",
    "animal person": "fuerte strong; rápido fast; lento slow",
    "food drink": """dulce sweet; fresco fresh; delicioso delicious; salado salty;
        amargo bitter""",
    "food drink means world idea+": "suficiente enough; necesario necessary",
}
_ESTAR_ADJECTIVES = {
    "person+": """cansado tired; contento happy; triste sad; enfermo sick; ocupado busy;
        enojado angry; preocupado worried; solo alone; listo ready; nervioso nervous""",
    "opening place": "abierto open; cerrado closed",
    "thing clothes vehicle place opening": "limpio clean; sucio dirty",
    "food drink": "frío cold; caliente hot",
    "thing instrument opening": "roto broken",
}

# Object kinds -> "spanish english [past participle [ing]]"; `_` joins the words of one form.
_OBJECT_VERBS = {
    "food": "comer eat ate eaten; cocinar cook; cortar cut cut cut cutting",
    "food drink": """preparar prepare; probar taste; pedir order; servir serve; traer bring
        brought brought""",
    "drink": "beber drink drank drunk",
    "food drink text thing clothes vehicle instrument": """comprar buy bought bought;
        vender sell sold sold; querer want; llevar carry""",
    "text thing clothes vehicle means food": "necesitar need",
    "text": "leer read read read; escribir write wrote written",
    "text thing clothes": "enviar send sent sent; recibir receive",
    "text thing clothes instrument": """perder lose lost lost; encontrar find found found;
        buscar look_for looked_for looked_for looking_for""",
    "thing instrument clothes": "usar use; olvidar forget forgot forgotten forgetting",
    "thing": "romper break broke broken",
    "opening thing": "limpiar clean",
    "opening": "abrir open; cerrar close",
    "clothes vehicle": "lavar wash",
    "person animal": "amar love; dibujar draw drew drawn",
    "person animal place film": "ver see saw seen",
    "person": """ayudar help; llamar call; esperar wait_for waited_for waited_for waiting_for;
        escuchar listen_to listened_to listened_to listening_to""",
    "person place": "visitar visit; conocer know knew known; recordar remember",
    "place opening": "pintar paint; construir build built built",
    "subject": "estudiar study; aprender learn; enseñar teach taught taught",
    "song": "cantar sing sang sung",
    "food drink text thing clothes vehicle instrument animal means idea opening": """tener have
        had had""",
}
_LONE_VERBS = """dormir sleep slept slept; trabajar work; nadar swim swam swum swimming; llorar cry;
    bailar dance; vivir live; descansar rest; esperar wait; cocinar cook; cantar sing sang sung"""
_GOAL_VERBS = """ir go went gone; viajar travel traveled traveled traveling; volver return;
    correr run ran run running; caminar walk"""

_NAMES = """Ana f; Juan m; María f; Carlos m; Pedro m; Elena f; Lucía f; Miguel m; Sofía f; Pablo m;
    Laura f; Diego m; Carmen f; Luis m"""
_CITIES = """Madrid Madrid; Barcelona Barcelona; Sevilla Seville; Londres London; París Paris;
    Roma Rome; España Spain; Francia France; Italia Italy; Lisboa Lisbon; México Mexico;
    Japón Japan"""
_NUMBERS = """dos two; tres three; cuatro four; cinco five; seis six; siete seven; ocho eight;
    nueve nine; diez ten; once eleven; doce twelve; trece thirteen; catorce fourteen;
    quince fifteen; dieciséis sixteen; diecisiete seventeen; dieciocho eighteen;
    diecinueve nineteen; veinte twenty; treinta thirty; cuarenta forty; cincuenta fifty"""


def _entries(table: str) -> list[list[str]]:
    return [entry.split() for entry in table.split(";")]


def _noun(fields: list[str], kind: str, countability: Countability) -> Noun:
    spanish, gender, english = fields
    english, _, preposition = english.partition("@")
    english, _, plural = english.partition("/")
    return Noun(
        spanish,
        english,
        "m" if gender == "m" else "f",
        kind,
        countability,
        spanish_plural="exámenes" if spanish == "examen" else None,
        english_plural=plural or None,
        preposition=preposition or "in",
    )


def _nouns() -> tuple[Noun, ...]:
    tables: list[tuple[dict[str, str], Countability]] = [
        (_COUNT_NOUNS, "count"),
        (_MASS_NOUNS, "mass"),
        (_UNIQUE_NOUNS, "unique"),
    ]
    return tuple(
        _noun(fields, kind, countability)
        for table, countability in tables
        for kind, text in table.items()
        for fields in _entries(text)
    )


def _adjectives() -> tuple[Adjective, ...]:
    tables: list[tuple[dict[str, str], Literal["ser", "estar"]]] = [
        (_SER_ADJECTIVES, "ser"),
        (_ESTAR_ADJECTIVES, "estar"),
    ]
    return tuple(
        Adjective(spanish, english, frozenset(kinds.rstrip("+").split()), copula, kinds[-1] != "+")
        for table, copula in tables
        for kinds, text in table.items()
        for spanish, english in _entries(text)
    )


def _forms(words: list[str]) -> tuple[str, ...]:
    return tuple(word.replace("_", " ") for word in words)


def _verbs() -> tuple[Verb, ...]:
    objects = [
        Verb(spanish, _forms(english), "object", tuple(kinds.split()))
        for kinds, text in _OBJECT_VERBS.items()
        for spanish, *english in _entries(text)
    ]
    lone = [Verb(spanish, _forms(english), "alone") for spanish, *english in _entries(_LONE_VERBS)]
    goal = [
        Verb(spanish, _forms(english), "goal", ("place",), "a", "to")
        for spanish, *english in _entries(_GOAL_VERBS)
    ]
    special = [
        Verb("tocar", ("play",), "object", ("instrument",)),
        Verb("jugar", ("play",), "name", ("sport",), "al"),
        Verb("hablar", ("speak", "spoke", "spoken"), "name", ("subject",)),
    ]
    return (*objects, *lone, *goal, *special)


NOUNS = _nouns()
ADJECTIVES = _adjectives()
VERBS = _verbs()
NAMES: tuple[tuple[str, Gender], ...] = tuple(
    (name, "m" if gender == "m" else "f") for name, gender in _entries(_NAMES)
)
CITIES = tuple((spanish, english) for spanish, english in _entries(_CITIES))
NUMBERS = tuple((spanish, english) for spanish, english in _entries(_NUMBERS))
