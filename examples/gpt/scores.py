"""Few-shot accuracy of any answering function.

The function under test is a plain callable, so that one measure serves PyTorch, ONNX and the API.
All bindings of the fresh families are withheld from training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Tokenizer

from examples import share_equal
from examples.chat import scores as chat
from examples.chat.dialogues import Message
from examples.gpt.episodes import Family, Question, questions
from export.training.functions import in_batches

_MAX_STORY = 48


def answerer(folder: Path) -> Answer:
    """The saved GPT-2, in float32."""
    return answerer_of(*_loaded(folder))


def answerer_of(model: Any, tokenizer: GPT2Tokenizer, batch: int = 50) -> Answer:
    """Greedy continuations up to the line's end, without the space before them."""

    def answer(questions: list[Question]) -> list[str]:
        texts = [question.text for question in questions]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
        texts = _continued(model, tokenizer, inputs, MAX_ANSWER)
        return [text.partition("\n")[0].removeprefix(" ") for text in texts]

    return in_batches(answer, batch)


def continuer(folder: Path) -> Callable[[str], str]:
    """A function from a prompt, maybe empty, to the float32 model's greedy continuation."""
    model, tokenizer = _loaded(folder)

    def continue_prompt(prompt: str) -> str:
        inputs = tokenizer(prompt or tokenizer.bos_token, return_tensors="pt")
        (text,) = _continued(model, tokenizer, inputs, _MAX_STORY)
        return text

    return continue_prompt


def replier(folder: Path) -> chat.Reply:
    """The saved model for conversations, in float32."""
    return replier_of(*_loaded(folder))


def replier_of(model: Any, tokenizer: Any, batch: int = 50) -> chat.Reply:
    """Greedy answers to conversations laid out by the tokenizer's chat template."""

    def reply(conversations: list[Sequence[Message]]) -> list[str]:
        inputs = tokenizer.apply_chat_template(
            list(map(list, conversations)),
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
            padding=True,
            tokenizer_kwargs={"padding_side": "left"},
        )
        return _continued(model, tokenizer, inputs, chat.MAX_ANSWER)

    return in_batches(reply, batch)


def _loaded(folder: Path) -> tuple[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False
    )
    return model.eval(), AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


@torch.inference_mode()
def _continued(model: Any, tokenizer: Any, inputs: Any, longest: int) -> list[str]:
    """Greedy continuations of padded prompts, `longest` tokens at most."""
    tokens = model.generate(**inputs, max_new_tokens=longest, do_sample=False, num_beams=1)
    new = tokens[:, inputs["input_ids"].shape[1] :]
    texts: list[str] = tokenizer.batch_decode(new, skip_special_tokens=True)
    return texts


Answer = Callable[[list[Question]], list[str]]

SHOTS = (0, 1, 4, 8)
MAX_ANSWER = 12  # tokens
TEST_QUESTIONS, TEST_SEED = 200, 7  # of each family; reported in the model card


def accuracy(answer_all: Answer, family: Family, shots: int, count: int, seed: int) -> float:
    """Share of questions whose answer equals the bound one."""
    asked = list(questions(family, shots, count, seed))
    return share_equal(answer_all(asked), [question.answer for question in asked])


def swapped_accuracy(
    answer_all: Answer, family: Family, shots: int, count: int, seed: int
) -> float:
    """The control: each question gets the examples of the next one."""
    asked = list(questions(family, shots, count, seed))
    foreign = [
        Question(one.instruction, other.examples, one.prompt, one.answer)
        for one, other in zip(asked, asked[1:] + asked[:1], strict=True)
    ]
    return share_equal(answer_all(foreign), [question.answer for question in asked])


def mean(shares: Sequence[float]) -> float:
    """The mean over families."""
    return sum(shares) / len(shares)
