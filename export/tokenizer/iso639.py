"""Language codes of two letters and of three (ISO 639-1 and 639-3)."""

from __future__ import annotations

_TABLE = """
aa aar, ab abk, ae ave, af afr, ak aka twi, am amh, an arg, ar ara arb, as asm, av ava, ay aym ayr,
az aze azj, ba bak, be bel, bg bul, bi bis, bm bam, bn ben, bo bod, br bre, bs bos, ca cat, ce che,
ch cha, co cos, cr cre, cs ces, cu chu, cv chv, cy cym, da dan, de deu, dv div, dz dzo, ee ewe,
el ell, en eng, eo epo, es spa, et est ekk, eu eus, fa fas pes, ff ful fuv, fi fin, fj fij, fo fao,
fr fra, fy fry, ga gle, gd gla, gl glg, gn grn gug, gu guj, gv glv, ha hau, he heb, hi hin, ho hmo,
hr hrv, ht hat, hu hun, hy hye, hz her, ia ina, id ind, ie ile, ig ibo, ii iii, ik ipk, io ido,
is isl, it ita, iu iku, ja jpn, jv jav, ka kat, kg kon, ki kik, kj kua, kk kaz, kl kal, km khm,
kn kan, ko kor, kr kau, ks kas, ku kur kmr, kv kom, kw cor, ky kir, la lat, lb ltz, lg lug, li lim,
ln lin, lo lao, lt lit, lu lub, lv lav lvs, mg mlg plt, mh mah, mi mri, mk mkd, ml mal, mn mon khk,
mr mar, ms msa zsm, mt mlt, my mya, na nau, nb nob, nd nde, ne nep npi, ng ndo, nl nld, nn nno,
no nor, nr nbl, nv nav, ny nya, oc oci, oj oji, om orm gaz, or ori ory, os oss, pa pan, pi pli,
pl pol, ps pus pbt, pt por, qu que quy, rm roh, rn run, ro ron, ru rus, rw kin, sa san, sc srd,
sd snd, se sme, sg sag, si sin, sk slk, sl slv, sm smo, sn sna, so som, sq sqi als, sr srp, ss ssw,
st sot, su sun, sv swe, sw swa swh, ta tam, te tel, tg tgk, th tha, ti tir, tk tuk, tl tgl fil,
tn tsn, to ton, tr tur, ts tso, tt tat, ty tah, ug uig, uk ukr, ur urd, uz uzb uzn, ve ven, vi vie,
vo vol, wa wln, wo wol, xh xho, yi yid ydd, yo yor, za zha, zh zho cmn, zu zul
"""
THREE_LETTERS: dict[str, tuple[str, ...]] = {
    two: tuple(three) for two, *three in (entry.split() for entry in _TABLE.split(","))
}
"""Two letters → three; behind the code of a macrolanguage that of its standard variety."""
TWO_LETTERS = {three: two for two, codes in THREE_LETTERS.items() for three in codes}


def spellings(code: str) -> tuple[str, ...]:
    """Every ISO code of a language, given one of them: `de` → de, deu; `deu` → the same."""
    two = TWO_LETTERS.get(code, code)
    return (two, *THREE_LETTERS[two]) if two in THREE_LETTERS else (code,)
