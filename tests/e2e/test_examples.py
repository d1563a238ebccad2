"""The examples of encoders, conversations and questions, over every protocol."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import islice

import httpx
import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient
from openai.types.chat import ChatCompletionMessageParam
from transformers import AutoTokenizer, BertTokenizer, LlavaProcessor

from examples.bert import scores as bert_scores
from examples.bert.facts import facts, question, sentence_of, wordings
from examples.bert.passages import asked_passages
from examples.bert.reviews import reviews
from examples.bert.scores import MASK, classifier, embedder, filler, ranker, tagger
from examples.chat.dialogues import Message, questions
from examples.chat.scores import Reply
from examples.gpt.scores import replier
from examples.history.task_requests import as_png, as_pngs
from examples.scenes import scores as scenes_scores
from examples.texts.grammar import sentences
from examples.vit.card import Measured
from examples.vit.scores import heldout_pictures
from examples.vqa.questions import draw_questions
from examples.vqa.scores import MAX_ANSWER, answerer, lay_out
from tests.e2e.conftest import CHECKPOINTS, Stack
from tests.e2e.test_lifecycle import eventually
from tests.e2e.workload import engine_stats
from triptych import Client
from triptych.client.grpc_client import GrpcClient

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
    answer = bert_scores.answerer(CHECKPOINTS / "example-bert-answer")
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


CHAT_MODEL = "example-chat"
FOLDER = CHECKPOINTS / CHAT_MODEL
TOLD: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "My name is Torsten. My car is red."},
    {"role": "assistant", "content": "Nice to meet you, Torsten. I see."},
]
ASKED: ChatCompletionMessageParam = {"role": "user", "content": "What color is my car?"}
IN_SPANISH: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Answer in Spanish."},
    {"role": "user", "content": "I live in London."},
    {"role": "assistant", "content": "Londres es muy bonito."},
    {"role": "user", "content": "Where do I live?"},
]
ANSWERS = {"Your car is red.": [*TOLD, ASKED], "Vives en Londres.": IN_SPANISH}
UNTOLD = "You have not told me."


@pytest.fixture(scope="module")
def original() -> Reply:
    """`transformers`, from messages to the answer's text."""
    return replier(FOLDER)


@pytest.fixture(scope="module")
def conversations() -> list[Sequence[Message]]:
    return [one.messages for one in questions("compositional", 24, seed=5)]


def test_answers_are_those_of_transformers(
    client: Client, original: Reply, conversations: list[Sequence[Message]]
) -> None:
    expected = original(conversations)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert len(set(expected)) > 12
    for messages, text in zip(conversations, expected, strict=True):
        answer = client.chat(list(messages), model=CHAT_MODEL)
        laid_out = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)
        assert answer.data[0].text == text
        assert answer.data[0].finish_reason == "stop"
        assert answer.usage.prompt_tokens == len(laid_out["input_ids"])


def test_only_this_example_chats_without_pictures_and_needs_no_name(client: Client) -> None:
    (model,) = [
        model
        for model in client.models().data
        for inputs in model.inputs
        if inputs.task == "chat" and "images" not in inputs.fields
    ]
    assert (model.id, model.architecture) == (CHAT_MODEL, "qwen3")
    assert client.chat([ASKED]).data[0].text == UNTOLD
    assert client.generate("a small red").model == "example-gpt"


@pytest.mark.parametrize("answer", ANSWERS)
def test_clients_of_other_apis_hold_a_conversation(stack: Stack, answer: str) -> None:
    messages = ANSWERS[answer]
    url = f"{stack.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        done = client.chat.completions.create(model=CHAT_MODEL, messages=messages)
        assert done.choices[0].message.content == answer
        parts = client.chat.completions.create(model=CHAT_MODEL, messages=messages, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == answer
    said = InferenceClient(url).chat_completion(messages, model=CHAT_MODEL, max_tokens=32)
    assert said.choices[0].message.content == answer


@pytest.mark.parametrize("answer", ANSWERS)
def test_streams_are_the_answers(client: Client, grpc_client: GrpcClient, answer: str) -> None:
    for each in (client, grpc_client):
        pieces = list(each.chat_stream(ANSWERS[answer], model=CHAT_MODEL))
        assert "".join(piece.text for piece in pieces) == answer


def test_the_next_turn_continues_the_cached_ones(client: Client, stack: Stack) -> None:
    def hits() -> float:
        return engine_stats(stack, CHAT_MODEL).figures["prefix_hits"]

    before = hits()
    messages = [{"role": "user", "content": "My dog is called Rex."}]
    for said in ("My cat is called Miko.", "I live in Rome.", "What is my dog called?"):
        text = str(client.chat(messages, model=CHAT_MODEL).data[0].text)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": said}]
    assert client.chat(messages, model=CHAT_MODEL).data[0].text == "Your dog is called Rex."
    assert eventually(lambda: hits() > before)


def test_roles_that_the_template_does_not_know_are_refused(stack: Stack) -> None:
    messages = [{"role": "narrator", "content": "It was night."}]
    answer = httpx.post(f"{stack.url}/v1/chat", json={"messages": messages, "model": CHAT_MODEL})
    assert answer.status_code == 422
    assert "roles are system, user and assistant" in answer.json()["error"]["message"]


QUESTIONS_MODEL = "example-vqa"
Asked = list[tuple[bytes, str, str]]
"""A picture, a question and the answer of `transformers`."""


@pytest.fixture(scope="module")
def asked() -> Asked:
    rng = np.random.default_rng(2)
    pictures = [
        (picture, question.text)
        for scene, picture in scenes_scores.heldout_pictures(6, seed=9)
        for question in islice(draw_questions(scene, rng), 3)
    ]
    answers = answerer(CHECKPOINTS / QUESTIONS_MODEL)(pictures)
    return [(as_png(p), text, one) for (p, text), one in zip(pictures, answers, strict=True)]


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"<image>{question}"}]


def test_answers_to_questions_are_those_of_transformers(
    client: Client, grpc_client: GrpcClient, asked: Asked
) -> None:
    assert len({answer for _, _, answer in asked}) > 6
    for picture, text, answer in asked:
        # Of two models that chat, the one that reads images.
        found = client.chat(messages(text), images=[picture])
        assert (found.model, found.data[0].text) == (QUESTIONS_MODEL, answer)
        parts = grpc_client.chat_stream(messages(text), images=[picture], model=QUESTIONS_MODEL)
        assert "".join(part.text for part in parts) == answer


def test_openais_client_asks_about_a_picture_and_asks_again(stack: Stack, asked: Asked) -> None:
    (picture, first, answer), (_, second, _) = asked[0], asked[1]
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": first},
    ]
    turns = [{"role": "user", "content": content}]
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as api:
        done = api.chat.completions.create(model=QUESTIONS_MODEL, messages=turns)
        assert done.choices[0].message.content == answer
        turns += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": second},
        ]
        again = api.chat.completions.create(model=QUESTIONS_MODEL, messages=turns)
    native = [
        {"role": "user", "content": f"<image>{first}"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": second},
    ]
    with Client(stack.url, timeout=60) as client:
        expected = client.chat(native, images=[picture], model=QUESTIONS_MODEL).data[0].text
    assert again.choices[0].message.content == expected


def test_prompts_with_pictures_continue_as_in_transformers(
    client: Client, grpc_client: GrpcClient, stack: Stack, asked: Asked
) -> None:
    """All protocols, several prompts in one request, as the model's template lays them out."""
    processor = LlavaProcessor.from_pretrained(CHECKPOINTS / QUESTIONS_MODEL)
    prompts = [lay_out(question, processor) for _, question, _ in asked]
    pictures, wanted = [one for one, _, _ in asked], [answer for _, _, answer in asked]
    options = {"model": QUESTIONS_MODEL, "max_new_tokens": MAX_ANSWER, "stop": "\n\n"}
    for each in (client, grpc_client):
        found = each.generate(prompts, images=pictures, **options)
        assert [item.text for item in found.data] == wanted
    files = [("images", ("a.png", picture, "image/png")) for picture in pictures]
    form = {"prompts": prompts, **options}
    posted = httpx.post(f"{stack.url}/v1/generate", data=form, files=files, timeout=60)
    assert [item["text"] for item in posted.json()["data"]] == wanted


def test_wrong_pictures_are_refused_in_words(stack: Stack, asked: Asked) -> None:
    text = base64.b64encode(asked[0][0]).decode()
    for prompts, images, message in (
        ("<image>", None, "1 <image> places, images holds 0"),
        (["<image>", "a"], [text] * 2, "1 + 0 <image> places, images holds 2"),
    ):
        body = {"prompts": prompts, "model": QUESTIONS_MODEL} | (
            {"images": images} if images else {}
        )
        answer = httpx.post(f"{stack.url}/v1/generate", json=body)
        assert answer.status_code == 422
        assert message in answer.json()["error"]["message"]


def test_captions_follow_the_instruction(client: Client, asked: Asked) -> None:
    (caption,) = client.caption([asked[0][0]], model=QUESTIONS_MODEL).data
    assert caption.text.startswith("a ")
    assert "background" in caption.text
