"""Right answers to questions about held-out scenes, of any answering function.

The function under test is a plain callable, so that one measure serves PyTorch, ONNX and the API.
An answer is right where it is the expected text, letter by letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from examples import share_equal
from examples.scenes.scores import heldout_pictures
from examples.vqa.questions import Question, draw_questions
from export.training.functions import in_batches


def answerer(folder: Path) -> AnswerFunction:
    """The saved model, in float32."""
    model = LlavaForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False
    )
    return answerer_of(
        model.eval(), LlavaProcessor.from_pretrained(folder, trust_remote_code=False)
    )


def answerer_of(model: Any, processor: Any, batch: int = 50) -> AnswerFunction:
    """Greedy answers, as the processor's template lays questions out."""

    @torch.inference_mode()
    def answer(asked: list[tuple[Image.Image, str]]) -> list[str]:
        pictures, questions = zip(*asked, strict=True)
        inputs = processor(
            text=[lay_out(question, processor) for question in questions],
            images=list(pictures),
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        tokens = model.generate(**inputs, max_new_tokens=MAX_ANSWER, do_sample=False)
        new = tokens[:, inputs["input_ids"].shape[1] :]
        answers: list[str] = processor.batch_decode(new, skip_special_tokens=True)
        return answers

    return in_batches(answer, batch)


def lay_out(question: str, processor: Any) -> str:
    """The prompt of one question about one picture."""
    content = [{"type": "image"}, {"type": "text", "text": question}]
    prompt: str = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    return prompt


AnswerFunction = Callable[[list[tuple[Image.Image, str]]], list[str]]
"""Pictures with a question each → the answers."""

MAX_ANSWER = 32  # tokens
TEST_QUESTIONS, TEST_SEED = 1000, 7  # reported in the model card
Asked = list[tuple[Image.Image, Question]]


def accuracy(answer_all: AnswerFunction, count: int, seed: int) -> dict[str, float]:
    """Share of right answers by kind of question, and of all as `all`."""
    asked = _asked(count, seed)
    answers = answer_all([(picture, question.text) for picture, question in asked])
    kinds = sorted({question.kind for _, question in asked})
    shares = {kind: _share(asked, answers, kind) for kind in kinds}
    return {"all": share_equal(answers, [question.answer for _, question in asked]), **shares}


def swapped_accuracy(answer_all: AnswerFunction, count: int, seed: int) -> float:
    """The control: each question is asked about the picture of the next one."""
    asked = _asked(count, seed)
    pictures = [picture for picture, _ in asked[1:] + asked[:1]]
    pairs = zip(pictures, (question.text for _, question in asked), strict=True)
    return share_equal(answer_all(list(pairs)), [question.answer for _, question in asked])


def _asked(count: int, seed: int) -> Asked:
    """One question about each of `count` held-out pictures."""
    return list(_questions(count, seed))


def _questions(count: int, seed: int) -> Iterator[tuple[Image.Image, Question]]:
    rng = np.random.default_rng([seed, 3])
    for scene, picture in heldout_pictures(count, seed):
        yield picture, next(draw_questions(scene, rng))


def _share(asked: Asked, answers: list[str], kind: str) -> float:
    pairs = zip(asked, answers, strict=True)
    right = [answer == one.answer for (_, one), answer in pairs if one.kind == kind]
    return sum(right) / len(right)
