"""Labels of texts, images and tokens, and tokens for masks."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.pipelines.token_classification import (
    AggregationStrategy,
    TokenClassificationPipeline,
)

from inference.bundle.manifest import Role
from inference.errors import BundleError, InvalidRequest, TooLong, Unavailable
from inference.processing.prepared_image import PreparedImage
from inference.processing.tokenizer import EncodedText
from inference.tasks.classify import TASK as CLASSIFY
from inference.tasks.classify import ClassifyPlan
from inference.tasks.embedding.embedding_calls import choose_frames
from inference.tasks.fill_mask import TASK as FILL_MASK
from inference.tasks.fill_mask import FillMaskPlan
from inference.tasks.shared.embedding_cache import EmbeddingCache
from inference.tasks.shared.labels import Entity, LabelledToken, entities, without_overlaps
from inference.tasks.shared.length_buckets import Padding, buckets
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import InferCall, Outcome, Outputs
from inference.tasks.shared.served_task import Plan
from inference.tasks.tag import TASK as TAG
from inference.tasks.tag import TagPlan
from inference.tasks.zero_shot import TASK as ZERO_SHOT
from inference.tasks.zero_shot import ZeroShotPlan
from tests.inference.tiny_models import (
    WordTokenizer,
    embedded,
    image_classifier,
    image_file,
    run,
    served,
    text_classifier,
    word_labeller,
)
from tests.tasks.models import LONG, MODELS
from triptych.tasks.classify import Classes, ClassifyRequest
from triptych.tasks.fill_mask import FilledMasks, FillMaskRequest
from triptych.tasks.tag import TagRequest, Tags
from triptych.tasks.zero_shot import ZeroShotRequest

CLASSIFY_LIMITS = TaskLimits(max_client_batch_size=20, max_input_tokens=40)


def plan_classes(model: LoadedModel, **fields: object) -> ClassifyPlan:
    images = fields.pop("images", ())
    request = ClassifyRequest(images=["placeholder"] * len(images) or None, **fields)
    return CLASSIFY.prepare(request, images, replace(model, task_limits=CLASSIFY_LIMITS))


def classify(model: LoadedModel, **fields: object) -> list[Classes]:
    made = plan_classes(model, **fields)
    return made.finish([run(call) for call in made.calls]).data


def scores(item: Classes) -> dict[str, float]:
    return {entry.label: entry.score for entry in item.labels}


def softmax(*logits: float) -> dict[str, float]:
    weights = np.exp(np.array(logits) - max(logits))
    return dict(zip("xyz", weights / weights.sum(), strict=True))


def test_five_labels_are_returned_by_default() -> None:
    model = served(text_classifier(labels=("x", "y", "z")))
    assert CLASSIFY.limits(model) == {"max_top_k": 3}
    assert ClassifyRequest(texts="a").top_k == 5


@pytest.mark.parametrize(
    ("pairs", "texts", "accepted"),
    [("none", True, True), ("none", False, False), ("optional", True, True),
     ("optional", False, True), ("required", True, False), ("required", False, True)],
)  # fmt: skip
def test_section_decides_about_pairs(pairs: str, texts: bool, accepted: bool) -> None:
    model = served(text_classifier(pairs=pairs))
    fields = {"texts": "a"} if texts else {"pairs": [["a", "b"]]}
    assert CLASSIFY.accepts(ClassifyRequest(**fields), model) is accepted
    assert (next(iter(fields)) in CLASSIFY.inputs(model)) is accepted


def test_inputs_are_those_of_the_parts() -> None:
    assert CLASSIFY.inputs(served(text_classifier(pairs="optional"))) == ["texts", "pairs"]
    assert CLASSIFY.inputs(served(text_classifier(pairs="required"))) == ["pairs"]
    assert CLASSIFY.inputs(served(image_classifier())) == ["images"]


def test_long_text_has_the_mean_of_its_windows_scores() -> None:
    model = served(text_classifier())
    made = plan_classes(model, texts=[LONG, "a"], stride=3)
    inputs = [(c.inputs["token_ids"], c.inputs["lengths"]) for c in made.calls]
    tokens = [row[:n] for ids, lengths in inputs for row, n in zip(ids, lengths, strict=True)]
    firsts = sorted((row[0], len(row)) for row in tokens)
    # Windows of 11 tokens begin at tokens 0, 8 and 16 of the text, which are 3, 11 and 19.
    assert firsts == [(3, 2), (3, 12), (11, 12), (19, 11)]
    long, short = made.finish([run(call) for call in made.calls]).data
    parts = [softmax(3, 12, 0), softmax(11, 12, 0), softmax(19, 11, 0)]
    mean = {label: np.mean([part[label] for part in parts]) for label in "xyz"}
    assert scores(long) == pytest.approx(mean)
    assert scores(short) == pytest.approx(softmax(3, 2, 0))


def test_failed_call_fails_its_own_items() -> None:
    made = plan_classes(served(text_classifier()), texts=["a", " ".join("abcdefghij")])
    data = made.finish([Unavailable("down"), run(made.calls[1])]).data
    assert [item.error is not None for item in data] == [True, False]


def test_canary_of_a_classifier_calls_every_part() -> None:
    (text,) = CLASSIFY.canary(served(text_classifier()))
    assert set(text.inputs) == {"token_ids", "lengths", "segments"}
    assert [call.model for call in CLASSIFY.canary(served(image_classifier()))] == [
        "tiny-classify",
        "tiny-classify-attention",
    ]


def test_size_of_a_classification_counts_characters() -> None:
    assert CLASSIFY.size(ClassifyRequest(texts=["ab", "c"])) == 3
    assert CLASSIFY.size(ClassifyRequest(pairs=[["ab", "cde"]])) == 5
    assert CLASSIFY.size(ClassifyRequest(images=["ab"])) is None


def test_labels_that_do_not_fit_the_graph_are_refused() -> None:
    described = text_classifier()
    section = {**described.tasks["classify"], "labels": ("x", "y")}
    with pytest.raises(BundleError, match="classify needs one label for each of its scores"):
        served(described.model_copy(update={"tasks": {"classify": section}}))


def test_text_without_tokens_is_refused() -> None:
    class Dropping(WordTokenizer):
        def encode_text(
            self, text: str, second: str | None = None, *, with_offsets: bool = False
        ) -> EncodedText:
            return EncodedText([], [], [])

    model = served(text_classifier(), Dropping())
    with pytest.raises(InvalidRequest, match=r"texts.0 is empty: it has no tokens"):
        CLASSIFY.prepare(ClassifyRequest(texts=["\u0301"]), (), model)


ZERO_SHOT_LIMITS = TaskLimits(max_client_batch_size=20)


VIDEOS = MODELS["zero-shot videos"]


def plan_zero_shot(
    model: LoadedModel,
    images: list[bytes],
    labels: list[str],
    cache: EmbeddingCache | None = None,
    **fields: object,
) -> ZeroShotPlan:
    request = ZeroShotRequest(images=["beside"] * len(images), labels=labels, **fields)
    embeddings = EmbeddingCache() if cache is None else cache
    return ZERO_SHOT.prepare(
        request, images, replace(model, embeddings=embeddings, task_limits=ZERO_SHOT_LIMITS)
    )


def embed(call: InferCall) -> Outputs:
    """Pictures by their colour, texts by a fixed random projection of their words."""
    assert call.outputs == {"embedding": Role.EMBEDDING}
    if "pixels" in call.inputs:
        vectors = embedded(call.inputs["pixels"].mean(axis=(1, 2)) + 1.0)
        return {Role.EMBEDDING: vectors}
    table = np.random.default_rng(0).normal(size=(200, 3))
    rows = [
        table[ids[:length]].sum(axis=0)
        for ids, length in zip(call.inputs["token_ids"], call.inputs["lengths"], strict=True)
    ]
    return {Role.EMBEDDING: embedded(np.array(rows))}


def test_scores_are_the_softmax_of_scaled_cosines(classifier: LoadedModel) -> None:
    labels = ["red thing", "blue", "very green thing"]
    made = plan_zero_shot(
        classifier, [image_file("red")], labels, templates=["a {}", "the {} here"]
    )
    (item,) = made.finish([embed(call) for call in made.calls]).data

    tokens = classifier.tokenizer
    table = np.random.default_rng(0).normal(size=(200, 3))
    text = lambda words: embedded(table[tokens.encode(words)].sum(axis=0)[None])[0]  # noqa: E731
    means = [(text(f"a {label}") + text(f"the {label} here")) / 2 for label in labels]
    image = np.array([256.0, 1.0, 1.0]) / np.linalg.norm([256.0, 1.0, 1.0])
    cosines = [float(mean @ image / np.linalg.norm(mean)) for mean in means]
    weights = np.exp(10.0 * np.array(cosines))
    expected = sorted(zip(weights / weights.sum(), cosines, labels, strict=True), reverse=True)
    assert [entry.label for entry in item.labels] == [label for _, _, label in expected]
    np.testing.assert_allclose(
        [e.score for e in item.labels], [s for s, _, _ in expected], rtol=1e-5
    )
    np.testing.assert_allclose(
        [e.cosine for e in item.labels], [c for _, c, _ in expected], rtol=1e-5
    )


def test_images_are_batched_by_eight(classifier: LoadedModel) -> None:
    colours = ["red", "blue", "lime"] * 3
    made = plan_zero_shot(classifier, [image_file(colour) for colour in colours], ["x"])
    batches = [call.inputs["pixels"] for call in made.calls if "pixels" in call.inputs]
    assert [batch.shape for batch in batches] == [(8, 4, 4, 3), (1, 4, 4, 3)]
    answer = made.finish([embed(call) for call in made.calls])
    cosines = [item.labels[0].cosine for item in answer.data]
    assert [item.index for item in answer.data] == list(range(9))
    assert cosines[:3] == cosines[3:6] == cosines[6:9]
    assert len(set(cosines)) == 3


def test_known_labels_are_not_embedded_again(classifier: LoadedModel) -> None:
    cache = EmbeddingCache()
    first = plan_zero_shot(classifier, [image_file("red")], ["red", "blue"], cache)
    before = first.finish([embed(call) for call in first.calls])
    second = plan_zero_shot(classifier, [image_file("red")], ["blue", "red", "lime"], cache)
    (call, _) = second.calls
    assert call.inputs["token_ids"].shape == (1, 8)
    after = second.finish([embed(call) for call in second.calls])
    cosines = {entry.label: entry.cosine for entry in after.data[0].labels}
    assert all(cosines[entry.label] == entry.cosine for entry in before.data[0].labels)
    assert before.usage.prompt_tokens == 2 * 6
    assert after.usage.prompt_tokens == 3 * 6


def test_new_version_of_a_model_embeds_again(classifier: LoadedModel) -> None:
    request = ZeroShotRequest(images=["beside"], labels=["red"])
    first = ZERO_SHOT.prepare(request, [image_file("red")], classifier)
    first.finish([embed(call) for call in first.calls])
    assert len(ZERO_SHOT.prepare(request, [image_file("red")], classifier).calls) == 1
    newer = classifier.manifest.model_copy(update={"version": 4})
    second = ZERO_SHOT.prepare(request, [image_file("red")], served(newer))
    assert len(second.calls) == 2


def test_cache_forgets_the_least_recently_used(classifier: LoadedModel) -> None:
    cache = EmbeddingCache(capacity=2)
    for labels in (["a", "b"], ["a"], ["c"]):
        made = plan_zero_shot(classifier, [image_file("red")], labels, cache)
        made.finish([embed(call) for call in made.calls])
    assert len(cache) == 2
    assert len(plan_zero_shot(classifier, [image_file("red")], ["a"], cache).calls) == 1
    assert len(plan_zero_shot(classifier, [image_file("red")], ["b"], cache).calls) == 2


def test_repeated_labels_are_embedded_once_and_listed_twice(classifier: LoadedModel) -> None:
    made = plan_zero_shot(classifier, [image_file("red")], ["red", "red"])
    assert made.calls[0].inputs["token_ids"].shape[0] == 1
    (item,) = made.finish([embed(call) for call in made.calls]).data
    assert [entry.score for entry in item.labels] == [0.5, 0.5]


def test_equal_scores_keep_the_order_of_the_request(classifier: LoadedModel) -> None:
    made = plan_zero_shot(classifier, [image_file("red")], ["red a", "a red"])
    ones = [{Role.EMBEDDING: np.ones((rows, 3), np.float32)} for rows in (2, 1)]
    (item,) = made.finish(ones).data
    assert [entry.label for entry in item.labels] == ["red a", "a red"]


def test_other_braces_are_left_alone(classifier: LoadedModel) -> None:
    plan_zero_shot(classifier, [image_file("red")], ["{0}"], templates=["{x} {}"])
    assert {"{x}", "{0}"} <= set(classifier.tokenizer.words)


def test_failed_batch_fails_its_images_only(classifier: LoadedModel) -> None:
    made = plan_zero_shot(classifier, [image_file("red")] * 9, ["x"])
    outcomes = [embed(call) for call in made.calls]
    outcomes[1] = Unavailable("down")
    errors = [item.error is not None for item in made.finish(outcomes).data]
    assert errors == [True] * 8 + [False]


def test_failed_labels_fail_the_request(classifier: LoadedModel) -> None:
    made = plan_zero_shot(classifier, [image_file("red")], ["x"])
    with pytest.raises(Unavailable):
        made.finish([Unavailable("down"), embed(made.calls[1])])


def plan_videos(*counts: int, labels: Sequence[str] = ("x", "y"), **fields: Any) -> ZeroShotPlan:
    images = [image_file("red")] * sum(counts)
    return plan_zero_shot(VIDEOS(), images, list(labels), frame_counts=[*counts], **fields)


def changed_by(plan: ZeroShotPlan, failed: Collection[int] = ()) -> Plan:
    """The plan that follows, where videos are (1, 0, 0) and patches of the n-th one (n, 0, 1)."""
    outcomes: list[Outcome] = []
    for number, call in enumerate(plan.calls):
        outputs = {Role.EMBEDDING: np.tile(np.float32([1, 0, 0]), (call.rows, 1))}
        if "pixels" in call.inputs:
            patches = [[[place, 0, 1]] for place in range(call.rows)]
            outputs[Role.HIDDEN] = np.array(patches, np.float32)
        outcomes.append(Unavailable("down") if number in failed else outputs)
    following = plan.following(outcomes)
    assert following is not None
    return following


def test_texts_are_changed_for_each_video_in_calls_of_limited_size() -> None:
    plan = plan_videos(3, 1, labels=[f"t{n}" for n in range(600)], templates=["{}", "a {}"])
    following = changed_by(plan)
    assert [call.model for call in following.calls] == ["tiny-zero-shot-labels"] * 4
    assert [call.inputs["texts"].shape for call in following.calls] == [
        (1, 1024, 3), (1, 176, 3),
    ] * 2  # fmt: skip
    assert [call.tokens for call in following.calls] == [1024, 176] * 2
    outcomes = []
    for place, call in enumerate(following.calls):
        sizes = call.inputs["texts"].shape[1]
        vectors = np.tile(np.float32([place // 2, 1, 0]), (1, sizes, 1))
        vectors[0, 1::2] = [1, 0, 0] if place // 2 else [0, 1, 0]  # of the second template
        outcomes.append({Role.EMBEDDING: vectors})
    first, second = following.finish(outcomes).data
    assert {entry.cosine for entry in first.labels} == {0.0}
    assert second.labels[0].cosine == pytest.approx(2 / 5**0.5)
    assert {call.inputs["patches"][0, 0, 0] for call in following.calls[2:]} == {1}


def test_frames_of_a_video_are_one_input_and_labels_have_the_models_templates() -> None:
    text, video = plan_videos(3, 1).calls
    assert text.inputs["token_ids"].shape[0] == 2
    assert text.inputs["lengths"].tolist() == [2, 2]  # without "a photo of a"
    assert video.inputs["pixels"].shape == (2, 3, 4, 4, 3)
    assert video.tokens == 2 * 3
    assert set(video.outputs.values()) == {Role.EMBEDDING, Role.HIDDEN}


@pytest.mark.parametrize(
    ("count", "chosen"), [(3, [0, 1, 2]), (9, [1, 4, 7]), (5, [0, 2, 4]), (2, [0, 1, 1])]
)
def test_frames_are_those_in_the_middle_of_equal_parts(count: int, chosen: list[int]) -> None:
    frames = [PreparedImage(np.full((1, 1, 3), number), (7, 5)) for number in range(count)]
    video = choose_frames(frames, 3)
    assert video.pixels[:, 0, 0, 0].tolist() == chosen
    assert video.size == (7, 5)


def test_failed_call_of_videos_fails_those_only_and_of_texts_all() -> None:
    following = changed_by(plan_videos(3, 1, 2, 1), failed=[1])
    assert [call.rows for call in following.calls] == [1, 1]
    vectors = {Role.EMBEDDING: np.ones((1, 2, 3), np.float32)}
    data = following.finish([vectors, Unavailable("down")]).data
    assert [item.error is not None for item in data] == [True, True, False, True]
    with pytest.raises(Unavailable):
        changed_by(plan_videos(3), failed=[0])
    plan = plan_videos(3, 1, 2)
    with pytest.raises(Unavailable):  # labels that no video has changed are no response
        plan.finish([{}, Unavailable("down"), {}])


def test_canary_of_videos_calls_every_part() -> None:
    video, text, labels = ZERO_SHOT.canary(VIDEOS())
    assert video.inputs["pixels"].shape == (1, 3, 4, 4, 3)
    assert text.inputs["token_ids"].shape == (1, 2)
    assert {name: array.shape for name, array in labels.inputs.items()} == {
        "patches": (1, 1, 3), "texts": (1, 1, 3),
    }  # fmt: skip


def test_rows_of_like_length_share_a_bucket() -> None:
    lengths = [3, 9, 8, 12, 1]
    made = list(buckets([[7] * length for length in lengths], Padding(0), limit=12))
    assert [(bucket.rows, bucket.token_ids.shape) for bucket in made] == [
        ((0, 2, 4), (3, 8)),
        ((1, 3), (2, 12)),
    ]
    for bucket in made:
        np.testing.assert_array_equal((bucket.token_ids == 7).sum(axis=1), bucket.lengths)
        assert [lengths[row] for row in bucket.rows] == bucket.lengths.tolist()
    assert len(list(buckets([[1]] * 17, Padding(0), limit=None))) == 3


def test_top_k_cuts_the_list_and_not_the_scores(classifier: LoadedModel) -> None:
    labels = ["red thing", "blue", "very green thing"]
    found = []
    for top_k in (None, 2):
        made = plan_zero_shot(classifier, [image_file("red")], labels, top_k=top_k)
        (item,) = made.finish([embed(call) for call in made.calls]).data
        found.append(item.labels)
    assert found[1] == found[0][:2]
    assert len(found[0]) == 3


def test_label_in_a_template_of_many_places_is_refused_unwritten(
    classifier: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.tasks.zero_shot.render", None)
    with pytest.raises(TooLong, match=r"labels.0 has 100000000 characters"):
        plan_zero_shot(classifier, [image_file("red")], ["x" * 10_000], templates=["{}" * 10_000])


TAG_LIMITS = TaskLimits(max_client_batch_size=20, max_input_tokens=60)


@pytest.fixture
def tagger() -> LoadedModel:
    return MODELS["tag"]()


def plan_tags(tagger: LoadedModel, **fields: object) -> TagPlan:
    return TAG.prepare(TagRequest(**fields), (), replace(tagger, task_limits=TAG_LIMITS))


def label(tagger: LoadedModel, **fields: object) -> list[Tags]:
    made = plan_tags(tagger, **fields)
    return made.finish([run(call) for call in made.calls]).data


def found(item: Tags) -> list[tuple[str, int, int, str]]:
    return [(token.text, token.start, token.end, token.label) for token in item.tokens]


@pytest.mark.parametrize("stride", [0, 1, 4, 10])
@pytest.mark.parametrize("aggregation", ["none", "simple", "first"])
def test_windows_give_the_same_tokens_as_one_text(
    tagger: LoadedModel, stride: int, aggregation: str
) -> None:
    """Labels depend on the token alone, so that windows change nothing but an entity they cut."""
    text = " ".join(["ba", "ia", "o", "bb", "o"] * 6)
    (item,) = label(tagger, texts=text, aggregation=aggregation, stride=stride)
    whole = served(
        word_labeller().model_copy(update={"limits": tagger.manifest.limits.model_copy(
            update={"max_input_tokens": None})}),
        tagger.tokenizer,
    )  # fmt: skip
    (expected,) = label(whole, texts=text, aggregation=aggregation)
    assert len(plan_tags(tagger, texts=text, stride=stride).items[0].windows) > 1
    if aggregation == "none" or stride > 1:
        assert found(item) == found(expected)
    covered = {place for token in item.tokens for place in range(token.start, token.end)}
    pieces = {place for token in expected.tokens for place in range(token.start, token.end)}
    assert {place for place in covered if text[place] != " "} == {
        place for place in pieces if text[place] != " "
    }


def test_tagging_has_a_size_and_a_canary(tagger: LoadedModel) -> None:
    assert TAG.size(TagRequest(texts=["ab", "c"])) == 3
    (call,) = TAG.canary(tagger)
    assert set(call.inputs) == {"token_ids", "lengths"}


LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC", "B-A-B")
AGGREGATIONS = ("none", "simple", "first", "average", "max")
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def pipeline() -> TokenClassificationPipeline:
    made = object.__new__(TokenClassificationPipeline)
    made.tokenizer = SimpleNamespace(convert_tokens_to_string=lambda tokens: " ".join(tokens))
    made.model = SimpleNamespace(config=SimpleNamespace(id2label=dict(enumerate(LABELS))))
    return made


def drawn(seed: int, count: int) -> list[LabelledToken]:
    """Tokens of random widths, most of them certain of their label."""
    random = np.random.default_rng(seed)
    widths = random.integers(0, 4, count)
    ends = np.cumsum(widths + random.integers(0, 2, count))
    tokens = []
    for end, width in zip(ends, widths, strict=True):
        scores = random.dirichlet(np.full(len(LABELS), 0.3)).astype(np.float32)
        continues = bool(tokens) and bool(random.random() < 0.4)
        tokens.append(LabelledToken(int(end - width), int(end), scores, continues))
    return tokens


def theirs(
    pipeline: TokenClassificationPipeline, tokens: list[LabelledToken], aggregation: str
) -> list[dict[str, Any]]:
    entries = [
        {"word": "w", "scores": t.scores, "start": t.start, "end": t.end, "index": i,
         "is_subword": t.continues}
        for i, t in enumerate(tokens)
    ]  # fmt: skip
    return pipeline.aggregate(entries, AggregationStrategy[aggregation.upper()])


def assert_same(found: list[Entity], expected: list[dict[str, Any]]) -> None:
    assert [(one.start, one.end, one.label) for one in found] == [
        (one["start"], one["end"], one.get("entity_group") or one["entity"]) for one in expected
    ]
    np.testing.assert_allclose(
        [one.score for one in found], [one["score"] for one in expected], atol=1e-6
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(seed=seeds, count=st.integers(0, 25))
def test_entities_equal_those_of_the_pipeline(
    pipeline: TokenClassificationPipeline, aggregation: str, seed: int, count: int
) -> None:
    tokens = drawn(seed, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = theirs(pipeline, tokens, aggregation)
    assert_same(entities(tokens, LABELS, aggregation), expected)


@given(seed=seeds, count=st.integers(1, 12))
def test_overlaps_are_resolved_as_by_the_pipeline(
    pipeline: TokenClassificationPipeline, seed: int, count: int
) -> None:
    random = np.random.default_rng(seed)
    starts = random.integers(0, 30, count)
    found = [
        Entity(int(start), int(start + random.integers(1, 8)), "x", float(random.integers(0, 3)))
        for start in starts
    ]
    expected = pipeline.aggregate_overlapping_entities(
        [{"start": e.start, "end": e.end, "entity_group": e.label, "score": e.score} for e in found]
    )
    assert_same(without_overlaps(found), expected)


def test_token_without_width_is_kept_once() -> None:
    windows = [Entity(3, 3, "x", 0.2), Entity(3, 3, "x", 0.4), Entity(3, 5, "y", 0.1)]
    assert without_overlaps(windows) == [windows[1], windows[2]]
    assert without_overlaps([]) == []


FILL_LIMITS = TaskLimits(max_client_batch_size=20)


@pytest.fixture
def mask_filler() -> LoadedModel:
    return MODELS["fill-mask"]()


def plan_filling(mask_filler: LoadedModel, **fields: object) -> FillMaskPlan:
    return FILL_MASK.prepare(
        FillMaskRequest(**fields), (), replace(mask_filler, task_limits=FILL_LIMITS)
    )


def fill(mask_filler: LoadedModel, **fields: object) -> list[FilledMasks]:
    made = plan_filling(mask_filler, **fields)
    return made.finish([run(call) for call in made.calls]).data


def test_positions_are_padded_with_the_rows_first(mask_filler: LoadedModel) -> None:
    (call,) = plan_filling(mask_filler, texts=["? a ?", "b c ?"]).calls
    assert call.inputs["positions"].tolist() == [[0, 2], [2, 2]]
    assert call.inputs["choices"].tolist() == [[0], [0]]
    assert set(call.outputs.values()) == {Role.TOP_TOKENS, Role.TOP_SCORES}
    one, other = fill(mask_filler, texts=["? a ?", "b c ?"])
    assert (len(one.masks), len(other.masks)) == (2, 1)


@pytest.mark.parametrize(("masks", "positions"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (9, 12)])
def test_positions_are_a_power_of_two_or_all_tokens(
    mask_filler: LoadedModel, masks: int, positions: int
) -> None:
    text = " ".join(["?"] * masks)
    (call,) = plan_filling(mask_filler, texts=text).calls
    assert call.inputs["positions"].tolist() == [[*range(masks), *[0] * (positions - masks)]]
    assert len(fill(mask_filler, texts=text)[0].masks) == masks


def test_listing_names_mask_token_and_limits(mask_filler: LoadedModel) -> None:
    assert FILL_MASK.details(mask_filler) == {"mask_token": "?"}
    assert FILL_MASK.limits(mask_filler) == {
        "max_top_k": 6,
        "max_targets": 100,
        "max_candidates": 2000,
    }
    assert FILL_MASK.size(FillMaskRequest(texts=["ab", "c"])) == 3


def test_canary_of_masks_has_all_inputs(mask_filler: LoadedModel) -> None:
    (call,) = FILL_MASK.canary(mask_filler)
    assert set(call.inputs) == {"token_ids", "lengths", "positions", "choices"}


def test_size_of_masks_counts_targets() -> None:
    assert FILL_MASK.size(FillMaskRequest(texts="ab", targets=["abc", "d"])) == 6


def test_texts_of_many_candidates_are_not_small_work(mask_filler: LoadedModel) -> None:
    made = plan_filling(mask_filler, texts=["? " * 11] * 20, top_k=6)
    outcomes = [run(call) for call in made.calls]
    assert made.finish_size(outcomes) == 20 * 11 * 6 * 12
    assert plan_filling(mask_filler, texts="?", targets=["red", "blue"]).finish_size([]) == 4
