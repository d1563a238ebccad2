"""Perceiver beside `transformers`: padding, and the pipelines of three heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
import torch

from export.pipeline.cli import export
from inference.bundle.reader import newest_bundle
from inference.errors import CheckpointError
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from serving.load_model import load_model
from tests.export.conftest import Twins
from tests.export.models.encoders import perceiver_folders
from tests.export.models.encoders.perceiver_folders import (
    CLASSES,
    IMAGES,
    MASKED,
    TEXTS,
    assert_classes,
    assert_masks,
    picture,
    reference,
)
from tests.export.oracle import difference
from tests.export.twins import twin_of
from tests.pictures import encoded
from triptych import images as wire_images

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
    folder, repository = perceiver_folders.write(tmp_path / "tiny", kind), tmp_path / "repository"
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
