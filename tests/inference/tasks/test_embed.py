from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from inference.bundle.manifest import Role, Tensor
from inference.errors import BundleError, Unavailable
from inference.tasks.embed import TASK, EmbedPlan
from inference.tasks.shared.embedding_cache import EmbeddingCache
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import InferCall, Outputs
from tests.inference.tiny_models import embedded, image_file, served, two_towers
from triptych.tasks.embed import EmbedRequest

LIMITS = TaskLimits(max_client_batch_size=20)


def plan(model: LoadedModel, cache: EmbeddingCache | None = None, **fields: object) -> EmbedPlan:
    """A plan of `texts`, or of `images` given as bytes."""
    images = fields.pop("images", ())
    request = EmbedRequest(images=["placeholder"] * len(images) or None, **fields)
    model = replace(model, embeddings=EmbeddingCache() if cache is None else cache)
    return TASK.prepare(request, images, replace(model, task_limits=LIMITS))


def embed(call: InferCall) -> Outputs:
    """Images by their colour, texts by their number of tokens."""
    assert call.outputs == {"embedding": Role.EMBEDDING}
    if "pixels" in call.inputs:
        return {Role.EMBEDDING: embedded(call.inputs["pixels"].mean(axis=(1, 2)) + 1.0)}
    lengths = call.inputs["lengths"].astype(float)
    return {Role.EMBEDDING: embedded(np.stack([lengths, lengths**2, lengths**0], axis=1))}


def test_texts_keep_their_order_across_length_buckets(classifier: LoadedModel) -> None:
    texts = ["a", " ".join("abcdefghij"), "a b", "a"]
    made = plan(classifier, texts=texts)
    response = made.finish([embed(call) for call in made.calls])
    lengths = np.array([len(text.split()) + 1.0 for text in texts])
    expected = embedded(np.stack([lengths, lengths**2, lengths**0], axis=1))
    assert [item.index for item in response.data] == [0, 1, 2, 3]
    np.testing.assert_array_equal([item.embedding for item in response.data], expected)
    assert response.usage.prompt_tokens == int(lengths.sum())


def test_images_are_embedded_in_order(classifier: LoadedModel) -> None:
    made = plan(classifier, images=[image_file(colour) for colour in ("red", "lime", "red")])
    first, second, third = made.finish([embed(call) for call in made.calls]).data
    assert first.embedding == third.embedding != second.embedding
    assert first.embedding is not None
    assert np.argmax(first.embedding) == 0


def test_cached_text_needs_no_call(classifier: LoadedModel) -> None:
    cache = EmbeddingCache()
    first = plan(classifier, cache, texts=["a b"])
    before = first.finish([embed(call) for call in first.calls])
    second = plan(classifier, cache, texts=["a b"])
    assert second.calls == ()
    assert second.finish([]) == before


def test_a_cache_without_room_keeps_nothing(classifier: LoadedModel) -> None:
    cache = EmbeddingCache(0)
    for _ in range(2):
        made = plan(classifier, cache, texts=["a b"])
        made.finish([embed(call) for call in made.calls])
        assert made.calls
    assert len(cache) == 0


def test_a_failed_call_fails_its_own_items(classifier: LoadedModel) -> None:
    made = plan(classifier, texts=["a", " ".join("abcdefghij")])
    data = made.finish([Unavailable("down"), embed(made.calls[1])]).data
    assert [item.error is not None for item in data] == [True, False]


def test_roles_alone_decide_what_a_bundle_embeds(
    classifier: LoadedModel, translator: LoadedModel
) -> None:
    assert "embed" in classifier.sections
    assert "embed" not in classifier.manifest.tasks
    assert "embed" not in translator.sections
    texts_only = served(
        classifier.manifest.model_copy(
            update={"graphs": {"text": classifier.manifest.graphs["text"]}, "tasks": {"embed": {}}}
        )
    )
    assert TASK.accepts(EmbedRequest(texts=["a"]), texts_only)
    assert not TASK.accepts(EmbedRequest(images=["a"]), texts_only)
    assert TASK.inputs(texts_only) == ["texts"]
    assert TASK.inputs(classifier) == ["texts", "images"]
    refusal = TASK.refusal(EmbedRequest(images=["a"]), [texts_only])
    assert (refusal.field, refusal.message) == ("images", "tiny-zero-shot cannot embed images")


def test_a_graph_without_lengths_gets_tokens_alone(classifier: LoadedModel) -> None:
    text = classifier.manifest.graphs["text"]
    tokens = text.model_copy(update={"inputs": text.inputs[:1]})
    graphs = {**classifier.manifest.graphs, "text": tokens}
    model = served(classifier.manifest.model_copy(update={"graphs": graphs}))
    (call,) = plan(model, texts=["a b"]).calls
    assert list(call.inputs) == ["token_ids"]


def test_canary_calls_every_part(classifier: LoadedModel) -> None:
    assert [call.model for call in TASK.canary(classifier)] == [
        "tiny-zero-shot",
        "tiny-zero-shot-text",
    ]


class TestSection:
    PROMPTS: ClassVar = {"query": "q: ", "passage": "p: "}

    def model(self, **section: object) -> LoadedModel:
        return served(two_towers().model_copy(update={"tasks": {"embed": section}}))

    def tokens(self, model: LoadedModel, **fields: object) -> list[str]:
        (call,) = plan(model, texts=["a"], **fields).calls
        return model.tokenizer.pieces(call.inputs["token_ids"][0, :-1])

    def first_word(self, model: LoadedModel, **fields: object) -> str:
        return self.tokens(model, **fields)[0]

    def test_default_prompt_is_replaced_by_any_other(self) -> None:
        model = self.model(prompts=self.PROMPTS, default_prompt="query")
        assert self.first_word(model) == "q:"
        assert self.first_word(model, prompt_name="passage") == "p:"
        assert self.first_word(model, prompt="") == "a"
        assert TASK.details(model) == {"prompts": ["query", "passage"]}

    def test_texts_with_and_without_a_prompt_are_cached_apart(self) -> None:
        cache = EmbeddingCache()
        model = self.model(prompts=self.PROMPTS)
        for fields in ({}, {"prompt_name": "query"}):
            made = plan(model, cache, texts=["a"], **fields)
            assert made.calls
            made.finish([embed(call) for call in made.calls])
        assert plan(model, cache, texts=["q: a"]).calls == ()

    def test_default_prompt_must_be_one_of_the_prompts(self) -> None:
        with pytest.raises(BundleError, match="default_prompt 'x' is not in prompts"):
            self.model(default_prompt="x")

    @pytest.mark.parametrize("fields", [{}, {"normalize": True}, {"normalize": False}])
    def test_raw_vectors_are_scaled_unless_refused(self, fields: dict[str, bool]) -> None:
        made = plan(self.model(is_normalized=False), texts=["a", "b c"], **fields)
        raw = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]], dtype=np.float32)
        data = made.finish([{Role.EMBEDDING: raw}]).data
        expected = raw / np.array([[5.0], [1.0]]) if fields.get("normalize", True) else raw
        np.testing.assert_allclose([item.embedding for item in data], expected, rtol=1e-6)


def test_graph_with_segments_gets_them(classifier: LoadedModel) -> None:
    text = classifier.manifest.graphs["text"]
    segments = Tensor(name="segments", dtype="int64", shape=("B", "T"), role=Role.SEGMENTS)
    graph = text.model_copy(update={"inputs": (*text.inputs, segments)})
    graphs = {**classifier.manifest.graphs, "text": graph}
    model = served(classifier.manifest.model_copy(update={"graphs": graphs}))
    (call,) = plan(model, texts=["a b", "a"]).calls
    assert call.inputs["segments"].tolist() == [[0] * 8] * 2


def test_prompt_counts_once_for_each_text() -> None:
    assert TASK.size(EmbedRequest(texts=["a", "bc"], prompt="four")) == 3 + 2 * 4
