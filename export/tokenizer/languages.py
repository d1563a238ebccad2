"""The languages of a translator, as fields of its section in the manifest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import nn

from export.checkpoint.checkpoint import Checkpoint
from export.tokenizer.tokenizer import special_tokens
from export.tokenizer.tokenizer_json import SETTINGS
from inference.errors import CheckpointError
from inference.tasks.translation.languages import LanguageTokens

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


_TRANSLATION = re.compile(r"translation_([a-z]{2,3})_to_([a-z]{2,3})")
_CODE = re.compile(
    r"(?P<bare>[a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3}))|"
    r"__(?P<underlined>[a-z]{2,3}(?:_[A-Z][a-z]{3})?)__"
)
"""`en_XX` and `eng_Latn` are languages' own codes; `__en__` is the token of `en`."""
_BEHIND = {"MBartTokenizer", "MBartTokenizerFast"}
"""Tokenizers of `text </s> [language]`; the others write the language in front."""


def translation_prefixes(config: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(source, target) → the words before a text, of `task_specific_params` in `config.json`."""
    found = {}
    for task, parameters in (config.get("task_specific_params") or {}).items():
        named = _TRANSLATION.fullmatch(task)
        if named and isinstance(parameters, Mapping) and parameters.get("prefix"):
            found[named[1], named[2]] = str(parameters["prefix"])
    return found


def prefix_section(network: nn.Module, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of a model that reads in words what to translate into what."""
    prefixes = translation_prefixes(checkpoint.config)
    return {
        "languages": tuple(prefixes),
        "prefixes": {f"{source}-{target}": text for (source, target), text in prefixes.items()},
    }


def token_section(network: nn.Module, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of a model with language tokens.

    Raises:
        CheckpointError: the tokenizer has no token of a language, or the network no row for one.
    """
    codes = {}
    for text, number in special_tokens(checkpoint).items():
        if named := _CODE.fullmatch(text):
            codes[named["bare"] or named["underlined"]] = number
    size = checkpoint.config["vocab_size"]
    beyond = [code for code, number in codes.items() if number >= size]
    if not codes or beyond:
        problem = f"no row for the token of {beyond[0]}" if beyond else "no language tokens"
        raise CheckpointError(
            f"{checkpoint.folder}: the model has {problem}, so it cannot translate"
        )
    place = _place(checkpoint)
    target = _decoder_start(checkpoint, codes) if place == "behind" else None
    tokens = LanguageTokens(
        codes=dict(sorted(codes.items())), aliases=aliases(codes), place=place, target=target
    )
    return {"tokens": tokens.model_dump(exclude_none=True)}


def aliases(codes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """ISO code → the model's own codes of that language, e.g. zh → zho_Hans, zho_Hant."""
    found: dict[str, tuple[str, ...]] = {}
    for code in sorted(codes):
        for spelling in spellings(code.partition("_")[0]):
            found[spelling] = (*found.get(spelling, ()), code)
    return {alias: own for alias, own in sorted(found.items()) if own != (alias,)}


def _place(checkpoint: Checkpoint) -> Literal["before", "behind"]:
    """Where the source's language stands, as `transformers`' class of the tokenizer puts it."""
    settings = checkpoint.json(SETTINGS)
    own = settings.get("tokenizer_class") or checkpoint.config.get("tokenizer_class")
    if own is None and checkpoint.config.get("model_type") == "mbart":
        own = "MBartTokenizer"  # what `AutoTokenizer` takes
    is_behind = own in _BEHIND or settings.get("legacy_behaviour") is True
    return "behind" if is_behind else "before"


def _decoder_start(checkpoint: Checkpoint, codes: Mapping[str, int]) -> str | None:
    """The language that the decoder starts from, where it starts from one."""
    start = checkpoint.json("generation_config.json").get("decoder_start_token_id")
    start = checkpoint.config.get("decoder_start_token_id") if start is None else start
    return next((code for code, number in codes.items() if number == start), None)
