"""Abbreviations of each language, whose full stops end no sentence, and words that begin sentences.

Entries have no last stop and no spaces (`z.B`). Those in small letters stand for capitalised and
upper-case forms too, others for themselves alone (`Mag`, not `mag`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cache


class Abbreviation(Enum):
    """What a full stop behind an abbreviation may be; the later kinds are stronger."""

    NUMBERED = auto()
    """No end before a number: `No.`, `p.`, `Jan.`; other words are spelled like it."""
    INSIDE = auto()
    """No end, whatever follows: titles, `e.g.`."""
    FINAL = auto()
    """An end before a capital letter: `etc.`, `Inc.`."""
    MEASURE = auto()
    """Final behind a number, otherwise inside: Russian `г.` is a year there, else a town."""


@dataclass(frozen=True)
class LanguageRules:
    """What full stops of a language depend on.

    Attributes:
        abbreviations: The abbreviations.
        starters: Capitalised words that rarely occur within a sentence: an initial before one ends
            a sentence (`you and I. Did …`).
        has_ordinals: Whether a stop makes a number an ordinal (`der 2. Weltkrieg`).
        months: And other capitalised words that follow ordinals.
    """

    abbreviations: dict[str, Abbreviation]
    starters: frozenset[str]
    has_ordinals: bool = False
    months: frozenset[str] = frozenset()

    def kind(self, word: str) -> Abbreviation | None:
        """What kind of abbreviation a word is, if any."""
        return self.abbreviations.get(word) or self.abbreviations.get(word.lower())


@cache
def rules_of(language: str | None) -> LanguageRules:
    """The rules of a language; those of all together for one that is unknown or has none.

    Args:
        language: ISO 639-1 or 639-3, with or without a script or region: `de`, `deu_Latn`.
    """
    code = (language or "").lower().replace("-", "_").partition("_")[0]
    for codes, table in _TABLES.items():
        if code in codes.split():
            return LanguageRules(
                _abbreviations(table), frozenset(table.starters.split()), table.has_ordinals
            )
    return _rules_of_all()


def _abbreviations(table: _Table) -> dict[str, Abbreviation]:
    numbered, inside, final = (
        set(words.split())
        for words in (table.numbered + _NUMBERS, table.inside + _TITLES, table.final)
    )
    return {
        **dict.fromkeys(numbered, Abbreviation.NUMBERED),
        **dict.fromkeys(inside, Abbreviation.INSIDE),
        **dict.fromkeys(final, Abbreviation.FINAL),
        **dict.fromkeys(inside & final, Abbreviation.MEASURE),
    }


def _rules_of_all() -> LanguageRules:
    """The rules of all languages together; a title that is a word of another language is none."""
    found: dict[str, Abbreviation] = {}
    for kind in Abbreviation:
        for table in _TABLES.values():
            found |= {word: own for word, own in _abbreviations(table).items() if own is kind}
    found |= dict.fromkeys(_ALSO_WORDS.split(), Abbreviation.NUMBERED)
    starters = {word for table in _TABLES.values() for word in table.starters.split()}
    starters = {word for word in starters if len(word) > 1} - set(_ALSO_NAMES.split())
    return LanguageRules(found, frozenset(starters), months=frozenset(_MONTHS.split()))


@dataclass(frozen=True)
class _Table:
    inside: str = ""
    numbered: str = ""
    final: str = ""
    starters: str = ""
    has_ordinals: bool = False


_NUMBERS = " n° nº № §"
_TITLES = " Dr Mr Mrs Ms Prof St"
_CYRILLIC_UNITS = "тыс млн млрд трлн руб коп кв куб"
_TABLES: dict[str, _Table] = {
    "en eng": _Table(
        inside="""mr mrs ms mx dr prof st rev hon gen sen rep gov pres lt col capt cmdr sgt
            maj adm cpl pvt pfc supt insp messrs msgr mme mlle fr Br Sr Ste Mt Ft vs e.g
            i.e eg ie viz cf approx dept est ed eds trans bros asst assoc assn hosp univ
            intl natl govt v c ca incl attn esp resp orig abbr Ald Amb Asst Atty Det Dir
            Drs Esq Hosp Ing Ph Rt.Hon Sec Treas""",
        numbered="""no nos fig figs vol vols p pp pg ch chap chaps sec sect art arts par para pt
            eq eqs ex exh tab tbl ext tel jan feb mar apr jun jul aug sep sept oct nov
            dec op nr § l ll n ser app""",
        final="""etc am pm inc ltd co corp llc plc jr sr al ibid ave blvd rd bldg ph.d m.d
            b.a m.a b.s m.s d.c mon tue tues wed thu thur thurs fri sat sun ft lb lbs oz
            hr hrs min yd mi gal esq""",
        starters="""The He She It We They You This That These Those There Then But And However
            In On At For If When While After Before As Although Because Since So What
            Who Where Why How Did Do Does Is Are Was Were Has Have Had Can Could Will
            Would Should His Her Its Our Their My Your Yes No Not Now Here One Some Many
            Most All Each Every Both Another Such From With Without To By Or Nor Once
            Until Unless Yet Let Today Yesterday Tomorrow Meanwhile Therefore Thus
            Moreover Furthermore Also Perhaps Please Being More Only Even Just Like
            Other Others Several Still There's It's That's""",
    ),
    "de deu ger gsw nds lb ltz bar": _Table(
        inside="""dr prof hr Fr frl dipl ing dipl.-ing mag Mag st hl sel jun sen med phil jur
            rer nat theol h.c dr.med geb gest verh vgl bzw z.b zb d.h dh u.a ua u.ä o.ä
            u.u i.d.r i.a i.d z.t z.z z.zt zt v.a o.g s.o s.u a.a a.a.o m.e e.v.a i.e ca
            evtl ggf ggfs gem insb insbes inkl exkl max min mind Min Max sog sogen zzgl
            abzgl bzgl bspw beisp einschl ehem eigtl entspr erw etw franz engl dt österr
            schweiz lat griech ital span russ allg bes betr bibl Bd bearb begr Ausg Aufl
            dgl dergl ders dies ebd Ebf ev kath geogr gegr gez hg hrsg Hrsg hist jew
            jährl Kap kgl Lfg lt mtl n.chr v.chr nördl südl östl westl Nachf od orig Pfr
            Präs Reg.-Bez Red Rel ret röm scil spez staatl städt stellv str svw techn
            U.- übers übl ugs urspr usf versch vorm wiss wtl zw zus ff Hptm Lt Gen Oblt
            Maj Mio Mrd Std Sek Tel Abt Anm Art.-Nr Bhf Bf Betr i.V i.A i.R i.Br a.M a.D
            m.W n.J d.J d.M u.dgl i.ü o.V p.a v.H z.H zh z.Hd c.t s.t""",
        numbered="""nr Nrn s S abs Abs art Art bd Bde kap § ziff Ziff abb Abb tab Tab fig Fn anm
            aufl Bl Str jg Jg Jh Jhd Zl Z rn Rn Rdnr lit Buchst Pos Tel Hs Wg jan feb
            mär apr jun jul aug sep sept okt nov dez""",
        final="""usw u.s.w etc co jr e.v gmbh u.v.a u.v.m u.v.a.m m.fl o.j v.d.h a.d d.j inc
            ltd tägl""",
        starters="""Der Die Das Den Dem Des Ein Eine Einen Einem Einer Er Sie Es Ich Du Wir Ihr
            Man Dann Da Dort Hier Danach Davor Dabei Damit Daher Deshalb Denn Doch Aber
            Und Oder Auch Als Am An Auf Aus Bei Bis Durch Für Im In Ins Mit Nach Nun Nur
            Ob Seit Sein Seine Ihre So Um Unter Vom Von Vor Wann Warum Was Weil Wenn Wer
            Wie Wo Zu Zum Zur Zwar Jetzt Heute Gestern Morgen Diese Dieser Dieses Diesen
            Jede Jeder Jedes Alle Alles Viele Einige Kein Keine Nicht Ja Nein Später
            Schließlich Außerdem Trotzdem Allerdings Dies Dafür Darum Darauf Daraufhin
            Ihren Seinen Meine Mein Unser Unsere Zwischen Während Über Gegen Ohne
            Sondern Jedoch Bereits Noch Immer Insgesamt Ab""",
        has_ordinals=True,
    ),
    "fr fra fre wa wln": _Table(
        inside="""m mm mme mmes mlle mlles mr dr drs pr prof me mes mgr st ste sts stes cf
            p.ex ex par.ex env av apr av.j.-c c.-à-d c.à.d càd ca éd edr boul bd chap
            coll dir fém masc sing plur gén gal lieut col cdt cap cne sgt adj resp suppl
            trad vs i.e e.g n.b n.d.l.r n.d.t dép dpt arr fg rte min max approx s.e s.m
            s.a.r ss ll art tél loc.cit op.cit voy anc auj introd préf présid sec litt
            fig abrév compl ext hab inf sup""",
        numbered="""no nos n nº p pp pg fig art al vol t chap sect tab ch § janv jan févr fév
            mars avr juil août sept oct nov déc réf tél bât app""",
        final="etc s.a s.a.r.l inc ltd co jr cie ibid",
        starters="""Il Elle Ils Elles On Nous Vous Je Tu Ce Cet Cette Ces Les Un Une Des Mais Et
            Ou Où Donc Or Car Puis Alors Ensuite Dans En Sur Sous Avec Sans Pour Par
            Depuis Pendant Après Avant Quand Lorsque Comme Si Son Sa Ses Leur Leurs Mon
            Ma Mes Notre Votre Que Qui Quel Quelle Quoi Pourquoi Comment Cela Ça Ceci
            Aujourd Hier Demain Oui Non Ainsi Aussi Cependant Pourtant Toutefois Enfin
            Chaque Tout Tous Toute Toutes Plusieurs Certains C L D J N S Qu""",
    ),
    "es spa ast gl glg arg an": _Table(
        inside="""sr sra srta sres sras srtas dr dra dres d dña don st sto sta fr mons gral
            cnel tte cap lic ing arq prof profa mtro mtra pdte pdta ud uds vd vds p.ej
            ej i.e e.g cf cfr aprox máx mín min max vs avda av c ctra pza pl pº ee rr ff
            aa dpto depto admón art arts núm núms izq izqda dcha tel tfno tlf tl ext fig
            figs ed eds coord trad comp dir rev ex excmo excma ilmo ilma hno hna hnos
            rvdo rvda ss sgte sgtes a.c d.c ca gob prov mts km kg cm mm kms kgs hrs hr
            hs lb lbs gr grs lts lt seg segs mins ptas pts cts vid v.gr admin asoc atte
            afmo bco dcto descto dicc esc fca fdo gdor imp incl inst lcdo ltdo nal ntra
            ntro ob obs pág párr ppal pral q.e.p.d ref reg remte s.m s.s subt sucs suc
            supl tít univ""",
        numbered="""no n nº n.º nro nros núm pág págs p pp art cap vol t fig tab § col lám ap
            apdo apto piso lun mié jue vie sáb ene feb mar abr may jun jul ago sep sept
            set oct nov dic km""",
        final="""etc a.m p.m cía s.a s.l s.r.l ltda inc ltd co corp jr uu ee.uu rr.hh ff.aa
            ee s.a.u s.c m.n""",
        starters="""El La Los Las Un Una Unos Unas Él Ella Ellos Ellas Yo Tú Usted Ustedes
            Nosotros Lo Le Les Se Me Te Nos Su Sus Mi Mis Tu Tus Este Esta Estos Estas
            Ese Esa Eso Esto Aquel Aquella Pero Y O Ni Que Quien Cuando Donde Como Si Sí
            No Ya También Además Entonces Luego Después Antes Ahora Hoy Ayer Mañana Aquí
            Allí En Con Sin Por Para Desde Hasta Sobre Entre Según Durante Tras A Al Del
            De Es Son Era Fue Hay Aunque Porque Pues Así Todo Todos Toda Todas Cada
            Muchos Algunos Otro Otra Qué Quién Cómo Cuándo Dónde Más""",
    ),
    "ca cat oc oci": _Table(
        inside="""sr sra srta srs dr dra drs prof st sta sto mn hble il·lm il·lma exc p.ex pex
            p.e ex cf vs aprox màx mín av avda c ctra pl pg dept tel fig ed eds coord
            núm pàg art cap vol ca i.e e.g a.c d.c tv km kg""",
        numbered="""no n núm pàg pàgs p pp art cap vol fig gen febr mç abr jul ag set oct nov
            des""",
        final="etc a.m p.m s.a s.l cia jr",
        starters="""El La Els Les Un Una Ell Ella Jo Tu Això Aquest Aquesta Aquests Però I O Si
            Sí No Quan On Com Què Qui Per En Amb Sense Des Fins També Després Abans Ara
            Avui Ahir""",
    ),
    "it ita sc srd fur lij lmo scn vec pms nap co": _Table(
        inside="""sig sigg sig.ra sig.na sig.re sigra signa dott dott.ssa dottssa dr prof
            prof.ssa profssa avv ing arch geom rag on onn sen cav comm gen col cap ten
            serg mons don s san egr gent spett preg ill chiar es ad.es p.es cfr cf vs ca
            circa max min all allegat art artt c.a p.v tel cell str v.le c.so p.za p.zza
            l.go via rev suppl trad ed edd a.c d.c av dir cit op.cit op loc fig figg tab
            pag pagg par paragr capp vol voll lett sez n.b q.tà sott fam ven s.ten
            ecc.za dep ps pres sost isp magg brig amm apr""",
        numbered="""n nn nr no nº num p pp pag pagg art artt cap capp c co comma fig tab vol t
            tav par § lett l d.lgs dlgs d.l d.p.r dpr reg gen genn feb febbr mar apr mag
            giu lug ago set sett ott nov dic""",
        final="ecc etc s.p.a spa s.r.l srl s.n.c s.a.s jr inc ltd co ibid segg ss a.m p.m",
        starters="""Il Lo Gli Le Un Uno Una Egli Ella Lui Lei Loro Io Tu Noi Voi Si Ci Vi Ma E
            Ed O Che Chi Cosa Come Quando Dove Perché Se Sì No Non Poi Dopo Prima Ora
            Oggi Ieri Domani Qui Là In Con Su Per Tra Fra Da Nel Nella Nei Nelle Al Alla
            Ai Alle Dal Dalla Sul Sulla Del Della Questo Questa Questi Queste Quello
            Quella Quel Suo Sua Suoi Sue Mio Mia Anche Inoltre Infine Così Tutto Tutti
            Ogni Alcuni Molti È Era Ha Sono C L Dell Nell All""",
    ),
    "pt por": _Table(
        inside="""sr sra srs sras srta sto sta dr dra drs dras d dom prof profa eng enga arq
            exmo exma ilmo ilma rev pe fr gen cel cap ten sgt maj min des dep sen gov
            pres v.exa v.ex exa p.ex ex i.e e.g cf vs aprox máx mín av r al rod est trav
            pça lg apto ap bl tel fig figs ed eds org orgs coord trad dir a.c d.c ca núm
            pág art vol depto dept adm obs ref resp séc lic adv psic""",
        numbered="""n nº n.º no nos núm num p pp pág págs art arts cap caps vol t fig figs tab §
            inc al séc km jan fev mar abr mai jun jul ago set out nov dez lote""",
        final="etc a.m p.m ltda cia s.a s/a inc ltd co jr fls eua",
        starters="""O A Os As Um Uma Ele Ela Eles Elas Eu Tu Você Vocês Nós Este Esta Esse Essa
            Isto Isso Aquele Aquela Mas E Ou Que Quem Quando Onde Como Se Sim Não Já
            Também Além Então Depois Antes Agora Hoje Ontem Amanhã Aqui Ali Em No Na Nos
            Nas Com Sem Por Para Pelo Pela Desde Até Sobre Entre Segundo Durante Ao À Do
            Da De É São Era Foi Há Embora Porque Pois Assim Tudo Todos Todas Cada Muitos
            Alguns Outro Outra Seu Sua Seus Suas Meu Minha""",
    ),
    "ro ron rum mo": _Table(
        inside="""dl dna d-na d-l dr prof univ ing conf lect av st sf sfântul gen col cpt lt
            str bd bdul b-dul nr al sos șos jud com loc mun art alin ex de.ex p.ex cf vs
            aprox max min tel fig ed vol cap pag pt î.hr d.hr î.e.n e.n c.a cca resp i.e
            op.cit dep""",
        numbered="""nr no pag p pp art alin cap vol fig tab lit ian feb mar apr iun iul aug sept
            oct nov dec bl sc et ap""",
        final="etc ș.a ş.a ș.a.m.d ş.a.m.d s.a s.r.l inc ltd a.m p.m jr",
        starters="""El Ea Ei Ele Eu Tu Noi Voi Acest Această Acesta Aceasta Aceste Dar Și Sau
            Iar Deci Apoi Dacă Când Unde Cum Ce Cine De În Din La Pe Cu Fără Pentru Prin
            După Înainte Acum Azi Ieri Mâine Aici Nu Da Un O Se Este Sunt A Au Mai""",
    ),
    "nl nld dut af afr fy fry li lim vls": _Table(
        inside="""dhr mevr mw mej hr dr drs ir ing mr prof ds em h.k sint st ste jhr jkvr bgm
            min bijv bv b.v.d d.w.z dwz d.m.v i.p.v ipv i.v.m ivm m.b.t mbt m.a.w m.i
            m.n t.a.v tav t.b.v t.g.v t.o.v tov t.z.t n.a.v naar.aanl o.a oa o.l.v o.m
            o.b.v i.h.b i.t.t i.o i.c i.s.m z.g zgn zog resp incl excl ca circa max ong
            vgl cf vs vnl vlg wrsch evt event eig ev geb gen kol kap lt sgt maj afd art
            blz bldz red uitg vert dir secr tel toel z.i z.o.z v.chr n.chr v.d h.o bijvb
            asp nl p.a p.s div hfdst aanh afb ff fam gem str bl mnr adv""",
        numbered="""nr nrs no blz bldz p pp art afb fig tab hfdst hfst deel dl vol par § jan feb
            mrt apr jun jul aug sep sept okt nov dec tel kl kap lid""",
        final="etc enz e.d e.a n.v b.v v.o.f ltd inc co jr sr a.u.b m.m s.v.p ens",
        starters="""De Het Een Hij Zij Ze Ik Jij Je Wij We Jullie Dit Dat Deze Die Er Maar En Of
            Want Dus Toen Dan Daarna Daarom Als Wanneer Waar Wat Wie Hoe Waarom In Op
            Aan Met Zonder Voor Na Bij Uit Door Over Onder Tussen Sinds Tot Om Te Nu
            Vandaag Gisteren Morgen Hier Daar Ook Nog Niet Geen Ja Nee Zijn Haar Hun
            Mijn Alle Veel Sommige Echter Bovendien 'n Sy Hy Ons Hulle""",
    ),
    "da dan no nb nn nob nno nor fo fao kl": _Table(
        inside="""hr fr frk dr prof adv ing mag cand dir kapt løjtn obl ltn gen st skt fhv
            h.k.h hkh f.eks feks f.ex fx f.o.m fom t.o.m tom t.h t.v bl.a bl bla d.v.s
            dvs d.s.s m.h.t mht p.g.a pga pt i.h.t iht i.f.m ifm i.fl.m i.s.f if ifg
            iflg ift ihht ca cirka jf jfr jvf cf vs evt inkl ekskl eks ex max maks min
            mindst kl km kgl tlf mob adr afd afs anm art bd bind bem bilag ed el etg
            excl fig fork forf før f.kr e.kr f.v.t e.v.t gl gr gns hhv henh hv red udg
            udgs udd ugtl vedr vejl vol o.g opr ovenn pers pk pkt pl pr resp s.å.s sek
            sml såk såkaldt tdl tidl tr trans td tek u.a uaf udm ult vha v v.h.a årg årh
            årl mio mia mrd kr st.meld n.å h.h.v alm ang angl ass aut bibl bto civ d.d
            d.s d.å eg egl fa fam fmd fm forb forh forts fr.o.m frem hc i.a i.e i.o int
            kbh kld kol kons kst kt lab lb lok lø m.a.o m.a.p matr medl modsv n.br ngt
            nto nuv o/m obs off omkr omtr ov p.b.v p.g.v p.m.v p.p.s p.s pag par pb phd
            polit pp prov præs puljem rad rk rom rsp""",
        numbered="""nr no s p pp side kap afsn art bd bind fig tab § stk pkt kl årg jan feb mar
            apr jun jul aug sep sept okt nov dec des tlf""",
        final="""osv etc o.l o.lign o.a m.m m.v mm mv m.fl mfl o.s.v o.s.fr inc ltd a/s jr sr
            co e.l s.u eftf ibid p.t""",
        starters="""Den Det De Han Hun Jeg Du Vi I Man En Et Ei Der Her Men Og Eller For Så Da
            Når Hvis Hvor Hva Hvad Hvem Hvordan Hvorfor På Til Med Uden Uten Fra Af Av
            Om Ved Under Over Efter Etter Før Siden Nu Nå Dette Denne Disse Hans Hennes
            Hendes Min Din Også Ikke Ja Nei Nej Som Alle Mange Noen Nogle Dermed Derfor""",
        has_ordinals=True,
    ),
    "sv swe": _Table(
        inside="""dr prof hr fr frk fil med tekn jur ing dir red kapt löjtn gen s:t s:ta s.k
            sk t.ex tex t.o.m tom fr.o.m from f.d fd f.n fn f.ö bl.a bla d.v.s dvs p.g.a
            pga m.a.o mao m.h.t i.o.m p.s ca c:a cirka jfr jmf cf vs ev eg el enl exkl
            inkl resp max min f.kr e.kr f.v.t n.b nuv ung urspr vard vol uppl utg övers
            kl tel tfn mob adr avd bil fig forts föreg föreläsn följ gm hum kap kgl kv
            lic mag milj mkr mdr ngn ngt obs omkr ord ordf p.d parl pol ref s.a s.å sekr
            sid skr st stf sv sthlm särsk t.h t.v to u.a u.å v.s vd äv ö.h""",
        numbered="""nr no s sid sida sidan p pp kap fig tab vol bd § art kl jan febr feb mars
            apr maj jun jul aug sep sept okt nov dec tel""",
        final="etc osv o.s.v m.m mm m.fl mfl o.d o.dyl dyl ab inc ltd jr sr co",
        starters="""Den Det De Han Hon Jag Du Vi Ni Man En Ett Där Här Men Och Eller För Så Då
            När Om Hur Vad Vem Varför Var På Till Med Utan Från Av Vid Under Över Efter
            Före Sedan Nu I Detta Denna Dessa Hans Hennes Min Din Också Inte Ja Nej Som
            Alla Många Några Därför Dessutom""",
    ),
    "is isl ice": _Table(
        inside="""hr fr frk dr próf sr t.d td þ.e þe m.a þ.á.m s.k f.kr e.kr u.þ.b ca sbr bls
            skv ath""",
        numbered="nr bls s kl gr mgr kafli jan feb mars apr jún júl ágú sept okt nóv des",
        final="o.s.frv o.fl m.m etc o.þ.h ehf hf",
        starters="""Hann Hún Það Þeir Þær Ég Þú Við En Og Eða Þá Þegar Ef Hvar Hvað Í Á Með Frá""",
        has_ordinals=True,
    ),
    "fi fin": _Table(
        inside="""hra rva nti dr tri prof fil maist toht lis dipl.ins ins arkkit apul ent ev
            esim em eli eKr jKr jaa ks ko k.o kk ml muk myöh mon n noin nk nyk os par pj
            po puh sd s.o ts v vars vast vrt vs vuos vt y yht yo ylim ylip ylik kapt
            kenr luutn maj ev.luutn evp ups vänr vääp alik korpr res huom mrd milj max
            min n.s so t klo engl ruots ransk saks lat ven is alk edell jälk sit siv
            esipuh toim suom kirj lyh synt kuoll ap ip ed tod näk kesk lk""",
        numbered="""nr n:o no s ss siv sivu kpl luku kuva taul § mom klo tammik helmik maalisk
            art""",
        final="jne ym yms tms etc oy oyj ky mm inc ltd jr ynnä",
        starters="""Hän He Se Ne Minä Sinä Me Te Tämä Nämä Tuo Mutta Ja Tai Sitten Kun Jos Missä
            Mikä Kuka Miksi Miten Nyt Tänään Eilen Huomenna Siellä Täällä Myös Ei Kyllä
            Niin Koska Vaikka Että On Oli""",
        has_ordinals=True,
    ),
    "et est ekk": _Table(
        inside="""hr pr prl dr prof s.t st s.o so nt n n-ö e.m.a eKr pKr u ca vt vrd vs tn pst
            mnt mag knd insen lk nn dots dir a aa sü""",
        numbered="nr no lk s § p art jaan veebr apr aug sept okt nov dets kl tel",
        final="jne jm jms jt vms etc as oü",
        starters="""Ta Tema Nad Nemad See Need Ma Mina Sa Sina Me Meie Te Aga Ja Või Siis Kui
            Kus Mis Kes Miks Kuidas Nüüd Täna Eile Ka Ei Jah On Oli""",
        has_ordinals=True,
    ),
    "lv lav lvs ltg": _Table(
        inside="""dr prof kgz k-dze piem t.i t.s t.n ti m.ē p.m.ē mūsu sal skat sk apm ap
            aptuv g inž akad red izd dz dzim mir ģen val nov pag""",
        numbered="""nr lpp lp § p pants art att tab janv febr apr jūn jūl aug sept okt nov dec
            plkst tālr""",
        final="utt u.c u.tml u.t.t etc v.tml",
        starters="""Viņš Viņa Viņi Viņas Es Tu Mēs Jūs Tas Tā Tie Šis Šī Bet Un Vai Tad Kad Ja
            Kur Kas Kā Kāpēc Tagad Šodien Vakar Arī Nē Jā Ir Bija No Pēc Ar""",
        has_ordinals=True,
    ),
    "lt lit sgs": _Table(
        inside="""p ponas dr prof doc akad inž gyd kun vysk kan šv gen plk mjr kpt ltn t.y t.p
            vad pvz žr plg apie apyt maks min dir pirm pav red sud vert lot angl vok
            pranc rus lenk g al pr a pl r raj apskr m.e pr.kr po.kr liet mok str tūkst
            mln mlrd""",
        numbered="nr p psl pusl § str d t pav lent sk sausio vas tel val",
        final="ir.t.t t.t ir.pan pan kt etc uab",
        starters="""Jis Ji Jie Jos Aš Tu Mes Jūs Tai Tas Ta Šis Ši Bet Ir Ar O Tada Kai Jei Kur
            Kas Kaip Kodėl Dabar Šiandien Vakar Taip Ne Yra Buvo Po Su""",
        has_ordinals=True,
    ),
    "pl pol szl csb": _Table(
        inside="""p pp prof dr hab mgr inż lek doc red ks bp abp kard św śp gen płk ppłk mjr
            kpt por sierż tj tzn tzw np m.in min ul al pl os im pt nt ww wg wł zob cf vs
            ok max maks mies ang niem fr łac ros gr hiszp jęz tel fax kom ds tow ob zw
            tys mln mld zł woj pow gm godz nr poz rozdz rys tab ust ur zm zam śr p.n.e
            n.e r.ż b.r br ub wiek dyr prez sen posł wyd wydz oprac tłum przyp przekł
            przeł t.j ewent jw j.w dot dn pn pd wsch zach płd płn starop staropol lp
            zewn wewn adw sędz dypl""",
        numbered="""nr nry s ss str t tom r rozdz rys tab art ust pkt poz par § zał godz stycz
            lut kwiec czerw sierp wrzes paźdz listop grudz lp""",
        final="itd itp etc in i.in inn sp.z.o.o s.a s.c ltd inc jr sp.j",
        starters="""On Ona Ono Oni One Ja Ty My Wy To Ten Ta Te Ci Ale I Lub Albo Więc Potem
            Wtedy Gdy Kiedy Jeśli Gdzie Co Kto Jak Dlaczego W We Na Do Od Z Ze Po Przed
            Przy Dla O Za Pod Nad Teraz Dziś Wczoraj Jutro Tu Tam Też Nie Tak Jest Był
            Była Jego Jej Ich Mój Twój Jednak Ponadto Dlatego Czy Każdy Wszyscy""",
        has_ordinals=True,
    ),
    "cs ces cze": _Table(
        inside="""p pp pí sl dr prof doc mgr ing bc mudr judr phdr rndr mvdr paeddr csc drsc
            arch akad gen plk mjr kpt por npor sv tj tzn tzv např napr mj kupř resp
            event popř příp ap cca ca asi max min cf srov viz vs zejm zvl angl něm fr
            lat řec čes slov rus ital špan pol stol ul nám tř nábř č.p čp tel fax mob
            hod kč odst písm tab obr kap str roč red vyd překl pozn tis mil mld n.l
            př.n.l př.kr po.kr o.s vl fa s.p t.č t.r m.n.m mn.č j.č býv různ rozl pův
            přibl dtto ev""",
        numbered="""č čís str s sv roč kap odst písm obr tab § čl bod led ún břez dub květ červ
            srp září říj list pros tel""",
        final="atd atp apod aj a.s s.r.o spol.s.r.o etc inc ltd jr ml st v.o.s k.s o.p.s",
        starters="""On Ona Ono Oni Já Ty My Vy To Ten Ta Ti Tento Tato Toto Ale A I Nebo Pak
            Potom Když Kdy Pokud Jestli Kde Co Kdo Jak Proč V Ve Na Do Od Z Ze Po Před
            Při Pro O Za Pod Nad Teď Dnes Včera Zítra Tady Tam Také Ne Ano Je Byl Byla
            Jeho Její Jejich Můj Tvůj Však Proto Každý Všichni""",
        has_ordinals=True,
    ),
    "sk slk slo": _Table(
        inside="""p pán dr prof doc mgr ing bc mudr judr phdr rndr mvdr paeddr csc drsc arch
            akad gen plk mjr kpt por sv tj t.j tzn t.z tzv napr naprk príp resp event
            cca ca max min cf porov viď vs najmä zv angl nem fr lat gr čes slov rus tal
            špan poľ stor ul nám tel fax hod odst písm tab obr kap str roč red vyd prekl
            pozn tis mil mld n.l pr.n.l pr.kr po.kr o.i t.č t.r m.n.m o.z ods súkr skr
            býv pôv nár ob os""",
        numbered="""č čís str s sv roč kap ods odst písm obr tab § čl bod jan febr apr aug sept
            okt nov dec tel""",
        final="atď apod a.i a.pod a.s s.r.o spol.s.r.o etc inc ltd jr ml st n.o v.o.s",
        starters="""On Ona Ono Oni Ja Ty My Vy To Ten Tá Tí Tento Táto Toto Ale A I Alebo Potom
            Keď Kedy Ak Kde Čo Kto Ako Prečo V Vo Na Do Od Z Zo Po Pred Pri Pre O Za Pod
            Nad Teraz Dnes Včera Zajtra Tu Tam Tiež Nie Áno Je Bol Bola Jeho Jej Ich""",
        has_ordinals=True,
    ),
    "sl slv hr hrv bs bos sr srp sh hbs cnr": _Table(
        inside="""g ga gđa gdje gdč gdc dr prof mag mr ing dipl dipl.ing doc akad sv gen ppuk
            puk kap npr n.pr tj tzv t.j t.i ti oz resp cca ca pribl max maks min usp gl
            vidi v cf vs odn tzn ul trg br tel mob fax str čl ur red izd prev op pr.kr
            po.kr n.št pr.n.št p.n.e n.e o.g hrv srp engl njem nem franc lat tal rus mn
            jedn god r stol tis mil mlrd mio t.r t.im im univ spec sci mr.sc dr.sc prim
            dipl.oec predsj г др проф инж акад св ген пук нпр тј тзв ул бр тел стр ред
            изд год век в енгл нем франц рус лат цца око односно одн гђа гђица мр млн
            млрд хиљ""",
        numbered="""br št str čl st točka tč t sl tab pogl § jan feb mar apr jun jul avg kol ruj
            lis stu pro sij velj ožu tra svi lip srp бр стр чл т ст сл таб поглавље""",
        final="""itd ipd idr i.dr i.sl sl etc d.o.o d.d s.p inc ltd jr ml st итд и.др и.сл сл
            д.о.о""",
        starters="""On Ona Ono Oni Ja Jaz Ti Mi Vi To Ta Te Ovaj Ova Ovo Taj Ali A I Ili Zatim
            Potem Onda Kad Kada Ko Ako Če Gdje Kje Gde Što Kaj Šta Tko Kdo Kako Zašto
            Zakaj U V Na Do Od Iz Po Pri Za O Pod Nad Sada Zdaj Danas Danes Juče Jučer
            Včeraj Ovdje Tu Tam Također Tudi Ne Da Je Bio Bila Njegov Njezin Он Она Они
            Ја Ти Ми Ви То Та Али А И Или Затим Онда Када Ако Где Шта Ко Како Зашто У На
            До Од Из По За О Под Сада Данас Јуче Овде Такође Не Да Је""",
        has_ordinals=True,
    ),
    "hu hun": _Table(
        inside="""dr ifj id özv prof szt st gen ezr alezr őrgy szds fhdgy pl ill vö ld lsd kb
            ca max min i.e i.sz kr.e kr.u u.n ún un ui uo vmint mint tel tb tkp ti áll
            ált bp u út utca krt em fszt hrsz köz ny okl p.l számú sz tc tszf ny.t ang
            ném fr lat gör ol or szerk ford kiad jegyz köv megj megh szül ker alt""",
        numbered="""sz nr old o p köt fej ábra tábl § pont bek cikk évf jan febr márc ápr máj
            jún júl aug szept okt nov dec tel em""",
        final="stb s.t.b sat etc kft bt rt zrt nyrt inc ltd jr",
        starters="""Ő Ők Én Te Mi Ti Az A Ez Egy De És Vagy Aztán Akkor Amikor Ha Hol Ki Hogyan
            Miért Most Ma Tegnap Holnap Itt Ott Is Nem Igen Van Volt Ezért Azonban Mert
            Hogy""",
        has_ordinals=True,
    ),
    "tr tur az aze azj azb tk tuk gag crh": _Table(
        inside="""dr prof doç yrd öğr arş gör av sn bay alb gen org korg tümg tuğg yb bnb yzb
            üstğm hz müh mim op uzm ecz örn bkz bk krş yak yakl maks min m.ö m.s mö ms
            tel faks cad sok sk mah blv bul apt apart kat no md böl bşk yay haz çev der
            ed s.a a.g.e age ing alm fr ar far lat yun rus türkç t.c t.y kg cm müd gnkur
            krm ort ör şb bld dr.öğr cənab məs yəni səh dos""",
        numbered="""no nr s sf syf sayfa cilt c md madde şek tab § böl mad oca şub mar nis may
            haz tem ağu eyl eki kas ara say sayı tel səh""",
        final="vb vs vd v.b v.s a.ş ltd şti inc st jr s",
        starters="""O Onlar Ben Sen Biz Siz Bu Şu Bir Ama Ve Veya Ya Sonra Daha Eğer Nerede Ne
            Kim Nasıl Neden Niçin Şimdi Bugün Dün Yarın Burada Orada Da De Hayır Evet
            Var Çünkü Ancak Fakat İki Her""",
        has_ordinals=True,
    ),
    "el ell gre": _Table(
        inside="""κ κος κα κκ κ.κ δρ δις δίδα καθ αγ άγ π.χ πχ δηλ βλ πρβλ αρ στρ λεωφ οδ πλ
            τηλ περ ευρ εκ δισ χιλ εκδ μτφ επιμ ό.π ο.π αριθ παρ κεφ σελ σ στ τ τόμ ν.δ
            π.δ γεν ταξ λοχ υπ υπουργ χλμ γρ εκατ αγγλ γαλλ γερμ λατ ιταλ πρόεδρ ντρ μον""",
        numbered="""αρ αριθ σελ σσ σ αρθ άρθρ παρ κεφ τόμ τ πιν εικ ν ιαν φεβρ μαρτ απρ ιουν
            ιουλ αυγ σεπτ οκτ νοεμ δεκ § τηλ""",
        final="κ.λπ κλπ κ.ά κ.α κ.τ.λ κτλ κ.ο.κ π.μ μ.μ α.ε ε.π.ε ο.ε ε.ε η.π.α μ.χ υ.γ",
        starters="""Ο Η Το Οι Τα Τον Την Ένας Μία Μια Ένα Αυτός Αυτή Αυτό Εγώ Εσύ Εμείς Αλλά Και
            Ή Όμως Τότε Όταν Αν Πού Τι Ποιος Πώς Γιατί Σε Στο Στη Στην Στον Από Με Για
            Τώρα Σήμερα Χθες Αύριο Εδώ Εκεί Επίσης Δεν Όχι Ναι Είναι Ήταν Θα Να""",
    ),
    "ru rus be bel": _Table(
        inside="""г гг гр гос господ д-р проф акад доц инж канд к.м.н к.т.н д.м.н св им ген
            полк подп майор кап лейт т тов ул просп пер пл бул наб ш д кв корп стр обл
            р-н пос с дер ст-ца оз р о т.е т.к т.н т.о т.ч напр н-р ср см cм сокр сост
            ок прим примеч вкл зам нач зав секр пред дир ред изд перев рис табл тел факс
            моб макс мин англ нем фр лат греч итал исп рус укр устар разг букв т.наз наз
            соч собр до.н.э м.б с.-х ж.-д рожд ум род гл чл.-корр чл пгт ж.д яз язык тип
            тит мн ед муж жен сб кол-во г-н г-жа гр-н вул праф т.зв""",
        numbered="""№ с стр гл рис табл п пп ст ч т тт вып кн разд абз прил § янв февр мар апр
            июн июл авг сент окт ноя нояб дек тел кв д корп оф""",
        final=f"""т.д т.п др пр проч и.др и.пр и.т.д и.т.п н.э г гг в вв руб коп
            {_CYRILLIC_UNITS} ч мин сек экз чел шт см км кг л.с у.е э і.г.д і.інш інш
            ооо зао""",
        starters="""Он Она Оно Они Я Ты Мы Вы Это Этот Эта Эти Тот Та Те Но А И Или Затем Потом
            Тогда Когда Если Где Что Кто Как Почему Зачем В Во На До От Из С Со По При
            Для О Об За Под Над У К Ко Сейчас Теперь Сегодня Вчера Завтра Здесь Там Тут
            Также Не Нет Да Был Была Было Были Его Её Ее Их Мой Моя Твой Наш Ваш Однако
            Поэтому Все Всё Каждый Многие Некоторые После Перед Только Уже Ён Яна Яны
            Гэта Але Калі Дзе Што Хто""",
    ),
    "uk ukr rue": _Table(
        inside=f"""п пп пан д-р проф акад доц інж канд св ім ген полк підп майор кап лейт т тов
            вул просп пров пл бульв наб буд кв корп обл р-н м с смт сел оз р о т.з т.зв
            тобто т.к напр н-д див ср пор скор ст бл прибл прим вкл зам нач зав секр гол
            дир ред вид перекл пер рис табл тел факс моб макс мін англ нім фр лат грец
            іт ісп рос укр заст розм букв наз тв зб до.н.е нар пом рр чл.-кор арк бібл
            мн одн жін енцикл журн знач іл мист наук нац поч спец стор худ церк г-н
            {_CYRILLIC_UNITS}""",
        numbered="""№ с стор ст гл рис табл п пп ч т тт вип кн розд абз дод § січ лют берез бер
            квіт трав черв лип серп верес жовт листоп груд тел кв буд корп оф""",
        final="""т.д т.п та.ін ін і.т.д і.т.п тощо н.е р рр ст грн коп тис млн млрд год хв
            сек чол шт см км кг і.ін й.ін""",
        starters="""Він Вона Воно Вони Я Ти Ми Ви Це Цей Ця Ці Той Та Але А І Й Або Потім Тоді
            Коли Якщо Де Що Хто Як Чому В У На До Від З Із По При Для Про За Під Над
            Зараз Тепер Сьогодні Вчора Завтра Тут Там Також Не Ні Так Був Була Було Були
            Його Її Їх Мій Твій Наш Однак Тому Усі Всі Кожен Після Перед Лише""",
    ),
    "bg bul mk mkd": _Table(
        inside=f"""г г-н г-жа г-ца д-р проф акад доц инж гр св ген полк кап майор бул ул пл жк
            бл вх ет ап т.е т.нар тн напр вж срв сп прибл ок макс мин зам дир ред изд
            прев тел обл общ с р англ нем фр лат рус пр.н.е пр.хр сл.хр м.г б.р вкл заб
            рис табл фиг к.с ем хил {_CYRILLIC_UNITS} т.н.р м-р н.пр на.пр сек""",
        numbered="""№ бр с стр гл рис табл фиг чл ал т п кн § ян февр апр авг септ окт ноем дек
            тел бл вх ет ап""",
        final="т.н и.др др и.т.н т.г н.е лв ст мин сек ч г в оод еоод итн",
        starters="""Той Тя То Те Аз Ти Ние Вие Това Този Тази Тези Но А И Или После Тогава
            Когато Ако Къде Какво Кой Как Защо В Във На До От С Със По При За Под Над
            Сега Днес Вчера Утре Тук Там Също Не Да Беше Неговият Всички Обаче Затова
            Тој Таа Тоа Јас Каде Што""",
    ),
    "kk kaz ky kir tt tat ba bak mn mon khk khk uz uzb uzn tg tgk cv chv sah udm kv os oss": _Table(
        inside="""проф акад доц т б.з б.з.б б.з.д б.д м мыс мәс қ қала көш ауд обл г гг ғ ж жж
            айм р ул т.е мин макс млн млрд мың шамамен к-сы ч ш янв февр апр авг сент
            окт нояб дек қаң ақп нау сәу мам мау шіл там қыр қаз қар жел prof dots
            masalan y.y y b""",
        numbered="№ б бет с стр рис сур т п гл янв февр апр авг сент окт нояб дек",
        final="т.б т.с.с ж.б ж.б.у.с б һ.б с.ш ш.б г ғ ж в h.k va.h.k",
        starters="""Ол Олар Мен Сен Біз Сіз Бұл Ал Және Бірақ Егер Қазір Бүгін Кеше Ул Алар Бу
            Мин Син У Улар""",
    ),
    "hy hye": _Table(inside="պրոֆ թ դ ակադ պ տ տկն ս օր տես հմմտ ռուբ", final="և.այլն եվ.այլն"),
    "ka kat": _Table(
        inside="ბ-ნი ქ-ნი პროფ აკად წმ ე.ი ე.წ ქ წ თ გვ იხ ლ ძვ.წ ახ.წ", final="და.ა.შ ა.შ სხვ"
    ),
    "eu eus": _Table(
        inside="jn and jaun dr irak prof st k.a kr.a kr.o adb or zk orr ikus cf",
        numbered="zk orr or art kap",
        final="etab eta.abar abar",
        has_ordinals=True,
    ),
    "sq sqi alb als": _Table(
        inside="""z znj zj dr prof inxh ing av sh shën gjen p.sh psh d.m.th dmth rr bul lag nr
            fq tel krh p.e.s e.s sipas""",
        numbered="""nr fq f art neni kap vëll fig § jan shk mar pri maj qer korr gush shta tet
            nën dhje""",
        final="etj sh.p.k sh.a",
    ),
    "ga gle gd gla cy cym br bre gv kw": _Table(
        inside="an tUas uas dr yr ll.c h.y m.sh e.e i.e e.g o.c c.c uimh lch lgh gw sant st",
        numbered="uimh lch lgh rhif t tud td p pp",
        final="srl etc ayyb ayb a.y.y.b",
    ),
    "eo epo ia ina io ido la lat": _Table(
        inside="""s-ro s-ino d-ro prof t.e k.e ekz ek vd cf proks n-ro p-ĝo i.e e.g sc viz S
            sanct Aug""",
        numbered="n-ro n p paĝ ĉap",
        final="ktp k.t.p k.a ks k.s etc",
    ),
    "mt mlt": _Table(
        inside="dr prof onor sur sra eż pereż t.t", numbered="nru p paġ art", final="eċċ"
    ),
    "id ind ms msa zsm jv jav su sun min ace ban bjn bug": _Table(
        inside="""bpk bp sdr sdri dr drs dra prof ir h hj kh ny nn tn jl jln gg kel kec kab
            prov no tgl hlm a.n an d.a u.p u.b yth ttd a.l s.d sd mis misal m.h
            s.h s.e s.pd s.t yg tsb ttg en tuan puan dato datuk yb yab sm m""",
        numbered="""no hlm hal bab ps pasal ayat jan feb mar apr mei jun jul agu agt sep okt nov
            des tgl tel telp rt rw""",
        final="dll dsb dst dkk tbk pt cv etc m.sc ph.d sdn bhd",
    ),
    "vi vie": _Table(
        inside="ts ths gs pgs bs ks cn tp đ p q h tx tt vd v.d tr st s ô b lm gm hy lt",
        numbered="số tr trang đt điều",
        final="v.v vv",
    ),
    "tl tgl fil ceb ilo war pag": _Table(
        inside="""gng bb g gg gdng dr dra atty engr prof hon gob sen rep kon hal kgg sto sta
            st brgy bgy blg p.d.f""",
        numbered="blg no p pah",
        final="atbp etc jr sr",
    ),
    (
        "sw swa swh rw kin rn run lg lug ny nya sn sna zu zul xh xho tn tsn st sot nso ss ssw "
        "ts tso ln lin"
    ): _Table(
        inside="""bw bi bwn ndg dk dkt prof mh mhe mch mst kwa.mf k.m km mfn mf uk tsh sh dr
            mnr mev nksz nkk isib""",
        numbered="na nam uk ukurasa",
        final="n.k nk k.k n.k.w n.k.d njk njl njll",
    ),
    "he heb iw yi yid ydd": _Table(
        inside="""ד״ר ד\"ר פרופ פרופ׳ פרופ' עו״ד ר׳ ר' מס׳ מס' עמ׳ עמ' רח׳ רח' שד׳ שד' גב׳ גב'
            לדוג׳ לדוג' למשל""",
    ),
    (
        "ar ara arb ary arz apc acm acq aeb ajp ars fa fas pes prs per ur urd ps pbt pus ug uig "
        "ckb sd snd ks"
    ): _Table(
        inside="""د أ ا م ص ج ط ت هـ ه ق.م ب.م أ.د ا.د د.م م.م ص.ب ص.ت ج.م.ع ت.ب س.ت مثلا كلم
            كم كج سم ق س ش ر.ک آ ڈاکٹر پروف ڈ""",
        numbered="ص ص.ب رقم ج م ع ش",
        final="إلخ الخ وغیره",
    ),
    "hi hin mr mar ne nep npi sa san mai mag bho hne awa kok gom doi brx ks": _Table(
        inside="""डॉ डा डाॅ डाक्टर प्रो पं श्री श्रीमती सुश्री कु मि मे ले कर्नल कै न्या
            माननीय मा ई.पू ई.स ई सं पृ क्र नं रु कि.मी किमी से.मी मी कि.ग्रा कं लि प्रा
            वि.सं सन् उदा उदाह ता दि ए बी सी डी एफ जी एच आई आइ जे के एल एम एन ओ पी क्यू
            आर एस टी यू वी भी डब्ल्यू डब्लू एक्स वाई जेड""",
        numbered="सं पृ क्र नं रु पृष्ठ अ कलम",
        final="इ इत्यादि आदि",
    ),
    "bn ben as asm mni": _Table(
        inside="""ড ডঃ ডা ডাঃ ডক্টর প্রো অধ্যা মি মিঃ মিসেস মো মোঃ মোহা মু সৈ শ্রী লে মেজ
            কি.মি কিমি সে.মি খ্রি খ্রিঃ খ্রিস্টপূর্ব নং পৃ পৃঃ ইং বাং লি কোং এ বি সি ডি
            ই ঈ এফ জি এইচ আই জে কে এল এম এন ও পি কিউ আর এস টি ইউ ভি ডব্লিউ ডাবলিউ এক্স
            ওয়াই জেড চি ৰ শ্ৰী""",
        numbered="নং পৃ পৃষ্ঠা",
        final="ইত্যাদি",
    ),
    "gu guj": _Table(
        inside="""ડૉ ડો પ્રો શ્રી શ્રીમતી મિ કુ સ્વ લે ઈ.સ ઈ કિ.મી કિમી રૂ નં પૃ તા દા.ત એ બી
            સી ડી એફ જી એચ આઈ જે કે એલ એમ એન ઓ પી ક્યૂ આર એસ ટી યૂ વી ડબલ્યુ એક્સ વાય
            ઝેડ""",
    ),
    "pa pan": _Table(
        inside="""ਡਾ ਪ੍ਰੋ ਸ੍ਰ ਸ ਸ੍ਰੀ ਸ਼੍ਰੀ ਸ੍ਰੀਮਤੀ ਮਿ ਈ ਨੰ ਪੰ ਰੁ ਕਿ.ਮੀ ਏ ਬੀ ਸੀ ਡੀ ਐਫ ਜੀ ਐਚ ਆਈ
            ਜੇ ਕੇ ਐਲ ਐਮ ਐਨ ਓ ਪੀ ਕਿਊ ਆਰ ਐਸ ਟੀ ਯੂ ਵੀ ਡਬਲਯੂ ਐਕਸ ਵਾਈ ਜੈੱਡ""",
    ),
    "ta tam": _Table(
        inside="""டாக்டர் டாக் முனைவர் பேரா திரு திருமதி செல்வி செல்வன் மா பி கி.மு கி.பி
            கி.மீ கிமீ கி ரூ எண் பக் எ.கா ஏ சி டி ஈ இ எஃப் எப் ஜி ஹெச் எச் ஐ ஜே ஜெ கே
            எல் எம் என் ஓ க்யூ ஆர் எஸ் யூ வி டபிள்யூ டபிள்யு எக்ஸ் வை""",
    ),
    "te tel": _Table(
        inside="""డా డాక్టర్ ప్రొ శ్రీ శ్రీమతి మి కు క్రీ.శ క్రీ.పూ క్రీ కి.మీ కిమీ రూ నం పే
            ఉదా ఎ ఏ బి సి డి ఇ ఈ ఎఫ్ జి హెచ్ ఐ జె కె ఎల్ ఎం ఎన్ ఓ పి క్యూ ఆర్ ఎస్ టి యు
            వి డబ్ల్యూ ఎక్స్ వై జెడ్""",
    ),
    "kn kan": _Table(
        inside="""ಡಾ ಡಾ॥ ಪ್ರೊ ಶ್ರೀ ಶ್ರೀಮತಿ ಮಿ ಕು ಕ್ರಿ.ಶ ಕ್ರಿ.ಪೂ ಕ್ರಿ ಕಿ.ಮೀ ಕಿಮೀ ರೂ ನಂ ಪು ಉದಾ ಎ
            ಬಿ ಸಿ ಡಿ ಇ ಎಫ್ ಜಿ ಎಚ್ ಐ ಜೆ ಕೆ ಎಲ್ ಎಂ ಎನ್ ಓ ಪಿ ಕ್ಯೂ ಆರ್ ಎಸ್ ಟಿ ಯು ವಿ ಡಬ್ಲ್ಯೂ
            ಎಕ್ಸ್ ವೈ ಜೆಡ್""",
    ),
    "ml mal": _Table(
        inside="""ഡോ പ്രൊ പ്രൊഫ മി ശ്രീ ശ്രീമതി ബഹു അഡ്വ ക്രി ക്രി.വ ക്രി.മു കി.മീ രൂ നം പേ
            ഉദാ എ ബി സി ഡി ഇ ഈ എഫ് ജി എച്ച് എച് ഐ ജെ കെ എൽ എം എൻ ഒ ഓ പി ക്യു ക്യൂ ആർ എസ്
            ടി യു യൂ വി ഡബ്ല്യു ഡബ്ള്യു എക്സ് വൈ ഇസഡ്""",
    ),
    "or ori ory": _Table(inside="ଡ ଡଃ ଡା ଡାଃ ପ୍ରୋ ପ୍ରଫେସର ଶ୍ରୀ ଶ୍ରୀମତୀ ମି ନଂ ପୃ କି.ମି ଖ୍ରୀ"),
    "si sin": _Table(
        inside="""ආචාර්ය මහාචාර්ය පූජ්‍ය ගරු කි.මී ක්‍රි.ව ක්‍රි.පූ රු පි.ව ප.ව පෙ.ව උදා ඒ බී
            සී ඩී ඊ එෆ් ජී එච් අයි ජේ කේ එල් එම් එන් ඕ පී කිව් ආර් එස් ටී යූ වී ඩබ්ලිව්
            එක්ස් වයි""",
        final="ආදිය",
    ),
    "am amh ti tir": _Table(
        inside="ዓ.ም ዓ ም እ.ኤ.አ እ ኤ ዶ/ር ዶ.ር ፕሮፌሰር ፕ/ር ወ/ሮ አቶ ክ ክ.ክ ገጽ ቁ", final="ወዘተ"
    ),
    "th tha lo lao": _Table(
        inside="""พ.ศ ค.ศ ดร ศ รศ ผศ ม.ร.ว ม.ล ม.จ พล.อ พ.ต.อ น.ส ด.ช ด.ญ นพ จ อ ต ถ ร.ต.อ
            พ.ร.บ ก.ม กม ฯลฯ ท่าน ปธน""",
        final="น ล",
    ),
    "km khm my mya bo bod": _Table(),
}
_ALSO_WORDS = """
ven no est col cap fin fig min max art sat sun mar may jan dir ten son sen gen rep sur all on an
are do co en per sing via bar men pol car ant man am pm ed es ex im la le el don san dom com pas
pan mon fri wed abs tab ab as at dos por os et pro hal ap al st ing mit tom from if tex sec lit
lot ser pt app par ch ext op ast sup red tot sol mal ut ver loc mob div rom rad lab lok off arch
set out lat ang des gr tip dot den der kom deel fall med for ord sud sal fam sd bil side s v c p d
m h k n t u ir in eg egl sit alt ti so un is yo ip po ko mi ft gal
"""
"""Abbreviations that are words of another language: titles and `INSIDE` only where it is known."""
_ALSO_NAMES = """
La Le Lo De Das Der Die El Van Den Des Al Do Da Dos Del Di Du Li Los Las Les An Ben Man Min Din
Son Sin Hans Te Ten Ter In On Don San Mon Ma Si Se So Na Ta To Od Vi Vu Mi Ko Kim Ali Alla Dal
Dall Dell Nell All Ai Un Ned Sa Sar Sei Men Her Or Om Ona Oni Mes Bu Bir Mai Mais Morgen Ja Sy Sen
Ver Aus Av Ed
"""
"""Words that begin sentences, and are also parts of names that follow an initial."""
_MONTHS = """
Jahrhundert Jahrhunderts Weltkrieg Weltkriegs Januar Jänner Februar Feber März April Mai Juni Juli
August September Oktober November Dezember Januari Februari Januarie Mäerz Abrëll Mee Junie Julie
Desember Jannewie Janvier Février Mars Avril Juin Juillet Août Septembre Octobre Novembre Décembre
Ocak Şubat Mart Nisan Mayıs Haziran Temmuz Ağustos Eylül Ekim Kasım Aralık Január Február Marec
Apríl Máj Jún Júl Október Leden Únor Březen Duben Květen Červen Červenec Srpen Září Říjen Listopad
Prosinec Janar Shkurt Prill Qershor Korrik Gusht Shtator Tetor Nëntor Dhjetor Januarja Februarja
Marca Aprila Maja Junija Julija Avgusta Septembra Oktobra Novembra Decembra
"""
