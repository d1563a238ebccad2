"""Labels and activation of classifiers, as the pipelines of `transformers` choose them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from transformers.pipelines import ImageClassificationPipeline

from export.checkpoint.labels import activation, labels
from inference.errors import CheckpointError

NAMES = {0: "cat", 1: "dog", 2: "owl"}
SCORES = {
    "none": lambda logits: logits,
    "sigmoid": torch.sigmoid,
    "softmax": lambda logits: logits.softmax(dim=-1),
}


@pytest.mark.parametrize(
    "fields",
    [
        {"id2label": NAMES},
        {"id2label": NAMES, "problem_type": "single_label_classification"},
        {"id2label": NAMES, "problem_type": "multi_label_classification"},
        {"id2label": NAMES, "problem_type": "regression"},
        {"id2label": {0: "good"}},
        {"id2label": {0: "good"}, "problem_type": "regression"},
        {},
    ],
)
def test_scores_are_those_of_the_pipeline(fields: dict[str, Any]) -> None:
    config = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, **fields)
    model = ViTForImageClassification(config)
    pipeline = ImageClassificationPipeline(model, image_processor=ViTImageProcessorPil())
    logits = torch.tensor([[0.3, -1.2, 2.5][: config.num_labels]])
    wanted = pipeline.postprocess(ImageClassifierOutput(logits=logits), top_k=9)
    scores = SCORES[activation(fields)](logits[0]).tolist()
    given = dict(zip(labels(fields), scores, strict=True))
    assert given == pytest.approx({item["label"]: item["score"] for item in wanted}, abs=1e-6)


def test_labels_are_ordered_by_number_and_may_repeat() -> None:
    """Two classes of ImageNet are called crane."""
    names = {str(number): f"class {number}" for number in (10, 2, 1, 0, *range(3, 10))}
    assert labels({"id2label": names})[9:] == ("class 9", "class 10")
    assert labels({"id2label": {"0": "crane", "1": "crane"}}) == ("crane", "crane")


@pytest.mark.parametrize(
    "values", [{"id2label": {}}, {"id2label": ["a"]}, {"id2label": {1: "a"}}, {"num_labels": 0}]
)
def test_unusable_labels_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="id2label must"):
        labels(values)


def test_unknown_problem_is_refused() -> None:
    with pytest.raises(CheckpointError, match="problem_type = 'ranking' is not supported"):
        activation({"problem_type": "ranking"})
