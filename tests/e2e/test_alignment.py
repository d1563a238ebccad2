"""Alignments through the real stack."""

from __future__ import annotations

import numpy as np
import pytest

from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
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
