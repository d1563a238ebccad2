"""Text-to-text models and translators of many languages answer as `transformers` does.

Tokenizers of its own classes, tiny random networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from export.pipeline.cli import export
from tests.e2e.conftest import Stack, client_over, running
from tests.e2e.text_bundles import TRANSLATOR, TextBundles
from tests.export.checkpoint.text_folders import SENTENCES, write
from triptych import Client, GrpcClient, InvalidRequest

pytestmark = pytest.mark.integration

OTHERS = ("t5", "bart", "pegasus", "mbart-50", "m2m100")
"""Served by the full tests alone."""
LANGUAGES = {
    TRANSLATOR: (("deu_Latn", "fra_Latn"), ("deu", "fr")),
    "mbart-50": (("de_DE", "fr_XX"), ("de", "fra")),
    "m2m100": (("de", "fr"), ("deu", "fra")),
}
"""Source and target in `transformers`' spelling, and in another that we take."""
TEXTS = SENTENCES[:4]
PROMPTS = [f"summarize: {text}" for text in TEXTS]
Either = Client | GrpcClient


@dataclass(frozen=True)
class Original:
    """Tokenizer and model of `transformers`."""

    tokenizer: Any
    model: Any

    @classmethod
    def of(cls, folder: Path) -> Original:
        """What `transformers` reads from a checkpoint's folder."""
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        return cls(AutoTokenizer.from_pretrained(folder), model)

    def generate(self, texts: list[str], num_beams: int, **forced: int) -> list[str]:
        """The best output for each text as the tokenizer completes it."""
        return [self._one(text, num_beams, **forced) for text in texts]

    def translate(self, kind: str, num_beams: int) -> list[str]:
        """`TEXTS` in the target language."""
        source, target = LANGUAGES[kind][0]
        self.tokenizer.src_lang = source
        written = f"__{target}__" if kind == "m2m100" else target
        forced = self.tokenizer.convert_tokens_to_ids(written)
        return self.generate(TEXTS, num_beams, forced_bos_token_id=forced)

    def _one(self, text: str, num_beams: int, **forced: int) -> str:
        inputs = self.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            (found,) = self.model.generate(**inputs, num_beams=num_beams, **forced)
        return str(self.tokenizer.decode(found, skip_special_tokens=True))


@pytest.fixture(scope="module")
def original(bundles: TextBundles) -> Original:
    return Original.of(bundles.checkpoints / TRANSLATOR)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_translations_are_those_of_transformers(
    tiny_client: Either, original: Original, num_beams: int
) -> None:
    assert_translations(tiny_client, TRANSLATOR, original, num_beams)


def assert_translations(client: Either, kind: str, original: Original, num_beams: int) -> None:
    wanted = original.translate(kind, num_beams)
    assert len(set(wanted)) > 2
    for source, target in LANGUAGES[kind]:
        answer = client.translate(
            TEXTS, model=kind, source=source, target=target, num_beams=num_beams
        )
        assert [item.text for item in answer.data] == wanted


def test_stream_joins_to_the_whole(tiny_client: Either) -> None:
    asked: dict[str, Any] = {"model": TRANSLATOR, "source": "en", "target": "fr"}
    text = " ".join(TEXTS[:2])
    whole = tiny_client.translate(text, **asked).data[0].text
    pieces = [chunk.text for chunk in tiny_client.translate_stream(text, **asked)]
    assert whole
    assert "".join(pieces) == whole


def test_languages_are_listed_as_codes(tiny_client: Either) -> None:
    rows = {model.id: model for model in tiny_client.models().data}
    assert len(rows[TRANSLATOR].language_codes) == 202
    assert rows[TRANSLATOR].languages == []
    assert rows[TRANSLATOR].tasks == ["translate"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"source": "en"}, "give target, one of ace_Arab"),
        ({"source": "en", "target": "xx"}, "does not have that language; supported are: ace_Arab"),
        ({"source": "zh", "target": "en"}, "ambiguous for .*: give one of zho_Hans, zho_Hant"),
    ],
)
def test_languages_that_do_not_resolve_are_refused(
    tiny_client: Either, asked: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        tiny_client.translate(TEXTS[0], model=TRANSLATOR, **asked)


def test_alignment_counts_the_token_of_each_language(tiny_stack: Stack) -> None:
    body = {"texts": TEXTS[0], "model": TRANSLATOR, "source": "en", "target": "fr"}
    url = f"{tiny_stack.url}/v1/translate"
    answer = httpx.post(url, json=body | {"return_alignment": True}, timeout=60)
    (item,) = answer.json()["data"]
    alignment = item["alignment"]
    assert alignment["source_tokens"][0] == "eng_Latn"
    assert alignment["target_tokens"][0] == "fra_Latn"
    assert len(alignment["weights"]) == len(alignment["target_tokens"])
    assert {len(row) for row in alignment["weights"]} == {len(alignment["source_tokens"])}


@dataclass(frozen=True)
class Others:
    """A stack that serves all of `OTHERS`, and what it is compared with."""

    stack: Stack
    originals: dict[str, Original]


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Others]:
    folder = tmp_path_factory.mktemp("text-to-text")
    for kind in OTHERS:
        write(kind, folder / kind)
        export(str(folder / kind), repository=folder / "model_repository")
    with running(folder / "model_repository", folder) as stack:
        yield Others(stack, {kind: Original.of(folder / kind) for kind in OTHERS})


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, others: Others) -> Iterator[Either]:
    with client_over(request.param, others.stack) as made:
        yield made


@pytest.mark.full
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("kind", ["mbart-50", "m2m100"])
def test_other_translations_are_those_of_transformers(
    client: Either, others: Others, kind: str, num_beams: int
) -> None:
    assert_translations(client, kind, others.originals[kind], num_beams)


@pytest.mark.full
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("kind", ["t5", "bart", "pegasus"])
def test_prompts_are_read_by_the_encoder(
    client: Either, others: Others, kind: str, num_beams: int
) -> None:
    wanted = others.originals[kind].generate(PROMPTS, num_beams)
    assert len(set(wanted)) > 2
    whole = client.generate(PROMPTS, model=kind, num_beams=num_beams)
    instructed = client.generate(TEXTS, instruction="summarize:", model=kind, num_beams=num_beams)
    assert [item.text for item in whole.data] == wanted
    if kind == "t5":
        assert [item.text for item in instructed.data] == wanted


@pytest.mark.full
@pytest.mark.parametrize("num_beams", [1, 3])
def test_words_name_the_languages_where_the_checkpoint_does(
    client: Either, others: Others, num_beams: int
) -> None:
    texts = [f"translate English to German: {text}" for text in TEXTS]
    wanted = others.originals["t5"].generate(texts, num_beams)
    answer = client.translate(TEXTS, model="t5", source="en", target="de", num_beams=num_beams)
    assert [item.text for item in answer.data] == wanted


@pytest.mark.full
def test_languages_are_listed_as_pairs_where_words_name_them(client: Either) -> None:
    rows = {model.id: model for model in client.models().data}
    assert "en_XX" in rows["mbart-50"].language_codes
    assert rows["t5"].languages == [["en", "de"], ["en", "fr"]]
    assert rows["t5"].language_codes == []
    assert rows["t5"].tasks[:2] == ["generate", "translate"]
