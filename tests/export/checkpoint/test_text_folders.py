"""Tokenizers and languages of text-to-text folders, beside the classes of `transformers`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.registry import architecture
from export.tokenizer.languages import aliases, prefix_section, token_section, translation_prefixes
from export.tokenizer.tokenizer import PAIRS, fast_tokenizer, moses_pair
from inference.bundle.inputs import TokenizerSpec
from inference.errors import CheckpointError
from inference.processing.tokenizer import Tokenizer
from inference.processing.tokenizer_kinds import FastTokenizer, MosesPair, SentencePiecePair
from inference.tasks.translation.languages import LanguageTokens, token_direction
from tests.export.checkpoint.text_folders import (
    KINDS,
    NASTY,
    SENTENCES,
    fsmt_tokenizer,
    write,
)

Folders = Callable[[str], tuple[Any, Checkpoint]]
LANGUAGES = {
    "mbart-50": ("de_DE", "fr_XX", "de", "fra"),
    "nllb": ("deu_Latn", "fra_Latn", "de", "fra"),
    "m2m100": ("de", "fr", "deu", "fra"),
    "seamless": ("deu", "cmn_Hant", "de", "cmn_Hant"),
}
"""Kind → own codes of a source and a target, and other spellings."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Kind → its tokenizer of `transformers`, and the folder that both were saved to."""

    @cache
    def build(kind: str) -> tuple[Any, Checkpoint]:
        folder = tmp_path_factory.mktemp(kind)
        return write(kind, folder)[0], open_checkpoint(str(folder))

    return build


def _ours(checkpoint: Checkpoint) -> tuple[TokenizerSpec, Tokenizer]:
    declared = architecture(checkpoint.config["model_type"]).tokenizer
    spec, _ = PAIRS.get(declared, fast_tokenizer)(checkpoint)
    kinds = {"tokenizers": FastTokenizer, "moses_pair": MosesPair}
    return spec, kinds.get(spec.kind, SentencePiecePair)(spec, checkpoint.folder)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_those_of_transformers(kind: str, folders: Folders) -> None:
    theirs, checkpoint = folders(kind)
    spec, ours = _ours(checkpoint)
    end = theirs.sep_token_id if theirs.eos_token_id is None else theirs.eos_token_id
    assert (spec.pad_token_id, spec.eos_token_id) == (theirs.pad_token_id, end)
    for text in NASTY:
        ids = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text, add_special_tokens=False) == ids
        ended = [end, *ids, end]
        assert ours.decode(ended) == theirs.decode(ended, skip_special_tokens=True)
        streamed = ours.detokenizer()
        pieces = [streamed.add([token]) for token in ended]
        assert "".join([*pieces, streamed.finish()]) == ours.decode(ended)
    if kind not in LANGUAGES:
        assert ours.encode(SENTENCES[0]) == theirs(SENTENCES[0]).input_ids


MOSES = [
    *NASTY, "Mr. Smith's dog isn't here, e.g. at 5 p.m. on No. 7.", "“b” „c“ ‘a’ `x' ''y'' x’s",
    "«Bonjour», dit-il : «ça va ?» l'homme d'aujourd'hui", '"Yes," he said. "No..."', "....", "",
    "well-known state-of-the-art – yes — no", "http://www.example.com/a?b=c&d=e#f a@b.co.uk #tag",
    "1,000.50 and 5,3 or 1\u00a0000 $5.00 €3 5 %", "[x] {y} <z> |w| & ; : &amp; &lt;", "a...b.. c.",
    "Привет, мир! Как дела? т.е. г. Москва", "你好，世界。今天天气很好！",
    "the dogs' house 've rock 'n' roll",
    "１２３ ％ （a）【b】", "@-@ @-@ a-b-c --- -", "EU:ssa EU:N", "\ue000 private \u0378 \t\n",
]  # fmt: skip
PAIRS_OF_LANGUAGES = [("en", "de"), ("de", "en"), ("en", "ru"), ("ru", "en"), ("en", "fi")]
PAIRS_OF_LANGUAGES += [("fr", "it"), ("it", "fr"), ("zh", "ga"), ("es", "ko"), ("ko", "zh")]


@pytest.mark.parametrize("pair", PAIRS_OF_LANGUAGES)
def test_words_of_moses_are_those_of_transformers(pair: tuple[str, str], tmp_path: Path) -> None:
    theirs = fsmt_tokenizer(tmp_path, pair)
    theirs.save_pretrained(tmp_path)
    spec, _ = moses_pair(Checkpoint(tmp_path, "x", {}))
    ours, drawn = MosesPair(spec, tmp_path), random.Random(str(pair))
    letters = "".join(MOSES)
    texts = MOSES + ["".join(drawn.choices(letters, k=40)) for _ in range(150)]
    for text in texts:
        assert ours.encode(text) == theirs(text).input_ids
    seen = set()
    for _ in range(300):
        ids = drawn.choices(range(theirs.tgt_vocab_size + 1), k=drawn.randrange(30))
        wanted = theirs.decode(ids, skip_special_tokens=True)
        streamed = ours.detokenizer()
        pieces = [streamed.add([token]) for token in ids]
        assert ours.decode(ids) == "".join([*pieces, streamed.finish()]) == wanted
        seen.add(bool("".join(pieces)))
    assert seen == ({False} if pair[1] in ("fi", "fr", "ga", "it") else {False, True})


def test_written_text_has_the_tokens_of_the_target(tmp_path: Path) -> None:
    fsmt_tokenizer(tmp_path).save_pretrained(tmp_path)
    spec, _ = moses_pair(Checkpoint(tmp_path, "x", {}))
    ours = MosesPair(spec, tmp_path)
    found = [ours.encode_output(word) for word in "The small red circle is above".split()]
    assert [ours.decode(ids) for ids in found if ids] == [
        word
        for word, ids in zip("The small red circle is above".split(), found, strict=True)
        if ids
    ]
    assert any(found)
    assert ours.encode_output("語") is None


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"langs": None}, "langs must be the codes of two languages"),
        ({"langs": ["en", "cs"]}, "Czech"),
        ({"do_lower_case": True}, "do_lower_case"),
        (
            {"added_tokens_decoder": {"9": {"content": "<x>"}}},
            "added tokens are not supported: <x>",
        ),
        ({"bos_token": "<none>"}, "has no <none>"),
    ],
)
def test_moses_tokenizers_that_are_not_supported_are_refused(
    settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    fsmt_tokenizer(tmp_path).save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(CheckpointError, match=named):
        moses_pair(Checkpoint(tmp_path, "x", {}))


@pytest.mark.parametrize("kind", LANGUAGES)
def test_language_tokens_stand_where_transformers_puts_them(kind: str, folders: Folders) -> None:
    theirs, checkpoint = folders(kind)
    spec, ours = _ours(checkpoint)
    tokens = LanguageTokens.model_validate(token_section(None, checkpoint)["tokens"])
    source, target, *others = LANGUAGES[kind]
    theirs.src_lang = source
    wanted = (
        theirs._build_translation_inputs(SENTENCES[2], None, src_lang=source, tgt_lang=target)
        if kind != "m2m100"
        else theirs._build_translation_inputs(SENTENCES[2], src_lang=source, tgt_lang=target)
    )
    assert spec.eos_token_id is not None
    for asked in ((source, target), others):
        way = token_direction(tokens, *asked, spec.eos_token_id, "it")
        own = ours.encode(SENTENCES[2], add_special_tokens=False)
        assert [*way.before, *own, *way.behind] == wanted["input_ids"]
        assert way.forced_bos_token_id == wanted["forced_bos_token_id"]


def test_legacy_nllb_reads_the_language_behind_the_text(folders: Folders, tmp_path: Path) -> None:
    theirs, checkpoint = folders("nllb")
    for file in checkpoint.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = checkpoint.json("tokenizer_config.json") | {"legacy_behaviour": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    legacy = type(theirs).from_pretrained(tmp_path)
    tokens = token_section(None, open_checkpoint(str(tmp_path)))["tokens"]
    assert tokens["place"] == "behind"
    assert "target" not in tokens
    assert legacy("x").input_ids[-1] == tokens["codes"]["eng_Latn"]


def test_first_mbart_starts_from_its_one_target(folders: Folders, tmp_path: Path) -> None:
    _, checkpoint = folders("mbart-50")
    for file in checkpoint.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = checkpoint.json("tokenizer_config.json") | {"tokenizer_class": "MBartTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    start = token_section(None, checkpoint)["tokens"]["codes"]["ro_RO"]
    (tmp_path / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": start}))
    tokens = token_section(None, open_checkpoint(str(tmp_path)))["tokens"]
    assert (tokens["place"], tokens["target"]) == ("behind", "ro_RO")


def test_tokenizer_without_languages_is_refused(folders: Folders) -> None:
    _, checkpoint = folders("bart")
    with pytest.raises(CheckpointError, match="no language tokens"):
        token_section(None, checkpoint)


def test_language_beyond_the_networks_table_is_refused(folders: Folders) -> None:
    _, checkpoint = folders("nllb")
    small = Checkpoint(checkpoint.folder, "x", {**checkpoint.config, "vocab_size": 300})
    with pytest.raises(CheckpointError, match="no row for the token of"):
        token_section(None, small)


def test_prefixes_are_read_from_the_configuration(folders: Folders) -> None:
    _, checkpoint = folders("t5")
    assert prefix_section(None, checkpoint) == {
        "languages": (("en", "de"), ("en", "fr")),
        "prefixes": {
            "en-de": "translate English to German: ",
            "en-fr": "translate English to French: ",
        },
    }
    assert translation_prefixes({"task_specific_params": None}) == {}


def test_iso_codes_name_every_spelling_of_a_language() -> None:
    found = aliases(["eng_Latn", "zho_Hans", "zho_Hant", "arb_Arab", "ast_Latn", "azj_Latn"])
    assert found["en"] == found["eng"] == ("eng_Latn",)
    assert found["zh"] == found["zho"] == ("zho_Hans", "zho_Hant")
    assert found["ar"] == ("arb_Arab",)
    assert found["ast"] == ("ast_Latn",)
    assert found["az"] == found["azj"] == ("azj_Latn",)
    assert aliases(["en", "zh"]) == {"cmn": ("zh",), "eng": ("en",), "zho": ("zh",)}
