"""Served examples of the encoders' tasks answer as `transformers` does, over HTTP and gRPC."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from transformers import BertTokenizer

from examples.bert.fact_wordings import question, sentence_of, wordings
from examples.bert.facts import facts
from examples.bert.functions import answerer, classifier, embedder, filler, ranker, tagger
from examples.bert.passages import asked_passages
from examples.bert.reviews import reviews
from examples.bert.scores import MASK
from examples.history.task_requests import as_pngs
from examples.texts.grammar import sentences
from examples.vit.card import Measured
from examples.vit.largest_thing import heldout_pictures
from tests.e2e.conftest import CHECKPOINTS, Stack
from triptych import Client, GrpcClient

pytestmark = pytest.mark.integration

COUNT = 20


@pytest.fixture(params=["http", "grpc"])
def served(
    request: pytest.FixtureRequest, client: Client, grpc_client: GrpcClient
) -> Client | GrpcClient:
    return client if request.param == "http" else grpc_client


def test_sentiments_of_the_default_model(served: Client | GrpcClient) -> None:
    texts = [review.text for review in islice(reviews("held_out", 5), COUNT)]
    answer = served.classify(texts, top_k=1)
    assert answer.model == "example-bert-sentiment"
    labels = [(item.labels or [])[0].label for item in answer.data]
    assert labels == classifier(CHECKPOINTS / "example-bert-sentiment")(texts)
    assert set(labels) == {"negative", "neutral", "positive"}


def test_classes_and_attention_of_pictures(served: Client | GrpcClient) -> None:
    images = [one.image for one in heldout_pictures(COUNT, seed=5)]
    answer = served.classify(images=as_pngs(images), top_k=1, return_attention=True)
    measured = Measured(CHECKPOINTS / "example-vit")
    assert answer.model == "example-vit"
    assert [(item.labels or [])[0].label for item in answer.data] == measured.classify(images)
    expected = measured.attend(images)
    assert np.allclose([item.attention for item in answer.data], expected, atol=1e-5)


def test_masked_words(served: Client | GrpcClient) -> None:
    tokenizer = BertTokenizer.from_pretrained(CHECKPOINTS / "example-bert")
    texts = []
    for pair in sentences("held_out", COUNT, 5):
        words = pair.english.split()
        texts.append(" ".join([MASK, *words[1:]]))
    answer = served.fill_mask(texts, top_k=1)
    tokens = [(item.masks or [])[0][0].token for item in answer.data]
    assert tokens == filler(CHECKPOINTS / "example-bert")(texts, [])
    assert set(tokens) <= set(tokenizer.get_vocab())


def test_roles_with_their_places(served: Client | GrpcClient) -> None:
    texts = [sentence_of(wordings(fact)[1]) for fact in islice(facts("held_out", 5), COUNT)]
    answer = served.tag(texts, aggregation="simple")
    found = [[(one.start, one.end, one.label) for one in item.tokens] for item in answer.data]
    assert found == tagger(CHECKPOINTS / "example-bert-tags")(texts)
    for text, item in zip(texts, answer.data, strict=True):
        assert all(text[one.start : one.end] == one.text for one in item.tokens)


def test_ranked_documents(served: Client | GrpcClient) -> None:
    events = list(islice(facts("held_out", 5), 5))
    documents = [sentence_of(wordings(event)[3]) for event in events]
    rank = ranker(CHECKPOINTS / "example-bert-rerank")
    for event in events:
        query = sentence_of(question(event, "agent"))
        results = served.rerank(query, documents).data[0].results or []
        assert sorted(entry.index for entry in results) == list(range(len(documents)))
        assert results[0].index == rank(query, documents)


def test_answers_in_passages(served: Client | GrpcClient) -> None:
    asked = list(islice(asked_passages("held_out", 5), COUNT))
    answer = answerer(CHECKPOINTS / "example-bert-answer")
    for one in asked:
        (item,) = served.answer(one.question, one.passage, null_threshold=0.0).data
        (found,) = item.answers or ()
        assert [found.text] == answer([one.question], [one.passage], True)
        assert found.text == one.passage[found.start : found.end]


def test_a_long_passage_is_read_in_windows(served: Client | GrpcClient) -> None:
    """About 2,400 tokens, of which the model takes 128 at once."""
    one = next(one for one in asked_passages("held_out", 5) if one.answer)
    others = [each.passage for each in islice(asked_passages("train", 6), 40)]
    passage = " ".join([*others, one.passage, *others])
    (item,) = served.answer(one.question, passage, stride=60, n=5).data
    assert one.answer in [found.text for found in item.answers or ()]


def test_hugging_faces_client_answers_questions(stack: Stack) -> None:
    one = next(one for one in asked_passages("held_out", 5) if one.answer)
    client = InferenceClient(f"{stack.url}/hf/answer/example-bert-answer")
    found = client.question_answering(one.question, one.passage)
    assert found.answer == one.passage[found.start : found.end] == one.answer


def test_embeddings_of_the_named_model(served: Client | GrpcClient) -> None:
    texts = [sentence_of(wordings(fact)[0]) for fact in islice(facts("held_out", 5), COUNT)]
    answer = served.embed(texts, model="example-bert-embed")
    vectors = np.array([item.embedding for item in answer.data])
    expected = embedder(CHECKPOINTS / "example-bert-embed")(texts)
    assert np.allclose(vectors, expected, atol=1e-5)
