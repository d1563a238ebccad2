"""Everyday words and sentence patterns of six languages, for telling languages apart.

The tables are data: one entry per `;`. Slots of a pattern are the fields of `Words`; what agrees in
gender is written out in both, masculine/feminine (German predicates do not agree).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """The tables of one language. Subjects are third persons singular, objects whole phrases.

    Attributes:
        who: Subjects.
        did: Verbs with their objects' slot left out: present, past and future forms.
        what: Objects.
        where: Places with their prepositions.
        when: Adverbs of time.
        his: Masculine subjects of predicates; `hers` the feminine ones.
        adjective: Masculine/feminine, or one form.
        patterns: Sentences with slots; `{handsome}` and `{pretty}` are adjectives that agree.
        said: Fixed sentences and beginnings of them.
    """

    who: str
    did: str
    what: str
    where: str
    when: str
    his: str
    hers: str
    adjective: str
    patterns: str
    said: str

    def entries(self, field: str) -> list[str]:
        """One table's entries."""
        if field in ("handsome", "pretty"):
            forms = [entry.split("/") for entry in self.entries("adjective")]
            return [pair[0 if field == "handsome" else -1] for pair in forms]
        table: str = getattr(self, field)
        return [" ".join(entry.split()) for entry in table.split(";")]


ENGLISH = Words(
    who="""the doctor; my sister; the old man; our neighbor; Anna; Thomas; a young woman; the child;
        the teacher; nobody; everyone; his brother; her mother; the girl; the boss; the dog;
        someone; my best friend; the new student; the king; she; he; the government; the team""",
    did="""buys; bought; will buy; sees; saw; needs; needed; wants; finds; found; has lost; sells;
        is looking for; was reading; writes; wrote; opens; forgot; has forgotten; brings; brought;
        would like; doesn't have; didn't see; knows; always takes; never sold; must pay for""",
    what="""a book; the letter; some bread; the keys; a cup of coffee; an apple; the newspaper;
        two tickets; the money; a new car; the red dress; a glass of water; the answer; this song;
        a big house; the map; many things; nothing; the truth; their help; a chair; the window;
        fresh fish; those shoes; the phone; an old clock; my bicycle; the work; her photo""",
    where="""in the kitchen; at the station; in the city; at school; on the table; near the river;
        behind the church; at home; in the garden; on the street; at the market; in the hospital;
        under the bridge; in the village; at the airport; with his friends; without her brother;
        for the children; from the library; between the houses; in winter; across the square""",
    when="""today; yesterday; tomorrow; every morning; last week; next year; tonight; now; often;
        on Monday; two days ago; later; in the afternoon; in summer; always; this evening; soon""",
    his="""the train; the weather; the house; this man; the price; his answer; the city; my father;
        the film; the night; our garden; the world""",
    hers="""the soup; the question; her idea; this song; the door; my mother; life; the water;
        the street; the lesson; the picture; our school""",
    adjective="""very small; too expensive; beautiful; long; not very good; cold; open; black;
        difficult; strange; new; quite old; quiet; full; important; wonderful; dangerous; ready""",
    patterns="""{who} {did} {what}; {who} {did} {what} {where}; {when} {who} {did} {what};
        {who} {did} {what} {when}; {his} is {handsome}; {hers} was {pretty};
        I think that {who} {did} {what}; why is {his} so {handsome}?; there is {what} {where};
        {hers} is {pretty} and {his} is {handsome}; if {who} {did} {what}, {hers} will be {pretty};
        where is {who}?; we were {where} when {who} {did} {what}; do you have {what}?;
        they have {what} {where}; I am {where}; you can find {what} {where}; {who} is {where}""",
    said="""good morning, how are you?; thank you very much; what is your name?; I don't know;
        see you tomorrow; excuse me, where is the station?; how much does it cost?; I am hungry;
        nice to meet you; could you help me, please?; it is raining; what time is it?; I love you;
        happy birthday; have a good trip; I would like to drink something; that is not true;
        we should go home; let's go; who are you?; it doesn't matter; of course; be careful;
        she is thirty years old; I have been living here for ten years; this is my family""",
)

SPANISH = Words(
    who="""el médico; mi hermana; el viejo; nuestro vecino; Ana; Tomás; una mujer joven; el niño;
        la profesora; nadie; cada uno; su hermano; su madre; la chica; el jefe; el perro; alguien;
        mi mejor amigo; el nuevo estudiante; el rey; ella; él; el gobierno; el equipo""",
    did="""compra; compró; comprará; ve; vio; necesita; necesitaba; quiere; encuentra; encontró;
        ha perdido; vende; está buscando; leía; escribe; escribió; abre; olvidó; ha olvidado; trae;
        trajo; quisiera; no tiene; no vio; conoce; siempre lleva; nunca vendió; debe pagar""",
    what="""un libro; la carta; algo de pan; las llaves; una taza de café; una manzana;
        el periódico; dos billetes; el dinero; un coche nuevo; el vestido rojo; un vaso de agua;
        la respuesta; esta canción; una casa grande; el mapa; muchas cosas; nada; la verdad;
        su ayuda; una silla; la ventana; pescado fresco; esos zapatos; el teléfono;
        un reloj antiguo; mi bicicleta; el trabajo; su foto""",
    where="""en la cocina; en la estación; en la ciudad; en la escuela; sobre la mesa;
        cerca del río; detrás de la iglesia; en casa; en el jardín; en la calle; en el mercado;
        en el hospital; bajo el puente; en el pueblo; en el aeropuerto; con sus amigos;
        sin su hermano; para los niños; de la biblioteca; entre las casas; en invierno;
        al otro lado de la plaza""",
    when="""hoy; ayer; mañana; cada mañana; la semana pasada; el próximo año; esta noche; ahora;
        a menudo; el lunes; hace dos días; más tarde; por la tarde; en verano; siempre; pronto""",
    his="""el tren; el tiempo; el precio; este hombre; el libro; su coche; el pueblo; mi padre;
        el cine; el perro; nuestro jardín; el mundo""",
    hers="""la sopa; la pregunta; su idea; esta canción; la puerta; mi madre; la vida; la noche;
        la calle; la lección; la foto; nuestra escuela""",
    adjective="""muy pequeño/muy pequeña; demasiado caro/demasiado cara; hermoso/hermosa;
        largo/larga; no muy bueno/no muy buena; frío/fría; abierto/abierta; negro/negra; difícil;
        extraño/extraña; nuevo/nueva; bastante viejo/bastante vieja; tranquilo/tranquila;
        lleno/llena; importante; maravilloso/maravillosa; peligroso/peligrosa; listo/lista""",
    patterns="""{who} {did} {what}; {who} {did} {what} {where}; {when} {who} {did} {what};
        {who} {did} {what} {when}; {his} es {handsome}; {hers} era {pretty};
        creo que {who} {did} {what}; ¿por qué es {his} tan {handsome}?; hay {what} {where};
        {hers} es {pretty} y {his} está {handsome}; si {who} {did} {what}, {hers} será {pretty};
        ¿dónde está {who}?; estábamos {where} cuando {who} {did} {what}; ¿tienes {what}?;
        tienen {what} {where}; estoy {where}; puedes encontrar {what} {where};
        {who} está {where}""",
    said="""buenos días, ¿cómo estás?; muchas gracias; ¿cómo te llamas?; no lo sé; hasta mañana;
        perdone, ¿dónde está la estación?; ¿cuánto cuesta?; tengo hambre; mucho gusto;
        ¿podría ayudarme, por favor?; está lloviendo; ¿qué hora es?; te quiero; feliz cumpleaños;
        buen viaje; me gustaría beber algo; eso no es verdad; deberíamos ir a casa; vamos;
        ¿quién eres?; no importa; por supuesto; ten cuidado; ella tiene treinta años;
        vivo aquí desde hace diez años; esta es mi familia""",
)

FRENCH = Words(
    who="""le médecin; ma sœur; le vieil homme; notre voisin; Anne; Thomas; une jeune femme;
        l'enfant; la maîtresse; personne ne sait si Paul; chacun; son frère; sa mère; la fille;
        le patron; le chien; quelqu'un; mon meilleur ami; le nouvel étudiant; le roi; elle; il;
        le gouvernement; l'équipe""",
    did="""achète; a acheté; achètera; voit; a vu; a besoin d'acheter; cherchait; veut; trouve;
        a trouvé; a perdu; vend; est en train de chercher; lisait; écrit; écrivait; ouvre; oublia;
        a oublié; apporte; apportait; voudrait; n'a pas; n'a pas vu; connaît; prend toujours;
        n'a jamais vendu; doit payer""",
    what="""un livre; la lettre; du pain; les clés; une tasse de café; une pomme; le journal;
        deux billets; l'argent; une nouvelle voiture; la robe rouge; un verre d'eau; la réponse;
        cette chanson; une grande maison; la carte; beaucoup de choses; rien; la vérité; leur aide;
        une chaise; la fenêtre; du poisson frais; ces chaussures; le téléphone;
        une vieille horloge; mon vélo; le travail; sa photo""",
    where="""dans la cuisine; à la gare; en ville; à l'école; sur la table; près de la rivière;
        derrière l'église; à la maison; dans le jardin; dans la rue; au marché; à l'hôpital;
        sous le pont; au village; à l'aéroport; avec ses amis; sans son frère; pour les enfants;
        de la bibliothèque; entre les maisons; en hiver; de l'autre côté de la place""",
    when="""aujourd'hui; hier; demain; chaque matin; la semaine dernière; l'année prochaine;
        ce soir; maintenant; souvent; lundi; il y a deux jours; plus tard; l'après-midi; en été;
        toujours; bientôt""",
    his="""le train; le temps; le prix; cet homme; le livre; son bureau; le village; mon père;
        le film; le chien; notre jardin; le monde""",
    hers="""la soupe; la question; son idée; cette chanson; la porte; ma mère; la vie; la nuit;
        la rue; la leçon; la photo; notre école""",
    adjective="""très petit/très petite; trop cher/trop chère; beau/belle; long/longue;
        pas très bon/pas très bonne; froid/froide; ouvert/ouverte; noir/noire; difficile; étrange;
        nouveau/nouvelle; assez vieux/assez vieille; tranquille; plein/pleine;
        important/importante; merveilleux/merveilleuse; dangereux/dangereuse; prêt/prête""",
    patterns="""{who} {did} {what}; {who} {did} {what} {where}; {when} {who} {did} {what};
        {who} {did} {what} {when}; {his} est {handsome}; {hers} était {pretty};
        je crois que {who} {did} {what}; pourquoi {his} est-il si {handsome} ?;
        il y a {what} {where}; {hers} est {pretty} et {his} est {handsome};
        si {who} {did} {what}, {hers} sera {pretty}; où est {who} ?;
        nous étions {where} quand {who} {did} {what}; as-tu {what} ?; ils ont {what} {where};
        je suis {where}; tu peux trouver {what} {where}; {who} est {where}""",
    said="""bonjour, comment allez-vous ?; merci beaucoup; comment t'appelles-tu ?;
        je ne sais pas; à demain; excusez-moi, où est la gare ?; combien ça coûte ?; j'ai faim;
        enchanté; pourriez-vous m'aider, s'il vous plaît ?; il pleut; quelle heure est-il ?;
        je t'aime; joyeux anniversaire; bon voyage; je voudrais boire quelque chose;
        ce n'est pas vrai; nous devrions rentrer; allons-y; qui es-tu ?; ça ne fait rien;
        bien sûr; fais attention; elle a trente ans; j'habite ici depuis dix ans;
        voici ma famille""",
)

GERMAN = Words(
    who="""der Arzt; meine Schwester; der alte Mann; unser Nachbar; Anna; Thomas; eine junge Frau;
        das Kind; die Lehrerin; niemand; jeder; sein Bruder; ihre Mutter; das Mädchen; der Chef;
        der Hund; jemand; mein bester Freund; der neue Schüler; der König; sie; er; die Regierung;
        die Mannschaft""",
    did="""kauft; kaufte; verkauft; sieht; sah; braucht; brauchte; will; findet; fand; verlor;
        bestellt; sucht; las; schreibt; schrieb; öffnet; vergaß; vergisst; bringt; brachte;
        möchte; hat nicht; zeigte; kennt; nimmt immer; verkaufte nie; bezahlt""",
    what="""ein Buch; den Brief; etwas Brot; die Schlüssel; eine Tasse Kaffee; einen Apfel;
        die Zeitung; zwei Fahrkarten; das Geld; ein neues Auto; das rote Kleid; ein Glas Wasser;
        die Antwort; dieses Lied; ein großes Haus; die Landkarte; viele Dinge; nichts;
        die Wahrheit; ihre Hilfe; einen Stuhl; das Fenster; frischen Fisch; diese Schuhe;
        das Telefon; eine alte Uhr; mein Fahrrad; die Arbeit; ihr Foto""",
    where="""in der Küche; am Bahnhof; in der Stadt; in der Schule; auf dem Tisch; neben dem Fluss;
        hinter der Kirche; zu Hause; im Garten; auf der Straße; auf dem Markt; im Krankenhaus;
        unter der Brücke; im Dorf; am Flughafen; mit seinen Freunden; ohne ihren Bruder;
        für die Kinder; aus der Bibliothek; zwischen den Häusern; im Winter; über den Platz""",
    when="""heute; gestern; morgen; jeden Morgen; letzte Woche; nächstes Jahr; heute Abend; jetzt;
        oft; am Montag; vor zwei Tagen; später; am Nachmittag; im Sommer; immer; bald""",
    his="""der Zug; das Wetter; der Preis; dieser Mann; das Buch; sein Auto; das Dorf; mein Vater;
        der Film; der Hund; unser Garten; die Welt""",
    hers="""die Suppe; die Frage; ihre Idee; dieses Lied; die Tür; meine Mutter; das Leben;
        die Nacht; die Straße; die Stunde; das Bild; unsere Schule""",
    adjective="""sehr klein; zu teuer; schön; lang; nicht sehr gut; kalt; offen; schwarz; schwierig;
        seltsam; neu; ziemlich alt; ruhig; voll; wichtig; wunderbar; gefährlich; fertig""",
    patterns="""{who} {did} {what}; {who} {did} {where} {what}; {when} {did} {who} {what};
        {who} {did} {when} {what}; {his} ist {handsome}; {hers} war {pretty};
        ich glaube, {who} {did} {what}; warum ist {his} so {handsome}?; es gibt {what} {where};
        {hers} ist {pretty} und {his} ist {handsome};
        {hers} wird {pretty} sein, wenn du {what} hast;
        wo ist {who}?; wir waren {where}, aber {who} {did} {what}; hast du {what}?;
        sie haben {where} {what}; ich bin {where}; du kannst {where} {what} finden;
        {who} ist {where}""",
    said="""guten Morgen, wie geht es dir?; vielen Dank; wie heißt du?; ich weiß es nicht;
        bis morgen; entschuldigen Sie, wo ist der Bahnhof?; wie viel kostet das?;
        ich habe Hunger; freut mich; könnten Sie mir bitte helfen?; es regnet;
        wie spät ist es?; ich liebe dich; alles Gute zum Geburtstag; gute Reise;
        ich möchte etwas trinken; das ist nicht wahr; wir sollten nach Hause gehen; gehen wir;
        wer bist du?; das macht nichts; natürlich; pass auf; sie ist dreißig Jahre alt;
        ich wohne seit zehn Jahren hier; das ist meine Familie""",
)

ITALIAN = Words(
    who="""il medico; mia sorella; il vecchio; il nostro vicino; Anna; Tommaso; una giovane donna;
        il bambino; la maestra; nessuno; ognuno; suo fratello; sua madre; la ragazza; il capo;
        il cane; qualcuno; il mio migliore amico; il nuovo studente; il re; lei; lui; il governo;
        la squadra""",
    did="""compra; comprò; comprerà; vede; vide; ha bisogno di comprare; cercava; vuole; trova;
        ha trovato; ha perso; vende; sta cercando; leggeva; scrive; scrisse; apre; dimenticò;
        ha dimenticato; porta; portava; vorrebbe; non ha; non ha visto; conosce; prende sempre;
        non ha mai venduto; deve pagare""",
    what="""un libro; la lettera; del pane; le chiavi; una tazza di caffè; una mela; il giornale;
        due biglietti; i soldi; una macchina nuova; il vestito rosso; un bicchiere d'acqua;
        la risposta; questa canzone; una casa grande; la mappa; molte cose; niente; la verità;
        il loro aiuto; una sedia; la finestra; pesce fresco; quelle scarpe; il telefono;
        un vecchio orologio; la mia bicicletta; il lavoro; la sua foto""",
    where="""in cucina; alla stazione; in città; a scuola; sul tavolo; vicino al fiume;
        dietro la chiesa; a casa; nel giardino; per strada; al mercato; all'ospedale;
        sotto il ponte; nel villaggio; all'aeroporto; con i suoi amici; senza suo fratello;
        per i bambini; dalla biblioteca; tra le case; in inverno; dall'altra parte della piazza""",
    when="""oggi; ieri; domani; ogni mattina; la settimana scorsa; l'anno prossimo; stasera; adesso;
        spesso; lunedì; due giorni fa; più tardi; nel pomeriggio; in estate; sempre; presto""",
    his="""il treno; il tempo; il prezzo; quest'uomo; il libro; il suo ufficio; il paese;
        mio padre; il film; il cane; il nostro giardino; il mondo""",
    hers="""la zuppa; la domanda; la sua idea; questa canzone; la porta; mia madre; la vita;
        la notte; la strada; la lezione; la foto; la nostra scuola""",
    adjective="""molto piccolo/molto piccola; troppo caro/troppo cara; bello/bella; lungo/lunga;
        non molto buono/non molto buona; freddo/fredda; aperto/aperta; nero/nera; difficile;
        strano/strana; nuovo/nuova; abbastanza vecchio/abbastanza vecchia; tranquillo/tranquilla;
        pieno/piena; importante; meraviglioso/meravigliosa; pericoloso/pericolosa; pronto/pronta""",
    patterns="""{who} {did} {what}; {who} {did} {what} {where}; {when} {who} {did} {what};
        {who} {did} {what} {when}; {his} è {handsome}; {hers} era {pretty};
        credo che {who} {did} {what}; perché {his} è così {handsome}?; c'è {what} {where};
        {hers} è {pretty} e {his} è {handsome}; se {who} {did} {what}, {hers} sarà {pretty};
        dov'è {who}?; eravamo {where} quando {who} {did} {what}; hai {what}?;
        hanno {what} {where}; sono {where}; puoi trovare {what} {where}; {who} è {where}""",
    said="""buongiorno, come stai?; grazie mille; come ti chiami?; non lo so; a domani;
        mi scusi, dov'è la stazione?; quanto costa?; ho fame; piacere di conoscerti;
        potrebbe aiutarmi, per favore?; sta piovendo; che ore sono?; ti amo; buon compleanno;
        buon viaggio; vorrei bere qualcosa; non è vero; dovremmo andare a casa; andiamo; chi sei?;
        non importa; certo; fai attenzione; ha trent'anni; abito qui da dieci anni;
        questa è la mia famiglia; gli uomini e le donne; degli altri; della gente; che cosa fai?""",
)

PORTUGUESE = Words(
    who="""o médico; minha irmã; o velho; o nosso vizinho; Ana; Tomás; uma mulher jovem; a criança;
        a professora; ninguém; cada um; o irmão dele; a mãe dela; a menina; o chefe; o cachorro;
        alguém; meu melhor amigo; o novo estudante; o rei; ela; ele; o governo; a equipe""",
    did="""compra; comprou; comprará; vê; viu; precisa comprar; procurava; quer; encontra;
        encontrou; perdeu; vende; está procurando; lia; escreve; escreveu; abre; esqueceu;
        tinha esquecido; traz; trouxe; gostaria de ter; não tem; não viu; conhece; sempre leva;
        nunca vendeu; deve pagar""",
    what="""um livro; a carta; um pouco de pão; as chaves; uma xícara de café; uma maçã; o jornal;
        duas passagens; o dinheiro; um carro novo; o vestido vermelho; um copo de água;
        a resposta; esta canção; uma casa grande; o mapa; muitas coisas; nada; a verdade;
        a ajuda deles; uma cadeira; a janela; peixe fresco; aqueles sapatos; o telefone;
        um relógio antigo; minha bicicleta; o trabalho; a foto dela""",
    where="""na cozinha; na estação; na cidade; na escola; em cima da mesa; perto do rio;
        atrás da igreja; em casa; no jardim; na rua; no mercado; no hospital; debaixo da ponte;
        na aldeia; no aeroporto; com os amigos; sem o irmão; para as crianças; da biblioteca;
        entre as casas; no inverno; do outro lado da praça""",
    when="""hoje; ontem; amanhã; todas as manhãs; na semana passada; no próximo ano; esta noite;
        agora; muitas vezes; na segunda-feira; há dois dias; mais tarde; à tarde; no verão;
        sempre; logo""",
    his="""o trem; o tempo; o preço; este homem; o livro; o carro dele; o povo; meu pai; o filme;
        o cachorro; nosso jardim; o mundo""",
    hers="""a sopa; a pergunta; a ideia dela; esta canção; a porta; minha mãe; a vida; a noite;
        a rua; a lição; a foto; nossa escola""",
    adjective="""muito pequeno/muito pequena; caro demais/cara demais; bonito/bonita;
        comprido/comprida; não muito bom/não muito boa; frio/fria; aberto/aberta; preto/preta;
        difícil; estranho/estranha; novo/nova; bastante velho/bastante velha;
        tranquilo/tranquila; cheio/cheia; importante; maravilhoso/maravilhosa;
        perigoso/perigosa; pronto/pronta""",
    patterns="""{who} {did} {what}; {who} {did} {what} {where}; {when} {who} {did} {what};
        {who} {did} {what} {when}; {his} é {handsome}; {hers} era {pretty};
        acho que {who} {did} {what}; por que {his} é tão {handsome}?; há {what} {where};
        {hers} é {pretty} e {his} está {handsome}; se {who} {did} {what}, {hers} será {pretty};
        onde está {who}?; estávamos {where} quando {who} {did} {what}; você tem {what}?;
        eles têm {what} {where}; estou {where}; você pode encontrar {what} {where};
        {who} está {where}""",
    said="""bom dia, como vai você?; muito obrigado; como você se chama?; não sei; até amanhã;
        com licença, onde fica a estação?; quanto custa?; estou com fome; prazer em conhecê-lo;
        poderia me ajudar, por favor?; está chovendo; que horas são?; eu te amo;
        feliz aniversário; boa viagem; eu gostaria de beber alguma coisa; isso não é verdade;
        deveríamos ir para casa; vamos embora; quem é você?; não faz mal; com certeza;
        tenha cuidado; ela tem trinta anos; moro aqui há dez anos; esta é a minha família;
        os homens e as mulheres; dos outros; das pessoas; o que você está fazendo?""",
)

WORDS = {
    "de": GERMAN,
    "en": ENGLISH,
    "es": SPANISH,
    "fr": FRENCH,
    "it": ITALIAN,
    "pt": PORTUGUESE,
}
"""ISO 639-1 code → words."""
