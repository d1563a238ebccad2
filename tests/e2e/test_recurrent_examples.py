"""The course's recurrent systems in one stack: what is served is what `torch.nn` computes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.panel import served_responses
from examples import HISTORY_CHECKPOINTS
from examples.bundles import publish_example
from examples.history.recurrent.everyday_sentences import LANGUAGES
from examples.history.recurrent.parts_of_speech import FAMOUS, FAMOUS_TAGS
from examples.history.recurrent.review_templates import FAMOUS as FAMOUS_REVIEWS
from examples.history.recurrent.scores import (
    language_sentences,
    scorer,
    text_classifier,
    word_tagger,
)
from examples.history.recurrent.train import EXAMPLES
from examples.history.system import Ask
from examples.history.systems.labels import tagged
from examples.history.systems.writers import log_probabilities
from examples.texts.grammar import sentences
from tests.e2e.conftest import Stack, running
from tests.shared_folders import made_once
from triptych import Client
from triptych.client.grpc_client import GrpcClient

pytestmark = pytest.mark.integration

CHARS, WORDS = "history-rnn-lm-chars", "history-rnn-lm-words"
LANGUAGE_MODELS = (CHARS, WORDS, "history-lstmn-lm-words", "history-nas-lm-words")
TAGGER, SENTIMENT = "history-rnn-tagger", "history-rnn-sentiment"
LANGUAGE = "history-rnn-languages"
QUICK = (WORDS, TAGGER)
"""What `make test` exports; the others are for `make test-all`."""
TEXTS = [
    FAMOUS,
    "Ana said that her new cook can cook.",
    "The light was light.",
    "Did you watch my watch?",
    "The old man who lost his keys thinks that the boy will find them behind the garden tonight.",
]
TOLERANCE = 2e-4
"""Of a text's log-probability, in nats: float32 sums in another order."""


def _published(names: tuple[str, ...], repository: Path) -> None:
    for name in names:
        publish_example(HISTORY_CHECKPOINTS / name, repository)


@pytest.fixture(scope="module")
def quick(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    repository = made_once(shared / "recurrent-quick", partial(_published, QUICK))
    with running(repository, tmp_path_factory.mktemp("log")) as stack:
        yield stack


@pytest.fixture(scope="module")
def full(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All of them in one stack."""
    names = tuple(example.folder for example in EXAMPLES)
    repository = made_once(shared / "recurrent-full", partial(_published, names))
    with running(repository, tmp_path_factory.mktemp("log")) as stack:
        yield stack


@pytest.fixture
def client(full: Stack) -> Iterator[Client]:
    with Client(full.url, timeout=60) as made:
        yield made


def test_words_are_tagged_and_generated_as_pytorch_does(quick: Stack) -> None:
    with Client(quick.url, timeout=60) as client:
        answer = client.tag(FAMOUS)
        assert [token.label for token in answer.data[0].tokens] == list(FAMOUS_TAGS)
        assert tagged(asking(client, TAGGER), TEXTS) == word_tagger(HISTORY_CHECKPOINTS / TAGGER)(
            TEXTS
        )
        pieces = list(client.generate_stream("My sister", max_new_tokens=12))
        whole = client.generate("My sister", max_new_tokens=12).data[0].text
        assert "".join(piece.text for piece in pieces) == whole


@pytest.mark.full
def test_one_stack_lists_all_of_them(client: Client) -> None:
    assert {model.id: tuple(model.tasks) for model in client.models().data} == {
        **dict.fromkeys(LANGUAGE_MODELS, ("generate", "score")),
        TAGGER: ("tag",),
        SENTIMENT: ("classify",),
        LANGUAGE: ("classify",),
    }


@pytest.mark.full
@pytest.mark.parametrize("model", [CHARS, WORDS])
def test_perplexity_is_pytorchs(client: Client, model: str) -> None:
    texts = [pair.english for pair in sentences("compositional", 24, seed=5)]
    served = log_probabilities(asking(client, model), texts)
    wanted = scorer(HISTORY_CHECKPOINTS / model)(texts)
    assert max(abs(a - b) for a, b in zip(served, wanted, strict=True)) < TOLERANCE
    assert min(served) < -10


@pytest.mark.full
@pytest.mark.parametrize("model", [CHARS, WORDS])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 5}])
def test_stream_is_the_whole_text(client: Client, model: str, sampling: dict[str, Any]) -> None:
    fields = {"model": model, "max_new_tokens": 30, **sampling}
    pieces = list(client.generate_stream("The old man", **fields))
    whole = client.generate("The old man", **fields).data[0].text
    assert "".join(piece.text for piece in pieces) == whole


@pytest.mark.full
@pytest.mark.parametrize("model", [CHARS, WORDS])
def test_generated_text_does_not_depend_on_its_batch(client: Client, model: str) -> None:
    prompts = ["", "My", "The black cat of", "a small red circle to the left of", "Where is"]
    together = client.generate(prompts, model=model, max_new_tokens=20)
    alone = [client.generate(one, model=model, max_new_tokens=20).data[0].text for one in prompts]
    assert [item.text for item in together.data] == alone
    assert len(set(alone)) == len(prompts)


@pytest.mark.full
def test_both_protocols_tag_alike(full: Stack, client: Client) -> None:
    with GrpcClient(full.grpc_address, timeout=60) as grpc_client:
        for one in (client, grpc_client):
            answer = one.tag(FAMOUS, model=TAGGER)
            assert [token.label for token in answer.data[0].tokens] == list(FAMOUS_TAGS)
            said = one.classify(list(FAMOUS_REVIEWS), model=SENTIMENT, top_k=1)
            found = [item.labels[0].label for item in said.data]
            assert found == list(FAMOUS_REVIEWS.values())


@pytest.mark.full
def test_ragged_batches_are_single_items(client: Client) -> None:
    together = client.tag(TEXTS, model=TAGGER).data
    for text, item in zip(TEXTS, together, strict=True):
        (alone,) = client.tag(text, model=TAGGER).data
        assert [(one.text, one.label) for one in item.tokens] == [
            (one.text, one.label) for one in alone.tokens
        ]
        for one, other in zip(item.tokens, alone.tokens, strict=True):
            assert abs(one.score - other.score) < 1e-5
    for model in (SENTIMENT, LANGUAGE):
        for text, item in zip(TEXTS, client.classify(TEXTS, model=model).data, strict=True):
            (alone,) = client.classify(text, model=model).data
            assert [one.label for one in item.labels] == [one.label for one in alone.labels]


@pytest.mark.full
def test_languages_are_those_of_pytorch(client: Client) -> None:
    asked = [one.text[:12] for one in language_sentences("held_out", 32, seed=4)]
    data = client.classify(asked, model=LANGUAGE, top_k=1).data
    found = [item.labels[0].label for item in data]
    assert found == text_classifier(HISTORY_CHECKPOINTS / LANGUAGE)(asked)
    assert set(found) == set(LANGUAGES)


def asking(client: Client, model: str) -> Ask:
    """As the measures of the history ask one model."""
    respond = served_responses(client)
    return lambda task, fields: respond(model, task, fields).data
