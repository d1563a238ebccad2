"""Vectors of texts and images, ranked documents, and scores of given targets."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Limits, Role, Tensor
from inference.engine.codec import PIXELS, PROMPT_IDS, SOURCE_IDS
from inference.errors import BundleError, InvalidRequest, TooLong, Unavailable
from inference.generation import Generation
from inference.tasks import TASKS
from inference.tasks.embed import TASK as EMBED
from inference.tasks.embed import EmbedPlan
from inference.tasks.rerank import TASK as RERANK
from inference.tasks.rerank import RerankPlan
from inference.tasks.score import TASK as SCORE
from inference.tasks.score import ScorePlan
from inference.tasks.shared.embedding_cache import EmbeddingCache
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import InferCall, Outcome, Outputs
from inference.tasks.shared.served_task import sections_of
from serving.gateway.requests.service import INLINE_LIMIT
from tests.inference.tiny_models import (
    IMAGE,
    WordTokenizer,
    cross_encoder,
    embedded,
    finished,
    image_file,
    manifest,
    run,
    served,
)
from tests.tasks.models import ENCODES, prompted
from triptych.tasks.embed import EmbedRequest
from triptych.tasks.rerank import Ranking, RerankRequest
from triptych.tasks.score import ScoreRequest

EMBED_LIMITS = TaskLimits(max_client_batch_size=20)


def plan_embeddings(
    model: LoadedModel, cache: EmbeddingCache | None = None, **fields: object
) -> EmbedPlan:
    """A plan of `texts`, or of `images` given as bytes."""
    images = fields.pop("images", ())
    request = EmbedRequest(images=["placeholder"] * len(images) or None, **fields)
    model = replace(model, embeddings=EmbeddingCache() if cache is None else cache)
    return EMBED.prepare(request, images, replace(model, task_limits=EMBED_LIMITS))


def embed(call: InferCall) -> Outputs:
    """Images by their colour, texts by their number of tokens."""
    assert call.outputs == {"embedding": Role.EMBEDDING}
    if "pixels" in call.inputs:
        return {Role.EMBEDDING: embedded(call.inputs["pixels"].mean(axis=(1, 2)) + 1.0)}
    lengths = call.inputs["lengths"].astype(float)
    return {Role.EMBEDDING: embedded(np.stack([lengths, lengths**2, lengths**0], axis=1))}


def test_texts_keep_their_order_across_length_buckets(classifier: LoadedModel) -> None:
    texts = ["a", " ".join("abcdefghij"), "a b", "a"]
    made = plan_embeddings(classifier, texts=texts)
    response = made.finish([embed(call) for call in made.calls])
    lengths = np.array([len(text.split()) + 1.0 for text in texts])
    expected = embedded(np.stack([lengths, lengths**2, lengths**0], axis=1))
    assert [item.index for item in response.data] == [0, 1, 2, 3]
    np.testing.assert_array_equal([item.embedding for item in response.data], expected)
    assert response.usage.prompt_tokens == int(lengths.sum())


def test_images_are_embedded_in_order(classifier: LoadedModel) -> None:
    made = plan_embeddings(
        classifier, images=[image_file(colour) for colour in ("red", "lime", "red")]
    )
    first, second, third = made.finish([embed(call) for call in made.calls]).data
    assert np.array_equal(first.embedding, third.embedding)
    assert not np.array_equal(first.embedding, second.embedding)
    assert first.embedding is not None
    assert np.argmax(first.embedding) == 0


def test_each_frame_has_the_same_weight_whatever_its_length() -> None:
    frames = [image_file("red"), image_file("blue")]
    model = prompted(is_normalized=False)
    made = plan_embeddings(model, images=frames, frame_counts=[2])
    raw = {Role.EMBEDDING: np.array([[3, 4], [0, 10]], dtype=np.float32)}  # (0.6, 0.8), (0, 1)
    (item,) = made.finish([raw]).data
    np.testing.assert_allclose(item.embedding, np.array([1, 3]) / 10**0.5, rtol=1e-6)


def test_cached_text_needs_no_call(classifier: LoadedModel) -> None:
    cache = EmbeddingCache()
    first = plan_embeddings(classifier, cache, texts=["a b"])
    before = first.finish([embed(call) for call in first.calls])
    second = plan_embeddings(classifier, cache, texts=["a b"])
    assert second.calls == ()
    assert second.finish([]).model_dump() == before.model_dump()


def test_a_cache_without_room_keeps_nothing(classifier: LoadedModel) -> None:
    cache = EmbeddingCache(0)
    for _ in range(2):
        made = plan_embeddings(classifier, cache, texts=["a b"])
        made.finish([embed(call) for call in made.calls])
        assert made.calls
    assert len(cache) == 0


def test_a_failed_call_fails_its_own_items(classifier: LoadedModel) -> None:
    made = plan_embeddings(classifier, texts=["a", " ".join("abcdefghij")])
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
    assert EMBED.accepts(EmbedRequest(texts=["a"]), texts_only)
    assert not EMBED.accepts(EmbedRequest(images=["a"]), texts_only)
    assert EMBED.inputs(texts_only) == ["texts"]
    assert EMBED.inputs(classifier) == ["texts", "images"]
    refusal = EMBED.refusal(EmbedRequest(images=["a"]), [texts_only])
    assert (refusal.field, refusal.message) == ("images", "tiny-zero-shot cannot embed images")


def test_a_graph_without_lengths_gets_tokens_alone(classifier: LoadedModel) -> None:
    text = classifier.manifest.graphs["text"]
    tokens = text.model_copy(update={"inputs": text.inputs[:1]})
    graphs = {**classifier.manifest.graphs, "text": tokens}
    model = served(classifier.manifest.model_copy(update={"graphs": graphs}))
    (call,) = plan_embeddings(model, texts=["a b"]).calls
    assert list(call.inputs) == ["token_ids"]


def test_canary_calls_every_part(classifier: LoadedModel) -> None:
    assert [call.model for call in EMBED.canary(classifier)] == [
        "tiny-zero-shot",
        "tiny-zero-shot-text",
    ]


class TestSection:
    PROMPTS: ClassVar = {"query": "q: ", "passage": "p: "}

    def tokens(self, model: LoadedModel, **fields: object) -> list[str]:
        (call,) = plan_embeddings(model, texts=["a"], **fields).calls
        return model.tokenizer.pieces(call.inputs["token_ids"][0, :-1])

    def first_word(self, model: LoadedModel, **fields: object) -> str:
        return self.tokens(model, **fields)[0]

    def test_default_prompt_is_replaced_by_any_other(self) -> None:
        model = prompted(prompts=self.PROMPTS, default_prompt="query")
        assert self.first_word(model) == "q:"
        assert self.first_word(model, prompt_name="passage") == "p:"
        assert self.first_word(model, prompt="") == "a"
        assert EMBED.details(model) == {"prompts": ["query", "passage"]}

    def test_texts_with_and_without_a_prompt_are_cached_apart(self) -> None:
        cache = EmbeddingCache()
        model = prompted(prompts=self.PROMPTS)
        for fields in ({}, {"prompt_name": "query"}):
            made = plan_embeddings(model, cache, texts=["a"], **fields)
            assert made.calls
            made.finish([embed(call) for call in made.calls])
        assert plan_embeddings(model, cache, texts=["q: a"]).calls == ()

    def test_default_prompt_must_be_one_of_the_prompts(self) -> None:
        with pytest.raises(BundleError, match="default_prompt 'x' is not in prompts"):
            prompted(default_prompt="x")

    @pytest.mark.parametrize("fields", [{}, {"normalize": True}, {"normalize": False}])
    def test_raw_vectors_are_scaled_unless_refused(self, fields: dict[str, bool]) -> None:
        made = plan_embeddings(prompted(is_normalized=False), texts=["a", "b c"], **fields)
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
    (call,) = plan_embeddings(model, texts=["a b", "a"]).calls
    assert call.inputs["segments"].tolist() == [[0] * 8] * 2


def test_prompt_counts_once_for_each_text() -> None:
    assert EMBED.size(EmbedRequest(texts=["a", "bc"], prompt="four")) == 3 + 2 * 4


RERANK_LIMITS = TaskLimits(max_client_batch_size=4)
LONG = " ".join("abcdefghijkl")


def plan_ranking(model: LoadedModel, **fields: object) -> RerankPlan:
    return RERANK.prepare(RerankRequest(**fields), (), replace(model, task_limits=RERANK_LIMITS))


def rerank(model: LoadedModel, **fields: object) -> list[Ranking]:
    made = plan_ranking(model, **fields)
    return made.finish([run(call) for call in made.calls]).data


def ranked(item: Ranking) -> list[tuple[int, float | None]]:
    return [(entry.index, entry.score) for entry in item.results]


def test_each_query_ranks_all_documents_and_equal_pairs_share_a_row() -> None:
    made = plan_ranking(served(cross_encoder()), query=["q", "r", "q"], documents=["a", "b", "a"])
    assert sum(len(call.inputs["token_ids"]) for call in made.calls) == 4
    first, second, third = made.finish([run(call) for call in made.calls]).data
    assert ranked(first) == ranked(third) == ranked(second)
    assert [item.index for item in (first, second, third)] == [0, 1, 2]
    assert len(first.results) == 3


def test_bad_document_is_reported_after_the_others() -> None:
    (item,) = rerank(served(cross_encoder()), query="q", documents=[LONG, "a", " "], top_n=1)
    good, long, empty = item.results
    assert good.index == 1
    assert (long.index, long.score, long.error.type) == (0, None, "too_long")
    assert long.error.field == "documents.0"
    assert "documents.0 has 15 tokens with its query" in long.error.message
    assert (empty.error.type, empty.error.field) == ("invalid_request", "documents.2")


def test_truncate_cuts_the_longer_text() -> None:
    made = plan_ranking(served(cross_encoder()), query="q r", documents=[LONG], truncate=True)
    (call,) = made.calls
    assert call.inputs["lengths"].tolist() == [12]
    # Tokens: two of the query, the separator, eight of the document, the end.
    assert call.inputs["token_ids"].tolist() == [[3, 4, 2, *range(5, 13), 1]]
    assert call.inputs["segments"].tolist() == [[0] * 3 + [1] * 9]


def test_only_bad_documents_fail_the_query() -> None:
    with pytest.raises(TooLong):
        rerank(served(cross_encoder()), query="q", documents=[LONG])
    first, second = rerank(served(cross_encoder()), query=["q", LONG], documents=["a"])
    assert first.results
    assert second.error.type == "too_long"


def test_failed_call_fails_its_documents() -> None:
    made = plan_ranking(served(cross_encoder()), query="q", documents=["a", " ".join("abcdefgh")])
    (item,) = made.finish([Unavailable("down"), run(made.calls[1])]).data
    assert [(entry.index, entry.error is None) for entry in item.results] == [(1, True), (0, False)]


def test_ranking_has_limits_a_size_and_a_canary() -> None:
    model = served(cross_encoder())
    assert RERANK.limits(model) == {"max_documents": 1000, "max_pair_characters": 5_000_000}
    assert RERANK.size(RerankRequest(query=["ab", "c"], documents=["abc", "d"])) == 14 + 4 * 32
    (call,) = RERANK.canary(model)
    assert call.model == "tiny-rerank"


def test_many_short_pairs_are_not_small_work() -> None:
    made = plan_ranking(served(cross_encoder()), query=["q"] * 4, documents=["a"] * 250)
    outcomes = [run(call) for call in made.calls]
    assert RERANK.size(made.request) > INLINE_LIMIT
    assert made.finish_size(outcomes) > INLINE_LIMIT
    one = plan_ranking(served(cross_encoder()), query="q", documents=["a"])
    assert max(RERANK.size(one.request), one.finish_size([])) < 100


SCORE_LIMITS = TaskLimits(max_input_tokens=30, max_client_batch_size=4)
END = 1


def scoring_model(kind: str, **rules: object) -> LoadedModel:
    defaults = {"pad_token_id": 0, "max_new_tokens": 5, "eos_token_ids": (END,), "num_beams": 2}
    fields: dict[str, object] = {"generation": Generation(**{**defaults, **rules})}
    reads_images = kind not in ("translator", "language")
    tokenizer = WordTokenizer()
    if kind in ("translator", "encoder of images"):
        fields["graphs"] = ENCODES
    if reads_images:
        fields["image"] = IMAGE
    places: dict[str, object] = {}
    if kind.endswith("of images"):
        tokenizer.encode("<image>")  # token 3
        places = {"images": {"place": "<image>", "is_leading": True}}
        held = "source_image" if kind.startswith("encoder") else "images"
        fields[held] = PromptImages(positions=2, token_id=3, tokens=2)
    fields["limits"] = Limits(max_input_tokens=12, max_total_tokens=16)
    return served(manifest("caption" if reads_images else "generate", places, **fields), tokenizer)


def plan_scoring(loaded: LoadedModel, *targets: str, **fields: object) -> ScorePlan:
    images = fields.pop("images", None)
    request = ScoreRequest(
        targets=list(targets), images=["x"] * len(images or ()) or None, **fields
    )
    return SCORE.prepare(request, images or (), replace(loaded, task_limits=SCORE_LIMITS))


def given(loaded: LoadedModel, made: ScorePlan) -> list[str]:
    """The tokens that each call takes, with a mark for the end token."""
    texts = []
    for call in made.calls:
        ids = call.options.given_ids or ()
        assert call.options.max_new_tokens == len(ids)
        assert (call.options.num_beams, call.options.do_sample) == (1, False)
        end = " ." if ids[-1] == END else ""
        texts.append(loaded.tokenizer.decode(ids) + end)
    return texts


def test_one_text_is_for_all_targets() -> None:
    loaded = scoring_model("translator", decoder_start_ids=(2,))
    made = plan_scoring(loaded, "a", "b", "c", texts="el gato")
    read = {loaded.tokenizer.decode(call.inputs[SOURCE_IDS]) for call in made.calls}
    assert (read, len(made.calls)) == ({"el gato"}, 3)


def test_a_forced_first_token_is_scored() -> None:
    loaded = scoring_model("translator", decoder_start_ids=(2,), forced_bos_token_id=7)
    (call,) = plan_scoring(loaded, "a", texts="b").calls
    assert call.options.given_ids[0] == 7


def test_a_language_model_scores_continuations_without_the_end() -> None:
    loaded = scoring_model("language")
    made = plan_scoring(loaded, " is red", " is blue .", texts="the ring")
    assert given(loaded, made) == ["is red", "is blue ."]
    prompts = [loaded.tokenizer.decode(call.inputs[PROMPT_IDS]) for call in made.calls]
    assert prompts == ["the ring", "the ring"]


def test_a_captioner_scores_texts_of_images() -> None:
    loaded = scoring_model("captioner", decoder_start_ids=(2,))
    made = plan_scoring(loaded, "a ring", "a cat", images=[image_file("red")])
    assert given(loaded, made) == ["a ring .", "a cat ."]
    assert all(call.inputs[PIXELS].shape == (4, 4, 3) for call in made.calls)


@pytest.mark.parametrize(
    ("kind", "read"), [("encoder of images", SOURCE_IDS), ("decoder of images", PROMPT_IDS)]
)
def test_a_text_beside_an_image_is_its_prompt(kind: str, read: str) -> None:
    loaded, red = scoring_model(kind, decoder_start_ids=(2,)), image_file("red")
    for text, words in (("what is", ["what", "is"]), (None, [])):
        made = plan_scoring(loaded, "a cat", texts=text, images=[red])
        pieces = loaded.tokenizer.pieces(made.calls[0].inputs[read])
        assert pieces == ["<image>", "<image>", *words, "</s>"]
        assert made.calls[0].inputs[PIXELS].shape[-3:] == (4, 4, 3)
        assert given(loaded, made) == ["a cat ."]
    for target, text, name in (("a", "b <image>", "texts.0"), ("<image>", "b", "targets.0")):
        for images in (None, [red]):
            with pytest.raises(InvalidRequest, match=f"^{name} has") as caught:
                plan_scoring(loaded, target, texts=text, images=images)
            assert caught.value.field == name


def answer(log_probs: tuple[float, ...]) -> Outcome:
    ids = tuple(range(3, 3 + len(log_probs)))
    return finished((ids,), (-99.0,), log_probs=(log_probs,), top=((),))


def test_targets_that_do_not_fit_are_errors_of_their_own() -> None:
    loaded = scoring_model("translator", decoder_start_ids=(2,))
    made = plan_scoring(loaded, "a " * 20, "b", "", texts="x", with_end=False)
    long, fits, empty = made.finish([answer((-1.0,))]).data
    assert long.error.message == (
        "targets.0 has 20 tokens behind 1, tiny-generate holds 16: shorten it"
    )
    assert fits.score == -1.0
    assert "targets.2 is empty" in empty.error.message


def test_models_take_what_they_read() -> None:
    texts, images = {"texts": ["a"]}, {"images": ["x"]}
    cases = {"translator": [texts], "captioner": [images], "language": [texts, {}]}
    cases["encoder of images"] = [images, texts | images]
    cases["decoder of images"] = [texts, {}, images, texts | images]
    for kind, taken in cases.items():
        for fields in (texts, images, {}, texts | images):
            request = ScoreRequest(targets=["a"], **fields)
            assert SCORE.accepts(request, scoring_model(kind)) == (fields in taken)
    refused = SCORE.refusal(ScoreRequest(targets=["a"]), [scoring_model("captioner")])
    assert "tiny-caption reads images" in refused.message


def test_generators_of_one_language_serve_it_without_a_section() -> None:
    assert "score" in sections_of(manifest("generate"), TASKS)
    assert "score" in sections_of(manifest("translate", {"languages": [("es", "en")]}), TASKS)
    many = {"tokens": {"codes": {"en": 4}, "place": "before"}}
    assert "score" not in sections_of(manifest("translate", many), TASKS)
