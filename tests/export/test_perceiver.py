"""Perceiver beside `transformers`: what it refuses, padding, and the pipelines of three heads."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
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

from export.cli import export
from export.models.perceiver_config import CONVOLVED, FOURIER, LEARNED, read_config
from export.quantize import Precision
from export.registry import architecture
from serving.bundle import newest_bundle
from serving.errors import CheckpointError
from serving.loading import load_model
from serving.planning.limits import TaskLimits
from serving.planning.loaded_model import LoadedModel
from serving.tasks import TASKS
from tests.export.conftest import Twins
from tests.export.oracle import difference
from tests.export.twins import randomise
from triptych import images as wire_images

CONFIGS = architecture("perceiver").twin.configs
TEXTS = ["Ada [MASK] was born.", "[MASK][MASK] é", "a", "x" * 40 + "[MASK]"]
TOLERANCE = 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["PerceiverForOpticalFlow"]}, "optical flow and .* are not"),
        ({"architectures": ["PerceiverForMultimodalAutoencoding"]}, "multimodal autoencoding are"),
        ({"architectures": ["PerceiverModel"]}, "'PerceiverModel'. is not supported"),
        ({"architectures": None}, "is not supported"),
        ({"v_channels": 60}, "v_channels = 60 must be d_latents = 30"),
        ({"v_channels": None}, "v_channels = 60 must be d_latents = 30"),
        ({"num_self_attention_heads": 7}, "7 heads do not share out width 30"),
        ({"d_model": 36}, "8 heads do not share out width 36"),
        ({"cross_attention_shape_for_attention": "v"}, "only kv, q"),
    ],
)
def test_what_no_checkpoint_of_ours_is_computed_from_is_refused(
    change: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_config({**CONFIGS["odd"], **change})


def test_learned_positions_are_those_of_one_size(twins: Twins) -> None:
    twin = twins("perceiver", "learned")
    assert twin.prepared.image is not None
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

    checkpoint: str
    repository: Path
    model: LoadedModel

    def asked(self, task: str, pictures: tuple[bytes, ...] = (), **fields: Any) -> list[Any]:
        """The items of a response, as the gateway computes them."""
        served = TASKS[task]
        request = served.declaration.request(**fields)
        plan = served.prepare(request, pictures, self.model, TaskLimits())
        outcomes = []
        for call in plan.calls:
            path = self.repository / call.model / str(call.version) / "model.onnx"
            session = ort.InferenceSession(path)
            outputs = session.run(list(call.outputs), dict(call.inputs))
            outcomes.append(dict(zip(call.outputs.values(), outputs, strict=True)))
        return list(plan.finish(outcomes).data)


def _exported(tmp_path: Path, kind: str, **fields: object) -> Exported:
    """A random checkpoint with its own preprocessing, exported."""
    folder = tmp_path / "tiny"
    network = getattr(transformers, kind)
    values = {**CONFIGS["plain"], "vocab_size": 262, "max_position_embeddings": 64, **fields}
    del values["architectures"]
    model = network(network.config_class(**values)).eval()
    randomise(model)
    model.save_pretrained(folder)
    if "Image" in kind:
        size = {"height": values["image_size"], "width": values["image_size"]}
        PerceiverImageProcessorPil(size=size).save_pretrained(folder)
    else:
        PerceiverTokenizer(model_max_length=64).save_pretrained(folder)
    repository = tmp_path / "repository"
    export(
        str(folder),
        name=None,
        task=None,
        repository=repository,
        default=None,
        precision=Precision.FP32,
    )
    return Exported(str(folder), repository, load_model(newest_bundle(repository, "tiny")))


@pytest.mark.full
@pytest.mark.slow
def test_masks_are_filled_as_by_the_pipeline(tmp_path: Path) -> None:
    ours = _exported(tmp_path, "PerceiverForMaskedLM")
    theirs = pipeline("fill-mask", model=ours.checkpoint, device="cpu", dtype=torch.float32)
    texts = [text for text in TEXTS if "[MASK]" in text]
    for text, item in zip(texts, ours.asked("fill-mask", texts=texts, top_k=20), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = theirs(text, top_k=20)
        expected = expected if isinstance(expected[0], list) else [expected]
        for found, wanted in zip(item.masks, expected, strict=True):
            assert [one.token_id for one in found] == [one["token"] for one in wanted]
            assert [one.token for one in found] == [one["token_str"] for one in wanted]
            scores = [one.score for one in found]
            np.testing.assert_allclose(scores, [one["score"] for one in wanted], atol=TOLERANCE)
            if len(item.masks) == 1:
                assert [one.text for one in found] == [one["sequence"] for one in wanted]


def _assert_classes(found: Any, expected: Any) -> None:
    assert [one.label for one in found.labels] == [one["label"] for one in expected]
    wanted = [one["score"] for one in expected]
    np.testing.assert_allclose([one.score for one in found.labels], wanted, atol=TOLERANCE)


@pytest.mark.full
@pytest.mark.slow
def test_classes_are_those_of_the_pipeline(tmp_path: Path) -> None:
    labels = dict(enumerate("xyz"))
    ours = _exported(tmp_path, "PerceiverForSequenceClassification", id2label=labels, num_blocks=2)
    theirs = pipeline(
        "text-classification", model=ours.checkpoint, device="cpu", dtype=torch.float32
    )
    for text, item in zip(TEXTS, ours.asked("classify", texts=TEXTS), strict=True):
        _assert_classes(item, theirs(text, top_k=None))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("kind", [LEARNED, FOURIER, CONVOLVED])
def test_images_are_classified_as_by_the_pipeline(kind: str, tmp_path: Path) -> None:
    fields = {"id2label": dict(enumerate("xyz")), "num_cross_attention_heads": 1, "image_size": 20}
    ours = _exported(tmp_path, kind, **fields)
    noise = np.random.default_rng(0).integers(0, 256, (41, 30, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    theirs = pipeline(
        "image-classification",
        model=ours.checkpoint,
        image_processor=PerceiverImageProcessorPil.from_pretrained(ours.checkpoint),
        device="cpu",
        dtype=torch.float32,
    )
    png = io.BytesIO()
    image.save(png, "PNG")
    (item,) = ours.asked("classify", (png.getvalue(),), images=[wire_images.encode(png.getvalue())])
    _assert_classes(item, theirs(image, top_k=3))
