"""Translators through the real stack: alignments, and a recurrent one beside a transformer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from examples.en_fr.card import CHECKPOINT
from examples.en_fr.gazette import FAMOUS, sentences
from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
from export.training.bahdanau import reader
from triptych import Client
from triptych.client.grpc_client import GrpcClient

pytestmark = pytest.mark.integration
LOOK = {"model": "example-captioner", "return_attention": True}
SPANISH = "el mundo no es suficiente. este restaurante tiene buena comida"
AGREEMENT = "The agreement on the European Economic Area was signed in August 1992."


@pytest.mark.parametrize("num_beams", [1, 4])
def test_each_target_token_has_attention_over_the_source(
    client: Client, grpc_client: GrpcClient, num_beams: int
) -> None:
    asked = {"source": "es", "target": "en", "num_beams": num_beams, "return_alignment": True}
    (item,) = client.translate(SPANISH, **asked).data
    source, target = item.alignment.source_tokens, item.alignment.target_tokens
    weights = np.array(item.alignment.weights)
    assert weights.shape == (len(target), len(source))
    assert weights.min() >= 0
    assert weights.sum(axis=1) == pytest.approx(1.0, abs=1e-3)
    shown = "".join(source).replace("</s>", "").strip(), "".join(target).replace("</s>", "").strip()
    assert shown == (SPANISH, item.text)
    # Two sentences: neither attends to the other.
    row, column = target.index("</s>") + 1, source.index("</s>") + 1
    assert not weights[:row, column:].any()
    assert not weights[row:, :column].any()
    assert grpc_client.translate(SPANISH, **asked).data[0].alignment == item.alignment


def test_each_word_of_a_caption_has_attention_over_the_picture(
    client: Client, grpc_client: GrpcClient
) -> None:
    picture = as_png(next(picture for _, picture in heldout_pictures(1, seed=3)))
    (item,) = client.caption(picture, **LOOK).data
    rows, columns = item.attention.grid
    weights = np.array(item.attention.weights)
    assert weights.shape == (len(item.attention.tokens), rows * columns)
    assert weights.min() >= 0
    assert weights.sum(axis=1).max() <= 1 + 1e-3
    assert (item.text or "") in "".join(item.attention.tokens)
    assert grpc_client.caption(picture, **LOOK).data[0].attention == item.attention


def test_the_diagonal_turns_where_french_turns(client: Client) -> None:
    (item,) = client.translate(AGREEMENT, source="en", target="fr", return_alignment=True).data
    source, target = item.alignment.source_tokens, item.alignment.target_tokens
    looked_at = {
        token: source[int(np.argmax(row))]
        for token, row in zip(target, item.alignment.weights, strict=True)
    }
    assert looked_at[" zone"] == " Area"
    assert looked_at[" économique"] == " Economic"
    assert looked_at[" européenne"] == " European"


def test_request_without_languages_uses_the_default(client: Client) -> None:
    answer = client.translate("El mundo no es suficiente.")
    assert (answer.model, answer.data[0].text) == ("example-es-en", "The world is not enough.")
    for asked in ({"source": "en"}, {"target": "fr"}, {"source": "en", "target": "fr"}):
        answer = client.translate(FAMOUS[0], **asked)
        assert (answer.model, answer.data[0].text) == ("example-en-fr", FAMOUS[1])


@pytest.mark.parametrize("num_beams", [1, 4])
def test_served_translations_and_alignments_are_pytorchs(client: Client, num_beams: int) -> None:
    texts = [pair.source for pair in sentences("compositional", 16, seed=5)]
    answers = client.translate(texts, target="fr", num_beams=num_beams, return_alignment=True).data
    for given, wanted in zip(answers, reader(CHECKPOINT, num_beams)(texts), strict=True):
        assert given.text == wanted.text
        weights = np.array(given.alignment.weights)
        assert weights.shape == wanted.attention.shape
        assert np.abs(weights - wanted.attention).max() < 1e-4
        assert len(given.alignment.source_tokens) == weights.shape[1]
        assert len(given.alignment.target_tokens) == weights.shape[0]


def test_attention_runs_backwards_over_both_protocols(
    client: Client, grpc_client: GrpcClient
) -> None:
    for asked in (client, grpc_client):
        answer = asked.translate(FAMOUS[0], target="fr", return_alignment=True)
        found = answer.data[0].alignment
        looked_at = {
            target.strip(): found.source_tokens[int(np.argmax(row))].strip()
            for target, row in zip(found.target_tokens, found.weights, strict=True)
        }
        assert looked_at["zone"] == "Area"
        assert looked_at["économique"] == "Economic"
        assert looked_at["européenne"] == "European"


def test_a_translation_does_not_depend_on_its_batch(client: Client) -> None:
    texts = [pair.source for pair in sentences("compositional", 24, seed=6)]
    together = [item.text for item in client.translate(texts, target="fr").data]
    with ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(lambda text: client.translate(text, target="fr").data[0].text, texts))
    assert alone == together
