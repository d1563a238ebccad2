"""The example GPT-2 as functions from prompts to continuations, by `transformers` alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2LMHeadModel, GPT2Tokenizer

from export.examples.scores.gpt import MAX_ANSWER, Answer
from export.examples.texts.episodes import Question

_MAX_STORY = 48


def answerer(folder: Path) -> Answer:
    """The saved model, in float32."""
    model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    return answerer_of(model, GPT2Tokenizer.from_pretrained(folder))


def answerer_of(model: Any, tokenizer: GPT2Tokenizer, batch: int = 50) -> Answer:
    """Greedy continuations up to the line's end, without the space before them."""

    @torch.inference_mode()
    def answer_all(questions: list[Question]) -> list[str]:
        answers: list[str] = []
        for start in range(0, len(questions), batch):
            texts = [question.text for question in questions[start : start + batch]]
            inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
            tokens = model.generate(
                **inputs, max_new_tokens=MAX_ANSWER, do_sample=False, num_beams=1
            )
            new = tokens[:, inputs["input_ids"].shape[1] :]
            texts = tokenizer.batch_decode(new, skip_special_tokens=True)
            answers += [text.partition("\n")[0].removeprefix(" ") for text in texts]
        return answers

    return answer_all


def continuer(folder: Path) -> Callable[[str], str]:
    """A function from a prompt, maybe empty, to the float32 model's greedy continuation."""
    model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = GPT2Tokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def continue_prompt(prompt: str) -> str:
        ids = tokenizer(prompt or tokenizer.bos_token, return_tensors="pt")["input_ids"]
        tokens = model.generate(ids, max_new_tokens=_MAX_STORY, do_sample=False, num_beams=1)
        return tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True)

    return continue_prompt
