from dataclasses import replace

import numpy as np
import pytest

from inference.bundle.manifest import Role
from inference.errors import TooLong, Unavailable
from inference.tasks.shared.embedding_cache import EmbeddingCache
from inference.tasks.shared.length_buckets import Padding, buckets
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import InferCall, Outputs
from inference.tasks.zero_shot import TASK, ZeroShotPlan
from tests.inference.tiny_models import embedded, image_file, served
from triptych.tasks.zero_shot import ZeroShotRequest

LIMITS = TaskLimits(max_client_batch_size=20)


def plan(
    model: LoadedModel,
    images: list[bytes],
    labels: list[str],
    cache: EmbeddingCache | None = None,
    **fields: object,
) -> ZeroShotPlan:
    request = ZeroShotRequest(images=["beside"] * len(images), labels=labels, **fields)
    embeddings = EmbeddingCache() if cache is None else cache
    return TASK.prepare(request, images, replace(model, embeddings=embeddings, task_limits=LIMITS))


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
    made = plan(classifier, [image_file("red")], labels, templates=["a {}", "the {} here"])
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
    made = plan(classifier, [image_file(colour) for colour in colours], ["x"])
    batches = [call.inputs["pixels"] for call in made.calls if "pixels" in call.inputs]
    assert [batch.shape for batch in batches] == [(8, 4, 4, 3), (1, 4, 4, 3)]
    answer = made.finish([embed(call) for call in made.calls])
    cosines = [item.labels[0].cosine for item in answer.data]
    assert [item.index for item in answer.data] == list(range(9))
    assert cosines[:3] == cosines[3:6] == cosines[6:9]
    assert len(set(cosines)) == 3


def test_known_labels_are_not_embedded_again(classifier: LoadedModel) -> None:
    cache = EmbeddingCache()
    first = plan(classifier, [image_file("red")], ["red", "blue"], cache)
    before = first.finish([embed(call) for call in first.calls])
    second = plan(classifier, [image_file("red")], ["blue", "red", "lime"], cache)
    (call, _) = second.calls
    assert call.inputs["token_ids"].shape == (1, 8)
    after = second.finish([embed(call) for call in second.calls])
    cosines = {entry.label: entry.cosine for entry in after.data[0].labels}
    assert all(cosines[entry.label] == entry.cosine for entry in before.data[0].labels)
    assert before.usage.prompt_tokens == 2 * 6
    assert after.usage.prompt_tokens == 3 * 6


def test_new_version_of_a_model_embeds_again(classifier: LoadedModel) -> None:
    request = ZeroShotRequest(images=["beside"], labels=["red"])
    first = TASK.prepare(request, [image_file("red")], classifier)
    first.finish([embed(call) for call in first.calls])
    assert len(TASK.prepare(request, [image_file("red")], classifier).calls) == 1
    newer = classifier.manifest.model_copy(update={"version": 4})
    second = TASK.prepare(request, [image_file("red")], served(newer))
    assert len(second.calls) == 2


def test_cache_forgets_the_least_recently_used(classifier: LoadedModel) -> None:
    cache = EmbeddingCache(capacity=2)
    for labels in (["a", "b"], ["a"], ["c"]):
        made = plan(classifier, [image_file("red")], labels, cache)
        made.finish([embed(call) for call in made.calls])
    assert len(cache) == 2
    assert len(plan(classifier, [image_file("red")], ["a"], cache).calls) == 1
    assert len(plan(classifier, [image_file("red")], ["b"], cache).calls) == 2


def test_repeated_labels_are_embedded_once_and_listed_twice(classifier: LoadedModel) -> None:
    made = plan(classifier, [image_file("red")], ["red", "red"])
    assert made.calls[0].inputs["token_ids"].shape[0] == 1
    (item,) = made.finish([embed(call) for call in made.calls]).data
    assert [entry.score for entry in item.labels] == [0.5, 0.5]


def test_equal_scores_keep_the_order_of_the_request(classifier: LoadedModel) -> None:
    made = plan(classifier, [image_file("red")], ["red a", "a red"])
    ones = [{Role.EMBEDDING: np.ones((rows, 3), np.float32)} for rows in (2, 1)]
    (item,) = made.finish(ones).data
    assert [entry.label for entry in item.labels] == ["red a", "a red"]


def test_other_braces_are_left_alone(classifier: LoadedModel) -> None:
    plan(classifier, [image_file("red")], ["{0}"], templates=["{x} {}"])
    assert {"{x}", "{0}"} <= set(classifier.tokenizer.words)


def test_failed_batch_fails_its_images_only(classifier: LoadedModel) -> None:
    made = plan(classifier, [image_file("red")] * 9, ["x"])
    outcomes = [embed(call) for call in made.calls]
    outcomes[1] = Unavailable("down")
    errors = [item.error is not None for item in made.finish(outcomes).data]
    assert errors == [True] * 8 + [False]


def test_failed_labels_fail_the_request(classifier: LoadedModel) -> None:
    made = plan(classifier, [image_file("red")], ["x"])
    with pytest.raises(Unavailable):
        made.finish([Unavailable("down"), embed(made.calls[1])])


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
        made = plan(classifier, [image_file("red")], labels, top_k=top_k)
        (item,) = made.finish([embed(call) for call in made.calls]).data
        found.append(item.labels)
    assert found[1] == found[0][:2]
    assert len(found[0]) == 3


def test_label_in_a_template_of_many_places_is_refused_unwritten(
    classifier: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.tasks.zero_shot.render", None)
    with pytest.raises(TooLong, match=r"labels.0 has 100000000 characters"):
        plan(classifier, [image_file("red")], ["x" * 10_000], templates=["{}" * 10_000])
