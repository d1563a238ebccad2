"""The example's LLaVA as a function from pictures and questions to answers, by `transformers`."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from examples.vqa.scores import MAX_ANSWER, AnswerFunction
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
