"""Served scores equal those of `transformers`, teacher-forced."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import (
    GPT2LMHeadModel,
    MarianMTModel,
    MarianTokenizer,
    PreTrainedTokenizerFast,
    VisionEncoderDecoderModel,
)

from examples.history.task_requests import as_png
from examples.scenes.scene import caption
from examples.scenes.scores import heldout_pictures
from examples.texts.grammar import sentences
from tests.e2e.conftest import CHECKPOINTS, Stack
from tests.e2e.test_answers import pixel_values
from triptych import Client
from triptych.cli import run as triptych
from triptych.client.grpc_client import GrpcClient

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]


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
