"""Hugging Face's client against the examples, served by a real Triton."""

from __future__ import annotations

import numpy as np
import pytest
from huggingface_hub import InferenceClient, close_session

from examples.demo.inputs import PICTURES
from tests.e2e.conftest import Stack
from triptych import Client

pytestmark = pytest.mark.integration


def test_methods_answer_as_our_own_client(stack: Stack, client: Client) -> None:
    def connected(path: str) -> InferenceClient:
        return InferenceClient(f"{stack.url}/hf/{path}", timeout=60)

    text, picture = "El mundo no es suficiente.", (PICTURES / "scene-1.png").read_bytes()
    translated = client.translate(text, model="example-es-en").data[0].text
    found = connected("translate/example-es-en").translation(text, src_lang="es", tgt_lang="en")
    assert found.translation_text == translated

    caption = client.caption(picture, model="example-captioner").data[0].text
    assert connected("example-captioner").image_to_text(picture).generated_text == caption

    labels = ["red circle", "yellow square"]
    scored = client.zero_shot(picture, labels=labels).data[0].labels or []
    ranked = connected("example-clip").zero_shot_image_classification(
        picture, labels, hypothesis_template="a photo of a {}"
    )
    assert [(one.label, one.score) for one in ranked] == [(one.label, one.score) for one in scored]

    classes = client.classify(images=picture, model="example-vit", top_k=2).data[0].labels or []
    shown = connected("classify/example-vit").image_classification(picture, top_k=2)
    assert [one.label for one in shown] == [one.label for one in classes]

    vectors = connected("embed/example-bert-embed").feature_extraction(["Ana sings.", "Ana sang."])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    cosines = connected("example-bert-embed").sentence_similarity("Ana sings.", ["Ana sang."])
    np.testing.assert_allclose(cosines, [vectors[0] @ vectors[1]], rtol=1e-5)

    masked = connected("fill-mask/example-bert").fill_mask("My sister [MASK] a teacher.", top_k=1)
    assert masked[0].token_str.strip() == "is"
    tags = connected("example-bert-tags").token_classification(
        "Ana sold a lamp.", aggregation_strategy="simple"
    )
    assert tags[0].word == "Ana"
    moods = connected("example-bert-sentiment").text_classification("The food was not bad at all.")
    assert moods[0].label == "positive"
    close_session()


def test_generated_text_is_streamed_token_by_token(stack: Stack) -> None:
    client = InferenceClient(f"{stack.url}/hf/generate/example-gpt", timeout=60)
    asked = {"max_new_tokens": 8, "details": True}
    whole = client.text_generation("a small red", **asked)
    assert whole.details is not None
    events = list(client.text_generation("a small red", stream=True, **asked))
    assert "".join(event.token.text for event in events) == whole.generated_text
    assert [event.token.id for event in events] == [token.id for token in whole.details.tokens]
    assert events[-1].generated_text == whole.generated_text
    assert events[-1].details is not None
    assert events[-1].details.finish_reason == whole.details.finish_reason
    stopped = client.text_generation("a small red", stop=[" "], details=True)
    assert stopped.details is not None
    assert stopped.details.finish_reason == "stop_sequence"
    close_session()
