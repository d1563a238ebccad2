"""Classifiers, taggers and mask fillers answer as `transformers` does.

The checkpoints are tiny and random; all are exported and served by one Triton.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTForImageClassification, ViTImageProcessor

from tests.e2e.text_bundles import IMAGES, POSITIONS, TextBundles
from tests.inference.processing.tokenizer_files import CORPUS, NASTY
from tests.pictures import encoded
from triptych import Client, GrpcClient, InvalidRequest
from triptych.tasks.classify import Classes
from triptych.tasks.tag import Tags

pytestmark = pytest.mark.integration

TOLERANCE = 1e-4
TEXTS = [CORPUS[0], "a", NASTY[2], CORPUS[1], NASTY[3], "a"]
LONG = " ".join(CORPUS * 2)
"""Longer than the model takes."""
PAIRS = [(CORPUS[0], NASTY[0]), ("a", "b"), (NASTY[0], CORPUS[0])]  # fit in the positions
MASKED = ["Ada [MASK] was born in London.", "the [MASK]", "a [MASK] red [MASK]"]


@pytest.fixture
def client(tiny_client: Client | GrpcClient) -> Client | GrpcClient:
    return tiny_client


def assert_labels(item: Classes, expected: list[dict[str, Any]]) -> None:
    assert [entry.label for entry in item.labels] == [entry["label"] for entry in expected]
    np.testing.assert_allclose(
        [entry.score for entry in item.labels],
        [entry["score"] for entry in expected],
        atol=TOLERANCE,
    )


def test_classes_of_texts_are_those_of_the_pipeline(client: Client, bundles: TextBundles) -> None:
    pipeline = bundles.pipeline("text-classification", "tiny-classes")
    data = client.classify(TEXTS, model="tiny-classes").data
    for text, item in zip(TEXTS, data, strict=True):
        assert_labels(item, pipeline(text, top_k=None))
    (best,) = client.classify(TEXTS[0], model="tiny-classes", top_k=1).data
    assert_labels(best, pipeline(TEXTS[0], top_k=1))


def test_classes_of_pairs_are_those_of_the_pipeline(client: Client, bundles: TextBundles) -> None:
    pipeline = bundles.pipeline("text-classification", "tiny-classes")
    data = client.classify(pairs=PAIRS, model="tiny-classes").data
    for (first, second), item in zip(PAIRS, data, strict=True):
        assert_labels(item, pipeline({"text": first, "text_pair": second}, top_k=None))


def test_classes_of_a_long_text_are_the_mean_of_its_windows(
    client: Client, bundles: TextBundles
) -> None:
    (item,) = client.classify(LONG, model="tiny-classes", stride=6).data
    tokenizer, labels = bundles.tokenizer("tiny-classes"), "wxyz"
    cut = tokenizer(
        LONG, truncation=True, max_length=POSITIONS, stride=6, return_overflowing_tokens=True,
        return_tensors="pt", padding=True,
    )  # fmt: skip
    cut.pop("overflow_to_sample_mapping")
    assert len(cut["input_ids"]) > 2
    with torch.no_grad():
        model = bundles.model("BertForSequenceClassification", "tiny-classes")
        mean = model(**cut).logits.softmax(-1).mean(0)
    expected = [
        {"label": labels[i], "score": float(mean[i])} for i in mean.argsort(descending=True)
    ]
    assert_labels(item, expected)


def test_sequel_of_a_sentence_is_that_of_the_model(client: Client, bundles: TextBundles) -> None:
    tokenizer = bundles.tokenizer("tiny-filler")
    model = bundles.model("BertForPreTraining", "tiny-filler")
    for (first, second), item in zip(
        PAIRS, client.classify(pairs=PAIRS, model="tiny-filler").data, strict=True
    ):
        with torch.no_grad():
            logits = model(**tokenizer(first, second, return_tensors="pt")).seq_relationship_logits
        scores = dict(zip(("is_next", "not_next"), logits[0].softmax(-1).tolist(), strict=True))
        ranked = sorted(scores.items(), key=lambda entry: -entry[1])
        assert_labels(item, [{"label": label, "score": score} for label, score in ranked])
    with pytest.raises(InvalidRequest, match="tiny-filler cannot classify texts"):
        client.classify("a", model="tiny-filler")


def picture(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_classes_of_images_are_those_of_the_pipeline(client: Client, bundles: TextBundles) -> None:
    pipeline = bundles.pipeline("image-classification", IMAGES)
    images = [picture(seed) for seed in range(3)]
    data = client.classify(images=[encoded(image) for image in images], return_attention=True).data
    for image, item in zip(images, data, strict=True):
        assert_labels(item, pipeline(image))
        expected = rolled_out(bundles.checkpoints / IMAGES, image)
        np.testing.assert_allclose(item.attention, expected, atol=1e-5)
    assert not np.allclose(data[0].attention, data[1].attention, atol=1e-3)


def rolled_out(folder: Path, image: Image.Image) -> Any:
    """(4, 4) shares of the patches: Abnar & Zuidema 2020 (arXiv 2005.00928), equation 1."""
    kind = ViTForImageClassification
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    pixels = ViTImageProcessor.from_pretrained(folder)(image, return_tensors="pt")
    with torch.no_grad():
        layers = model(**pixels, output_attentions=True).attentions
    total = np.eye(17)
    for weights in layers:
        total = (weights[0].mean(0).numpy() + np.eye(17)) / 2 @ total
    return (total[0, 1:] / total[0, 1:].sum()).reshape(4, 4)


@pytest.mark.parametrize("top_k", [1, 5, 100])
def test_masks_are_filled_as_by_the_pipeline(
    client: Client, bundles: TextBundles, top_k: int
) -> None:
    pipeline = bundles.pipeline("fill-mask", "tiny-filler")
    for text, item in zip(MASKED, client.fill_mask(MASKED, top_k=top_k).data, strict=True):
        expected = pipeline(text, top_k=top_k)
        expected = expected if isinstance(expected[0], list) else [expected]
        assert_masks(item.masks, expected)


def assert_masks(found: Any, expected: list[list[dict[str, Any]]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert [one.token_id for one in ours] == [one["token"] for one in theirs]
        assert [one.token for one in ours] == [one["token_str"] for one in theirs]
        # The pipeline writes the special tokens around a text of several masks.
        texts = [one["sequence"].removeprefix("[CLS] ").removesuffix(" [SEP]") for one in theirs]
        assert [one.text for one in ours] == texts
        np.testing.assert_allclose(
            [one.score for one in ours], [one["score"] for one in theirs], atol=TOLERANCE
        )


def test_targets_are_scored_as_by_the_pipeline(client: Client, bundles: TextBundles) -> None:
    pipeline = bundles.pipeline("fill-mask", "tiny-filler")
    # Which words are whole tokens differs from one training of the tokenizer to the next.
    vocabulary = sorted(bundles.tokenizer("tiny-filler").get_vocab())
    targets = [
        *[token for token in vocabulary if token.isascii() and token.isalpha()][-3:],
        vocabulary[0],
        "E",
    ]
    (item,) = client.fill_mask(MASKED[0], targets=targets).data
    assert_masks(item.masks, [pipeline(MASKED[0], targets=targets)])
    with pytest.raises(InvalidRequest, match=r"targets.1 is not one token of tiny-filler"):
        client.fill_mask(MASKED[0], targets=[targets[0], "ada was born"])


def assert_tags(item: Tags, expected: list[dict[str, Any]], text: str) -> None:
    found = [(token.start, token.end, token.label) for token in item.tokens]
    assert found == [
        (one["start"], one["end"], one.get("entity_group") or one["entity"]) for one in expected
    ]
    assert [token.text for token in item.tokens] == [text[a:b] for a, b, _ in found]
    np.testing.assert_allclose(
        [token.score for token in item.tokens],
        [one["score"] for one in expected],
        atol=TOLERANCE,
    )


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_tags_are_those_of_the_pipeline(
    client: Client, bundles: TextBundles, aggregation: str
) -> None:
    pipeline = bundles.pipeline("token-classification", "tiny-labeller")
    texts = [*TEXTS, *NASTY[4:9]]
    data = client.tag(texts, aggregation=aggregation).data
    for text, item in zip(texts, data, strict=True):
        assert_tags(item, pipeline(text, aggregation_strategy=aggregation), text)
    # How many depends on the word pieces, which are trained in another order each time.
    assert sum(len(item.tokens) for item in data) > 8


@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
@pytest.mark.parametrize("stride", [0, 9])
def test_tags_of_windows_are_those_of_the_pipeline(
    client: Client, bundles: TextBundles, aggregation: str, stride: int
) -> None:
    pipeline = bundles.pipeline("token-classification", "tiny-labeller")
    (item,) = client.tag(LONG, aggregation=aggregation, stride=stride).data
    assert_tags(item, pipeline(LONG, aggregation_strategy=aggregation, stride=stride), LONG)
    assert item.tokens[-1].end > len(LONG) // 2


def test_long_texts_are_refused_in_their_place(client: Client) -> None:
    for answer in (
        client.classify(["a", LONG], model="tiny-classes"),
        client.tag(["a", LONG]),
        client.fill_mask(["[MASK]", f"[MASK] {LONG}"]),
    ):
        good, bad = answer.data
        assert good.error is None
        assert (bad.error.type, bad.error.field) == ("too_long", "texts.1")
        assert f"at most {POSITIONS}" in bad.error.message


def test_models_list_limits_and_the_mask_token(client: Client) -> None:
    by_name = {model.id: model for model in client.models().data}
    assert by_name["tiny-filler"].mask_token == "[MASK]"
    assert by_name["tiny-filler"].tasks == ["fill-mask", "classify"]
    assert by_name["tiny-filler"].limits.max_top_k == 2
    assert by_name["tiny-classes"].limits.max_top_k == 4
