"""Models of images and texts answer as processor and model of `transformers` do.

Exported by the command's own function; task, tokenizer, image recipe and engine are those that
serve.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    VideoMAEImageProcessorPil,
)

from export.pipeline.cli import export
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.ort.runner import OrtRunner
from inference.tasks import TASKS
from serving.load_model import load_model
from tests.export.image_folders import (
    CONTINUES,
    KINDS,
    NEW_TOKENS,
    PROMPTS,
    ask,
    log_probs,
    read,
    wanted,
    write,
)
from tests.export.saved_folders import save
from tests.export.test_text_pipelines import run
from tests.pictures import blocks, encoded, noise
from triptych.tasks.classify import ClassifyRequest
from triptych.tasks.embed import EmbedRequest
from triptych.tasks.generate import GenerateRequest

pytestmark = [pytest.mark.slow, pytest.mark.full]


@pytest.mark.parametrize("kind", KINDS)
def test_bundle_answers_about_pictures_as_transformers(kind: str, tmp_path: Path) -> None:
    processor, original = write(kind, tmp_path / "picture")
    export(str(tmp_path / "picture"), repository=tmp_path / "repository")
    bundle = newest_bundle(tmp_path / "repository", "picture")
    model, runner, found = load_model(bundle), OrtRunner(bundle, threads=1), set()
    random = np.random.default_rng(6)
    for prompt in PROMPTS:
        picture = blocks(random)
        for num_beams in (1, 3):
            answered = wanted(processor, original, picture, prompt, num_beams)
            asked = {"num_beams": num_beams}
            text = f"<image>{prompt}"
            answer = ask("generate", model, runner, picture, NEW_TOKENS, prompts=[text], **asked)
            assert answer.text.strip() == answered.strip()
            asked["prompt"] = prompt or None
            caption = ask("caption", model, runner, picture, NEW_TOKENS, **asked)
            before = prompt if kind in CONTINUES else ""
            assert caption.text == f"{before} {answered}".strip()
            found.add(answered)
        ids = processor.tokenizer("w40 w51 w40", add_special_tokens=False)["input_ids"]
        ids += model.generation.eos_token_ids[:1]
        scores = log_probs(original, read(processor, picture, prompt), ids)
        target = f"{' ' * bool(before)}w40 w51 w40"
        asked = {"targets": [target], "texts": prompt, "logprobs": 0}
        scored = ask("score", model, runner, picture, len(ids), **asked)
        given = [each.logprob for each in scored.logprobs]
        np.testing.assert_allclose(given, scores, atol=10 * TOLERANCE)
    assert len(found) > 1


@pytest.mark.parametrize("num_beams", [1, 4])
def test_encoder_reads_no_picture_or_several_as_transformers(
    num_beams: int, tmp_path: Path
) -> None:
    processor, original = write("t5gemma2", tmp_path / "picture")
    export(str(tmp_path / "picture"), repository=tmp_path / "repository")
    bundle, random = newest_bundle(tmp_path / "repository", "picture"), np.random.default_rng(7)
    model, pictures = load_model(bundle), [blocks(random) for _ in range(3)]
    prompts = ["<image>w9 <image> w12", "w9 w12", "w20 w8 <image>"]
    images = [pictures[:2], [], pictures[2:]]
    request = GenerateRequest(prompts=prompts, images=["beside"] * 3, num_beams=num_beams)
    plan, limit = TASKS["generate"].prepare(request, pictures, model), NEW_TOKENS
    limited = model.generation.model_copy(update={"max_new_tokens": limit, "do_sample": False})
    calls = [
        EngineRequest(limited.with_overrides(each.options), **each.inputs) for each in plan.calls
    ]
    answers = plan.finish(decode(OrtRunner(bundle, threads=1), calls)).data
    for text, given, answer in zip(prompts, images, answers, strict=True):
        shown = [Image.open(io.BytesIO(picture)) for picture in given] or None
        inputs = processor(images=shown, text=text, return_tensors="pt")
        options = {"num_beams": num_beams, "max_new_tokens": limit, "do_sample": False}
        with torch.no_grad():
            (found,) = original.generate(**inputs, **options)
        assert answer.text == processor.tokenizer.decode(found, skip_special_tokens=True).strip()
    assert len({answer.text for answer in answers}) == 3


LABELS = ["w12", "w40 w9 w33", "w20 w20", "w51 w13 w13 w8 w30"]
TOLERANCE = 1e-5


def _save_and_export(name: str, config: str, path: Path) -> tuple[Path, Any, Bundle]:
    """The folder that `transformers` writes of a random checkpoint, its model, its bundle."""
    folder = path / "folder"
    folder.mkdir()
    model = save(name, config, folder)
    export(str(folder), repository=path / "repository")
    return folder, model, newest_bundle(path / "repository", "folder")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("metaclip_2", "as published"),
        ("chinese_clip", "plain"),
        ("altclip", "plain"),
        ("align", "plain"),
        ("groupvit", "legacy-end"),
    ],
)
def test_labels_are_ranked_as_by_transformers(name: str, config: str, tmp_path: Path) -> None:
    folder, model, bundle = _save_and_export(name, config, tmp_path)
    loaded, picture = load_model(bundle), blocks(np.random.default_rng(6))
    wanted = _logits(folder, model, picture)

    task = TASKS["zero-shot"]
    request = task.declaration.request(images=["beside"], labels=LABELS, templates=["{}"])
    plan = task.prepare(request, [picture], loaded)
    (item,) = plan.finish([run(bundle.folder.parent.parent, call) for call in plan.calls]).data
    order = wanted.argsort(descending=True)
    assert [each.label for each in item.labels] == [LABELS[place] for place in order]
    scores = wanted.softmax(dim=-1)[order]
    np.testing.assert_allclose([each.score for each in item.labels], scores, atol=TOLERANCE)
    assert scores[0] - scores[-1] > 100 * TOLERANCE


def test_pictures_of_any_aspect_are_scored_as_by_transformers(tmp_path: Path) -> None:
    folder, model, bundle = _save_and_export("siglip2", "odd", tmp_path)
    loaded = load_model(bundle)
    pictures = [encoded(noise(*size)) for size in ((60, 44), (44, 60), (200, 9), (5, 5))]
    task, places = TASKS["zero-shot"], ["beside"] * len(pictures)
    request = task.declaration.request(images=places, labels=LABELS, templates=["{}"])
    plan = task.prepare(request, pictures, loaded)
    items = plan.finish([run(bundle.folder.parent.parent, call) for call in plan.calls]).data

    padded = {"padding": "max_length", "max_length": 12}
    texts = AutoTokenizer.from_pretrained(folder)(LABELS, return_tensors="pt", **padded)
    recipe = AutoImageProcessor.from_pretrained(folder, backend="pil")
    opened = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures]
    with torch.no_grad():
        pixels = recipe(images=opened, return_tensors="pt")
        wanted = model(input_ids=texts["input_ids"], **pixels).logits_per_image.sigmoid()
    for item, scores in zip(items, wanted, strict=True):
        given = {each.label: each.score for each in item.labels}
        np.testing.assert_allclose([given[each] for each in LABELS], scores, atol=TOLERANCE)
    assert wanted.std(dim=0).min() > 100 * TOLERANCE


@pytest.mark.parametrize(
    ("shown", "frames"),
    [(5, [0, 1, 2, 3, 4]), (12, [1, 3, 6, 8, 10]), (2, [0, 0, 1, 1, 1]), (1, [0] * 5)],
)
def test_videos_are_scored_as_by_transformers(
    shown: int, frames: list[int], tmp_path: Path
) -> None:
    """Of a longer list frames at equal distances are read, of a shorter one some several times."""
    folder = tmp_path / "folder"
    folder.mkdir()
    model = save("xclip", "odd", folder)
    size = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}
    VideoMAEImageProcessorPil(**size).save_pretrained(folder)
    export(str(folder), repository=tmp_path / "repository")
    bundle = newest_bundle(tmp_path / "repository", "folder")
    random = np.random.default_rng(7)
    pictures = [encoded(noise(50, 44)) for _ in range(3)] + [blocks(random) for _ in range(shown)]

    task, places = TASKS["zero-shot"], ["beside"] * len(pictures)
    request = task.declaration.request(images=places, labels=LABELS, frame_counts=[3, shown])
    plan, models = task.prepare(request, pictures, load_model(bundle)), bundle.folder.parent.parent
    following = plan.following([run(models, call) for call in plan.calls])
    items = following.finish([run(models, call) for call in following.calls]).data

    texts = AutoTokenizer.from_pretrained(folder)(LABELS, padding=True, return_tensors="pt")
    recipe = AutoImageProcessor.from_pretrained(folder, backend="pil")
    opened = [Image.open(io.BytesIO(each)).convert("RGB") for each in pictures]
    for item, chosen in zip(items, ([0, 0, 1, 2, 2], [3 + place for place in frames]), strict=True):
        pixels = recipe([opened[place] for place in chosen], return_tensors="pt")
        with torch.no_grad():
            wanted = model(**texts, **pixels)["logits_per_video"][0].softmax(dim=-1)
        given = {each.label: each.score for each in item.labels}
        np.testing.assert_allclose([given[each] for each in LABELS], wanted, atol=TOLERANCE)
        assert wanted.std() > 100 * TOLERANCE


QUESTIONS = ["w12", "w40 w9 w33", "w20", "w51 w13 w13 w8 w30"]


@pytest.mark.parametrize(
    ("name", "config"), [("vilt", "odd"), ("vilt", "plain"), ("blip", "retrieval")]
)
def test_images_with_texts_are_classified_as_by_transformers(
    name: str, config: str, tmp_path: Path
) -> None:
    """Pictures differ in their aspect ratio, texts in their length."""
    folder, model, bundle = _save_and_export(name, config, tmp_path)
    loaded = load_model(bundle)
    pictures = [encoded(noise(*size)) for size in ((60, 44), (44, 60), (50, 50), (90, 31))]
    request = ClassifyRequest(
        images=["beside"] * 4, texts=QUESTIONS, top_k=9, function_to_apply="none"
    )
    plan = TASKS["classify"].prepare(request, pictures, loaded)
    items = plan.finish([run(bundle.folder.parent.parent, call) for call in plan.calls]).data
    labels = loaded.sections["classify"].labels
    processor, found = AutoProcessor.from_pretrained(folder, backend="pil"), set()
    for item, picture, text in zip(items, pictures, QUESTIONS, strict=True):
        opened = Image.open(io.BytesIO(picture)).convert("RGB")
        with torch.no_grad():
            answer = model(**processor(opened, text, return_tensors="pt"))
        (wanted,) = answer.itm_score if name == "blip" else answer.logits
        given = {entry.label: entry.score for entry in item.labels}
        scores = [given[label] for label in labels]
        np.testing.assert_allclose(scores, wanted, atol=TOLERANCE * wanted.abs().max())
        found.add(round(scores[0], 3))
    assert len(found) == 4


@pytest.mark.parametrize(
    ("name", "config"),
    [("lxmert", "odd"), ("lxmert", "plain"), ("visual_bert", "odd"), ("visual_bert", "plain")],
)
def test_regions_with_texts_are_classified_as_by_transformers(
    name: str, config: str, tmp_path: Path
) -> None:
    """Pictures differ in their number of regions, texts in their length; others are refused."""
    folder, model, bundle = _save_and_export(name, config, tmp_path)
    loaded, random = load_model(bundle), np.random.default_rng(0)
    assert loaded.image.regions is not None
    arrays = [_random_regions(random, count, loaded.image.regions.features) for count in (1, 7, 36)]
    files = [_npz(**each) for each in arrays]
    given = [*files, encoded(noise(9, 9)), _npz(features=arrays[1]["features"][:, 1:])]
    request = ClassifyRequest(
        images=["beside"] * 5,
        texts=[*QUESTIONS, QUESTIONS[0]],
        top_k=9,
        function_to_apply="none",
    )
    plan = TASKS["classify"].prepare(request, given, loaded)
    models = bundle.folder.parent.parent
    items = plan.finish([run(models, call) for call in plan.calls]).data
    labels, tokenizer, found = (
        loaded.sections["classify"].labels,
        AutoTokenizer.from_pretrained(folder),
        set(),
    )
    for item, each, text in zip(items, arrays, QUESTIONS, strict=False):
        features, boxes = (torch.from_numpy(each[key])[None] for key in ("features", "boxes"))
        fields = {"visual_feats": features, "visual_pos": boxes}
        with torch.no_grad():
            words = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            answer = model(**words, **(fields if name == "lxmert" else {"visual_embeds": features}))
        wanted = answer["question_answering_score" if name == "lxmert" else "logits"][0]
        scores = {entry.label: entry.score for entry in item.labels}
        ours = [scores[label] for label in labels]
        np.testing.assert_allclose(ours, wanted, atol=TOLERANCE * wanted.abs().max())
        found.add(round(ours[0], 3))
    assert len(found) == 3
    assert [item.error.type for item in items[3:]] == ["unsupported_image"] * 2
    assert "this model reads a .npz" in items[3].error.message
    both = ClassifyRequest(images=["beside"] * 2, texts=QUESTIONS[:1])
    assert len(TASKS["classify"].prepare(both, files[:2], loaded).items) == 2


def _random_regions(random: np.random.Generator, count: int, features: int) -> dict[str, Any]:
    corners = np.sort(random.random((count, 2, 2), np.float32), axis=1)
    values = random.random((count, features), np.float32)
    return {"features": values, "boxes": corners.reshape(count, 4)}


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def test_vectors_of_blip_are_those_of_its_contrastive_score(tmp_path: Path) -> None:
    folder, model, bundle = _save_and_export("blip", "retrieval", tmp_path)
    loaded, picture = load_model(bundle), encoded(noise(60, 44))

    def vectors(given: list[bytes], **fields: Any) -> Any:
        plan = TASKS["embed"].prepare(EmbedRequest(**fields), given, loaded)
        outcomes = [run(bundle.folder.parent.parent, call) for call in plan.calls]
        return np.array([item.embedding for item in plan.finish(outcomes).data])

    scores = vectors([picture], images=["beside"]) @ vectors([], texts=QUESTIONS).T
    processor = AutoProcessor.from_pretrained(folder, backend="pil")
    opened = Image.open(io.BytesIO(picture)).convert("RGB")
    for text, score in zip(QUESTIONS, scores[0], strict=True):
        with torch.no_grad():
            inputs = processor(opened, text, return_tensors="pt")
            wanted = model(**inputs, use_itm_head=False).itm_score
        np.testing.assert_allclose(score, wanted.item(), atol=TOLERANCE)


def _logits(folder: Path, model: Any, picture: bytes) -> torch.Tensor:
    """(labels,) of one picture."""
    texts = AutoTokenizer.from_pretrained(folder)(LABELS, padding=True, return_tensors="pt")
    recipe = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = recipe(images=Image.open(io.BytesIO(picture)).convert("RGB"), return_tensors="pt")
    with torch.no_grad():
        logits: torch.Tensor = model(**texts, **pixels).logits_per_image[0]
    return logits
