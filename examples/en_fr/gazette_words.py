"""The words of an official gazette, each English word with its one French rendering.

The tables are data like those of `lexicon`: one entry per `;`, grouped by kind. Kinds (document,
body, person, topic) keep the sentences sensible; inflection lives in `english` and `french`.
"""

from dataclasses import dataclass
from typing import Literal, cast

from examples.texts.lexicon import Gender

Kind = Literal["document", "body", "person", "topic"]
Position = Literal["outer", "origin", "type", "before"]


@dataclass(frozen=True)
class GazetteNoun:
    """A noun pair. Uncountable ones have no article in English."""

    english: str
    french: str
    gender: Gender
    kind: Kind
    is_uncountable: bool = False


@dataclass(frozen=True)
class GazetteAdjective:
    """An adjective pair and its place among others.

    English: before, outer, origin, type, noun. French: before, noun, type, origin, outer.
    """

    english: str
    french: str
    position: Position
    is_of_documents: bool = False
    """Whether it fits documents only: detailed, long."""


@dataclass(frozen=True)
class GazetteVerb:
    """A verb pair and the kinds of its object.

    `english` holds the base form and, where irregular, past and participle.
    """

    english: tuple[str, ...]
    infinitive: str
    participle: str
    future_stem: str
    kinds: frozenset[Kind]


# Kind -> "english french gender"; a trailing * marks nouns without an article in English.
_NOUNS: dict[Kind, str] = {
    "document": """agreement accord m; treaty traité m; contract contrat m; report rapport m;
        convention convention f; law loi f; decision décision f; project projet m; plan plan m;
        budget budget m; letter lettre f; declaration déclaration f; proposal proposition f;
        resolution résolution f; program programme m; reform réforme f; document document m;
        protocol protocole m; study étude f; recommendation recommandation f;
        directive directive f; strategy stratégie f; text texte m; charter charte f;
        amendment amendement m""",
    "body": """area zone f; community communauté f; union union f; commission commission f;
        council conseil m; bank banque f; court cour f; agency agence f; fund fonds m;
        market marché m; institute institut m; parliament parlement m; committee comité m;
        organization organisation f; university université f; association association f;
        assembly assemblée f; network réseau m; school école f; hospital hôpital m;
        center centre m; ministry ministère m; company société f; system système m""",
    "person": """minister ministre m; president président m; ambassador ambassadeur m;
        delegate délégué m; expert expert m; engineer ingénieur m; director directeur m;
        lawyer avocat m; member membre m; judge juge m; secretary secrétaire m;
        adviser conseiller m; observer observateur m; negotiator négociateur m;
        official fonctionnaire m; researcher chercheur m; representative représentant m""",
    "topic": """economy économie f; environment environnement m; industry industrie f;
        currency monnaie f; policy politique f; trade commerce m *; energy énergie f *;
        agriculture agriculture f *; education éducation f *; culture culture f *;
        transport transport m *; research recherche f *; security sécurité f *; health santé f *;
        defense défense f *; cooperation coopération f *; integration intégration f *;
        growth croissance f *""",
}
# Adjectives that English capitalizes wherever they stand are written so; a trailing * marks those
# of documents only.
_ADJECTIVES: dict[Position, str] = {
    "origin": """European européen; American américain; international international;
        national national; French français; German allemand; Spanish espagnol; Italian italien;
        African africain; Asian asiatique; regional régional; local local; British britannique;
        Canadian canadien; Mediterranean méditerranéen; global mondial; federal fédéral;
        Nordic nordique; Japanese japonais; Swiss suisse; Belgian belge; Greek grec;
        Polish polonais""",
    "type": """economic économique; monetary monétaire; political politique; military militaire;
        scientific scientifique; technical technique; agricultural agricole;
        industrial industriel; commercial commercial; cultural culturel; legal juridique;
        financial financier; social social; medical médical; central central; public public;
        environmental environnemental; constitutional constitutionnel; fiscal fiscal;
        nuclear nucléaire; maritime maritime; electoral électoral; historical historique;
        private privé""",
    "outer": """important important; secret secret; complex complexe *; recent récent *;
        controversial controversé; necessary nécessaire; difficult difficile; useful utile;
        detailed détaillé *; independent indépendant; provisional provisoire; official officiel;
        confidential confidentiel *; ambitious ambitieux; temporary temporaire;
        definitive définitif *; modern moderne; dangerous dangereux""",
    "before": """new nouveau; former ancien; first premier; second deuxième; last dernier;
        long long *; good bon; great grand""",
}
# Kinds of the object -> "english french", irregular forms after a slash:
# "base/past/participle infinitive/participle/future stem".
_VERBS = {
    "document": """sign signer; publish publier; approve approuver; adopt adopter;
        reject rejeter/rejeté/rejetter; present présenter; negotiate négocier; prepare préparer;
        announce annoncer; ratify ratifier; accept accepter; modify modifier;
        translate traduire/traduit/traduir; write/wrote/written écrire/écrit/écrir;
        send/sent/sent envoyer/envoyé/enverr; read/read/read lire/lu/lir;
        conclude conclure/conclu/conclur; defend défendre/défendu/défendr; examine examiner;
        cancel/canceled/canceled annuler; propose proposer; complete compléter""",
    "document topic": "discuss discuter; study étudier",
    "document body topic": "finance financer; support soutenir/soutenu/soutiendr",
    "document body person": "criticize critiquer",
    "document person": "receive recevoir/reçu/recevr",
    "body": """create créer; found fonder; visit visiter; inaugurate inaugurer;
        reorganize réorganiser; inspect inspecter; close fermer""",
    "body topic": """reform réformer; strengthen renforcer; protect protéger; transform transformer;
        develop développer; encourage encourager; improve améliorer""",
    "body person": "consult consulter",
    "person": """elect élire/élu/élir; appoint nommer; invite inviter; congratulate féliciter;
        hear/heard/heard entendre/entendu/entendr; thank remercier""",
}
_MONTHS = """January janvier; February février; March mars; April avril; May mai; June juin;
    July juillet; August août; September septembre; October octobre; November novembre;
    December décembre"""
_DAYS = """Monday lundi; Tuesday mardi; Wednesday mercredi; Thursday jeudi; Friday vendredi;
    Saturday samedi; Sunday dimanche"""
_CITIES = """Paris Paris; Brussels Bruxelles; London Londres; Geneva Genève; Rome Rome;
    Vienna Vienne; Athens Athènes; Lisbon Lisbonne; Madrid Madrid; Berlin Berlin;
    Stockholm Stockholm; Copenhagen Copenhague; Warsaw Varsovie; Strasbourg Strasbourg;
    Montreal Montréal; Tokyo Tokyo; Oslo Oslo; Helsinki Helsinki; Maastricht Maastricht;
    Porto Porto"""
_COUNTRIES = """France France f; Germany Allemagne f; Italy Italie f; Spain Espagne f;
    Portugal Portugal m; Japan Japon m; Canada Canada m; Greece Grèce f; Poland Pologne f;
    Norway Norvège f; Sweden Suède f; Finland Finlande f; Switzerland Suisse f; Austria Autriche f;
    Belgium Belgique f; Denmark Danemark m"""
_NUMBERS = """two deux; three trois; four quatre; five cinq; six six; seven sept; nine neuf;
    ten dix"""


def _entries(table: str) -> list[list[str]]:
    return [entry.split() for entry in table.split(";")]


def _nouns() -> tuple[GazetteNoun, ...]:
    return tuple(
        GazetteNoun(english, french, "f" if gender == "f" else "m", kind, bool(mark))
        for kind, table in _NOUNS.items()
        for english, french, gender, *mark in _entries(table)
    )


def _verbs() -> tuple[GazetteVerb, ...]:
    made = []
    for kinds, table in _VERBS.items():
        for theirs, ours in _entries(table):
            infinitive, *irregular = ours.split("/")
            participle, stem = irregular or (infinitive[:-2] + "é", infinitive)
            english = tuple(theirs.split("/"))
            made.append(
                GazetteVerb(
                    english,
                    infinitive,
                    participle,
                    stem,
                    frozenset(cast(list[Kind], kinds.split())),
                )
            )
    return tuple(made)


def _two(table: str) -> tuple[tuple[str, str], ...]:
    return tuple((english, french) for english, french in _entries(table))


NOUNS = _nouns()
ADJECTIVES = tuple(
    GazetteAdjective(english, french, position, bool(mark))
    for position, table in _ADJECTIVES.items()
    for english, french, *mark in _entries(table)
)
VERBS = _verbs()
MONTHS, DAYS, CITIES, NUMBERS = map(_two, (_MONTHS, _DAYS, _CITIES, _NUMBERS))
COUNTRIES = tuple(
    GazetteNoun(english, french, "f" if gender == "f" else "m", "topic", is_uncountable=True)
    for english, french, gender in _entries(_COUNTRIES)
)
