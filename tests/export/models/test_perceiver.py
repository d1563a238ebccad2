"""Perceiver beside `transformers`: padding, and the pipelines of three heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers
from PIL import Image
from transformers import PerceiverTokenizer
from transformers.models.perceiver.image_processing_pil_perceiver import PerceiverImageProcessorPil
from transformers.pipelines import pipeline

from export.models.encoders.perceiver import CONVOLVED, FOURIER, LEARNED
from export.pipeline.cli import export
from inference.bundle.reader import newest_bundle
from inference.errors import CheckpointError
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from serving.load_model import load_model
from tests.export.conftest import Twins
from tests.export.oracle import difference
from tests.export.twins import randomise, twin_of
from tests.pictures import encoded
from triptych import images as wire_images

MASKED, CLASSES = "PerceiverForMaskedLM", "PerceiverForSequenceClassification"
IMAGES = (LEARNED, FOURIER, CONVOLVED)
TEXTS = ["Ada [MASK] was born.", "[MASK][MASK] é", "a", "x" * 40 + "[MASK]"]
PERCEIVER_FOLDERS_TASKS = {MASKED: "fill-mask", CLASSES: "text-classification"}
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
    task = PERCEIVER_FOLDERS_TASKS.get(kind, "image-classification")
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


CONFIGS = twin_of("perceiver").configs
TOLERANCE = 1e-4


def test_learned_positions_are_those_of_one_size(twins: Twins) -> None:
    twin = twins("perceiver", "learned")
    other = twin.prepared.image.model_copy(update={"size": (9, 12)})
    with pytest.raises(CheckpointError, match=r"gives \(9, 12\)"):
        twin.architecture.graphs(twin.network, other)


def test_padding_to_all_positions_changes_nothing(twins: Twins) -> None:
    """As `transformers` computes it with a mask; without one it reads the padding."""
    twin = twins("perceiver", "odd")
    tokens = torch.tensor([[5, 9, 33, 12, 6]])
    padded = torch.nn.functional.pad(tokens, (0, 11))
    mask = torch.nn.functional.pad(torch.ones_like(tokens), (0, 11))
    positions, choices = torch.tensor([[1, 4, 2]]), torch.arange(70)[None]
    feeds = (padded, torch.tensor([5], dtype=torch.int32), positions, choices)
    with torch.no_grad():
        *_, ours = twin.graphs().lowerings["text"].module(*feeds)
        logits = twin.reference(padded, attention_mask=mask).logits
        unmasked = twin.reference(padded).logits
    assert logits.shape[1] == 16  # every position is decoded there
    assert difference(logits[:, positions[0]].softmax(-1), ours) < TOLERANCE
    assert difference(unmasked[:, positions[0]].softmax(-1), ours) > TOLERANCE


@dataclass(frozen=True)
class Exported:
    """A checkpoint's folder, the repository that it was exported to, and the model as served."""

    checkpoint: Path
    repository: Path
    model: LoadedModel

    def asked(self, task: str, pictures: tuple[bytes, ...] = (), **fields: Any) -> list[Any]:
        """The items of a response, as the gateway computes them."""
        served = TASKS[task]
        request = served.declaration.request(**fields)
        plan = served.prepare(request, pictures, self.model)
        outcomes = []
        for call in plan.calls:
            path = self.repository / call.model / str(call.version) / "model.onnx"
            session = ort.InferenceSession(path)
            outputs = session.run(list(call.outputs), dict(call.inputs))
            outcomes.append(dict(zip(call.outputs.values(), outputs, strict=True)))
        return list(plan.finish(outcomes).data)


def _exported(tmp_path: Path, kind: str) -> Exported:
    """A random checkpoint with its own preprocessing, exported."""
    folder, repository = write(tmp_path / "tiny", kind), tmp_path / "repository"
    export(str(folder), repository=repository)
    return Exported(folder, repository, load_model(newest_bundle(repository, "tiny")))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_masks_are_filled_as_by_the_pipeline(tmp_path: Path) -> None:
    ours = _exported(tmp_path, MASKED)
    theirs = reference(ours.checkpoint, MASKED)
    texts = [text for text in TEXTS if "[MASK]" in text]
    for text, item in zip(texts, ours.asked("fill-mask", texts=texts, top_k=20), strict=True):
        assert_masks(item, theirs(text, top_k=20))


@pytest.mark.full
@pytest.mark.slow
def test_classes_are_those_of_the_pipeline(tmp_path: Path) -> None:
    ours = _exported(tmp_path, CLASSES)
    theirs = reference(ours.checkpoint, CLASSES)
    for text, item in zip(TEXTS, ours.asked("classify", texts=TEXTS), strict=True):
        assert_classes(item, theirs(text, top_k=None))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("kind", IMAGES)
def test_images_are_classified_as_by_the_pipeline(kind: str, tmp_path: Path) -> None:
    ours = _exported(tmp_path, kind)
    data = encoded(picture())
    (item,) = ours.asked("classify", (data,), images=[wire_images.encode(data)])
    assert_classes(item, reference(ours.checkpoint, kind)(picture(), top_k=3))
