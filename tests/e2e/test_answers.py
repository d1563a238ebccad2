"""Served results equal those of `transformers` for the same folder."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    CLIPModel,
    CLIPTokenizer,
    GPT2LMHeadModel,
    MarianMTModel,
    MarianTokenizer,
    PreTrainedTokenizerFast,
    VisionEncoderDecoderModel,
)

from examples.history.task_requests import as_png
from examples.scenes.scene import caption
from examples.scenes.scores import heldout_pictures, questions
from examples.texts.grammar import ENGLISH, SPANISH, sentences
from tests.e2e.conftest import CHECKPOINTS, Stack
from triptych import Client
from triptych.cli import run as triptych
from triptych.client.grpc_client import GrpcClient

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]
SCORE_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def spanish() -> list[str]:
    """Sentences of mixed lengths outside the training split, none of them split by the gateway."""
    return [pair.spanish for pair in sentences("compositional", 32, seed=3)]


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    return [picture for _, picture in heldout_pictures(12, seed=3)]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_translations_and_scores_are_those_of_transformers(
    client: Client, spanish: list[str], num_beams: int
) -> None:
    expected = translate_with_transformers(spanish, num_beams)
    batched = client.translate(spanish, num_beams=num_beams).data
    assert [item.text for item in batched] == [text for text, _ in expected]
    scores = np.array([item.score for item in batched])
    assert scores == pytest.approx([score for _, score in expected], abs=SCORE_TOLERANCE)


def test_a_translation_does_not_depend_on_its_batch(client: Client, spanish: list[str]) -> None:
    together = [item.text for item in client.translate(spanish).data]
    with ThreadPoolExecutor(16) as pool:
        alone = list(pool.map(lambda text: client.translate(text).data[0].text, spanish))
    assert alone == together


def test_a_paragraph_keeps_its_line_breaks_and_every_sentence(client: Client) -> None:
    assert client.translate(SPANISH, source="es", target="en").data[0].text == ENGLISH


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("este restaurante tiene buena comida", "this restaurant has good food"),
        ("el mundo no es suficiente", "the world is not enough"),
    ],
)
def test_withheld_sentences_are_translated(client: Client, source: str, expected: str) -> None:
    assert client.translate(source).data[0].text == expected


def test_alternatives_come_best_first(client: Client, spanish: list[str]) -> None:
    found = client.translate(spanish[0], alternatives=3).data[0]
    scores = [alternative.score for alternative in found.alternatives]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert found.text == found.alternatives[0].text


@pytest.mark.parametrize("num_beams", [1, 4])
def test_captions_and_scores_are_those_of_transformers(
    client: Client, pictures: list[Image.Image], num_beams: int
) -> None:
    expected = caption_with_transformers(pictures, num_beams)
    data = client.caption([as_png(picture) for picture in pictures], num_beams=num_beams).data
    assert [item.text for item in data] == [text for text, _ in expected]
    scores = np.array([item.score for item in data])
    assert scores == pytest.approx([score for _, score in expected], abs=SCORE_TOLERANCE)


@pytest.mark.parametrize(
    "rules",
    [
        {"num_beams": 1, "repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
        {"num_beams": 1, "repetition_penalty": 1.3, "max_new_tokens": 7},
        {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True},
        {"num_beams": 3, "length_penalty": -1.0, "repetition_penalty": 1.5},
    ],
)
def test_captions_take_the_rules_of_transformers(
    client: Client, pictures: list[Image.Image], rules: dict[str, Any]
) -> None:
    expected = [text for text, _ in caption_with_transformers(pictures, **rules)]
    data = client.caption([as_png(picture) for picture in pictures], **rules).data
    assert [item.text for item in data] == expected


def test_sampled_captions_depend_on_the_seed_alone(
    client: Client, grpc_client: GrpcClient, pictures: list[Image.Image]
) -> None:
    files = [as_png(picture) for picture in pictures]
    drawn = client.caption(files, temperature=3.0, top_p=0.95, seed=7, n=3)
    same(drawn, grpc_client.caption(files, temperature=3.0, top_p=0.95, seed=7, n=3))
    other = client.caption(files, temperature=3.0, top_p=0.95, seed=8, n=3)
    assert [item.text for item in drawn.data] != [item.text for item in other.data]
    for item in drawn.data:
        scores = [one.score for one in item.alternatives or ()]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == 3
    greedy = [item.text for item in client.caption(files, num_beams=1).data]
    assert [item.text for item in client.caption(files, top_k=1).data] == greedy


def test_new_tokens_bound_translations_as_in_transformers(
    client: Client, spanish: list[str]
) -> None:
    expected = translate_with_transformers(spanish[:6], 4, max_new_tokens=5)
    data = client.translate(spanish[:6], num_beams=4, max_new_tokens=5).data
    assert [item.text for item in data] == [text for text, _ in expected]


def test_zero_shot_probabilities_are_those_of_transformers(client: Client) -> None:
    for question in questions(6, seed=3):
        data = client.zero_shot(as_png(question.picture), question.labels).data[0]
        given = {entry.label: entry.score for entry in data.labels}
        expected = classify_with_transformers(question.picture, question.labels)
        assert given == pytest.approx(expected, abs=1e-4)
        assert [e.label for e in data.labels] == sorted(given, key=given.__getitem__, reverse=True)


def test_grpc_gives_what_http_gives(
    client: Client, grpc_client: GrpcClient, pictures: list[Image.Image], spanish: list[str]
) -> None:
    files = [as_png(picture) for picture in pictures[:2]]
    labels = ["red circle", "blue square"]
    same(client.translate(spanish[:3]), grpc_client.translate(spanish[:3]))
    same(client.caption(files), grpc_client.caption(files))
    same(client.zero_shot(files, labels), grpc_client.zero_shot(files, labels))
    assert {model.id for model in grpc_client.models().data} == {
        model.id for model in client.models().data
    }


def same(left: object, right: object) -> None:
    """Equal messages; float32 on the wire of protobuf may round."""
    one, other = (message.model_dump(exclude_none=True) for message in (left, right))
    assert rounded(one) == rounded(other)


def rounded(value: object) -> object:
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-5, abs=1e-6)
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else value


def translate_with_transformers(
    texts: list[str], num_beams: int, **rules: Any
) -> list[tuple[str, float]]:
    """Each text on its own, so that padding cannot matter."""
    folder = CHECKPOINTS / "example-es-en"
    tokenizer = MarianTokenizer.from_pretrained(folder)
    model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    return [
        generated(model, tokenizer.decode, num_beams, rules, **tokenizer(text, return_tensors="pt"))
        for text in texts
    ]


def caption_with_transformers(
    pictures: list[Image.Image], num_beams: int, **rules: Any
) -> list[tuple[str, float]]:
    """Each picture on its own."""
    folder = CHECKPOINTS / "example-captioner"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = VisionEncoderDecoderModel.from_pretrained(folder, dtype=torch.float32).eval()
    return [
        generated(
            model, tokenizer.decode, num_beams, rules, pixel_values=pixel_values(folder, picture)
        )
        for picture in pictures
    ]


def classify_with_transformers(picture: Image.Image, labels: list[str]) -> dict[str, float]:
    """Probabilities among the labels in the default template."""
    folder = CHECKPOINTS / "example-clip"
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    texts = tokenizer([f"a photo of a {label}" for label in labels], padding=True)
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor(texts["input_ids"]),
            attention_mask=torch.tensor(texts["attention_mask"]),
            pixel_values=pixel_values(folder, picture),
        ).logits_per_image[0]
    return dict(zip(labels, logits.softmax(-1).tolist(), strict=True))


def pixel_values(folder: object, picture: Image.Image) -> torch.Tensor:
    """(1, 3, height, width), by the Pillow processor that the folder names."""
    from transformers import CLIPImageProcessorPil, ViTImageProcessorPil

    kind = CLIPImageProcessorPil if "clip" in str(folder) else ViTImageProcessorPil
    return torch.as_tensor(np.stack(kind.from_pretrained(folder)(picture)["pixel_values"]))


def generated(
    model: MarianMTModel | VisionEncoderDecoderModel,
    decode: Callable[..., str],
    num_beams: int,
    rules: dict[str, Any],
    **inputs: torch.Tensor,
) -> tuple[str, float]:
    """The best hypothesis and its score as `docs/architecture.md` defines it."""
    with torch.no_grad():
        found = model.generate(
            **inputs,
            **rules,
            num_beams=num_beams,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
    text = decode(found.sequences[0], skip_special_tokens=True).strip()
    if num_beams > 1:
        return text, float(found.sequences_scores[0])
    steps = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)[0]
    penalty = float(model.generation_config.length_penalty or 1.0)
    return text, float(steps.sum()) / len(steps) ** penalty


def sums(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The log-probability of labels (T,) under logits (T, V)."""
    return float(logits.log_softmax(-1).gather(1, labels[:, None]).sum())


def test_translations(client: Client, grpc_client: GrpcClient) -> None:
    pairs = list(sentences("held_out", 12, seed=4))
    folder = str(CHECKPOINTS / "example-es-en")
    model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = MarianTokenizer.from_pretrained(folder)
    targets = [pair.english for pair in pairs[1:]] + ["The cat."]
    texts = [pair.spanish for pair in pairs]
    asked = {"texts": texts, "model": "example-es-en", "logprobs": 2}
    found = client.score(targets, **asked)
    assert grpc_client.score(targets, **asked) == found
    for text, target, item in zip(texts, targets, found.data, strict=True):
        inputs = tokenizer([text], text_target=[target], return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits[0]
        assert item.score == pytest.approx(sums(logits, inputs.labels[0]), abs=1e-4 * item.tokens)
        assert item.tokens == inputs.labels.shape[1]
        assert math.fsum(one.logprob for one in item.logprobs) == pytest.approx(item.score)
        assert all(len(one.top) == 2 for one in item.logprobs)
    best = client.score([pairs[0].english, pairs[1].english], texts=texts[0], model="example-es-en")
    assert best.data[0].score > best.data[1].score


def test_continuations(client: Client) -> None:
    folder = str(CHECKPOINTS / "example-gpt")
    model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    prompt, targets = "The small red", [" circle", " circle is on the left.", "dish"]
    for text in (prompt, None):
        for ends in (False, True):
            found = client.score(targets, texts=text, with_end=ends, model="example-gpt").data
            for target, item in zip(targets, found, strict=True):
                ids = tokenizer((text or "") + target).input_ids
                before = len(tokenizer(text).input_ids) if text else 1
                ids = ids if text else [tokenizer.bos_token_id or 0, *ids]
                ids += [tokenizer.eos_token_id or 0] if ends else []
                with torch.no_grad():
                    logits = model(torch.tensor([ids])).logits[0, before - 1 : -1]
                wanted = sums(logits, torch.tensor(ids[before:]))
                assert item.score == pytest.approx(wanted, abs=1e-4 * item.tokens)


def test_captions(client: Client) -> None:
    (scene, picture), (other, _) = heldout_pictures(2, seed=3)
    folder = str(CHECKPOINTS / "example-captioner")
    model = VisionEncoderDecoderModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    targets = [caption(scene), caption(other)]
    found = client.score(targets, images=as_png(picture), model="example-captioner").data
    for target, item in zip(targets, found, strict=True):
        ids = [*tokenizer(target, add_special_tokens=False).input_ids, model.config.eos_token_id]
        with torch.no_grad():
            labels = torch.tensor([ids])
            logits = model(pixel_values=pixel_values(folder, picture), labels=labels).logits[0]
        assert item.score == pytest.approx(sums(logits, labels[0]), abs=1e-4 * item.tokens)
    assert found[0].score > found[1].score


def test_the_command_prints_scores(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["score", " circle", "--text", "The small red", "--model", "example-gpt"]
    assert triptych([*command, "--url", stack.url]) == 0
    assert capsys.readouterr().out.strip().endswith("1 tokens")
