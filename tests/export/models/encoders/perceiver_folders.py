"""Folders of random Perceivers, with the tokenizer or image processor of their own class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import PerceiverTokenizer
from transformers.models.perceiver.image_processing_pil_perceiver import PerceiverImageProcessorPil
from transformers.pipelines import pipeline

from export.models.encoders.perceiver_config import CONVOLVED, FOURIER, LEARNED
from tests.export.twins import randomise, twin_of

MASKED, CLASSES = "PerceiverForMaskedLM", "PerceiverForSequenceClassification"
IMAGES = (LEARNED, FOURIER, CONVOLVED)
TEXTS = ["Ada [MASK] was born.", "[MASK][MASK] é", "a", "x" * 40 + "[MASK]"]
TASKS = {MASKED: "fill-mask", CLASSES: "text-classification"}
"""Class → its pipeline; the others classify images."""
_POSITIONS = 64
_FIELDS: dict[str, Any] = {
    "vocab_size": 262,
    "max_position_embeddings": _POSITIONS,
    "num_cross_attention_heads": 1,
    "num_blocks": 2,
    "image_size": 20,
    "id2label": dict(enumerate("xyz")),
}


def write(folder: Path, kind: str) -> Path:
    """A random checkpoint of a class of `transformers`; returns its folder."""
    network = getattr(transformers, kind)
    values = {**twin_of("perceiver").configs["plain"], **_FIELDS}
    del values["architectures"]
    model = network(network.config_class(**values)).eval()
    randomise(model)
    model.save_pretrained(folder)
    if kind in IMAGES:
        size = {"height": values["image_size"], "width": values["image_size"]}
        PerceiverImageProcessorPil(size=size).save_pretrained(folder)
    else:
        PerceiverTokenizer(model_max_length=_POSITIONS).save_pretrained(folder)
    return folder


def reference(folder: Path, kind: str) -> Any:
    """The pipeline of `transformers` on a folder."""
    own: dict[str, Any] = {}
    if kind in IMAGES:
        own["image_processor"] = PerceiverImageProcessorPil.from_pretrained(folder)
    task = TASKS.get(kind, "image-classification")
    return pipeline(task, model=str(folder), device="cpu", dtype=torch.float32, **own)


def picture(seed: int = 0) -> Image.Image:
    """Noise, of which the recipe cuts the centre."""
    noise = np.random.default_rng(seed).integers(0, 256, (41, 30, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def assert_classes(found: Any, expected: Any) -> None:
    """Holds the classes of one item to those of the pipeline."""
    assert [one.label for one in found.labels] == [one["label"] for one in expected]
    wanted = [one["score"] for one in expected]
    np.testing.assert_allclose([one.score for one in found.labels], wanted, atol=1e-4)


def assert_masks(item: Any, expected: Any) -> None:
    """Holds the tokens of one text's masks to those of the pipeline."""
    lists = expected if isinstance(expected[0], list) else [expected]
    for found, wanted in zip(item.masks, lists, strict=True):
        assert [one.token_id for one in found] == [one["token"] for one in wanted]
        assert [one.token for one in found] == [one["token_str"] for one in wanted]
        scores = [one.score for one in found]
        np.testing.assert_allclose(scores, [one["score"] for one in wanted], atol=1e-4)
        if len(lists) == 1:
            assert [one.text for one in found] == [one["sequence"] for one in wanted]
