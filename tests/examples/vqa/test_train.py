"""What the training of `example-vqa` reads is what the template lays out."""

from __future__ import annotations

import pytest
from transformers import LlavaProcessor

from examples.vqa.questions import Question
from examples.vqa.train import OUTPUT, row_of

IGNORED = -100


def test_rows_are_the_templates_conversations_and_answers_are_learnt() -> None:
    processor = LlavaProcessor.from_pretrained(OUTPUT)
    asked = [
        Question("count", "how many shapes are there?", "two"),
        Question("place", "where is the ring?", "above the star"),
    ]
    messages = []
    for place, question in enumerate(asked):
        image = [] if place else [{"type": "image"}]
        content = [*image, {"type": "text", "text": question.text}]
        messages.append({"role": "user", "content": content})
        messages.append({"role": "assistant", "content": question.answer})
    laid_out = processor.apply_chat_template(messages).replace("<image>", "<image>" * 64)
    tokens, labels = row_of(asked, processor)
    assert tokens == processor.tokenizer(laid_out)["input_ids"]
    learnt = [token for token, label in zip(tokens, labels, strict=True) if label != IGNORED]
    assert learnt == [label for label in labels if label != IGNORED]
    assert processor.tokenizer.decode(learnt) == "two<|im_end|>above the star<|im_end|>"


@pytest.mark.parametrize("limit", [5_000_000])
def test_checkpoint_is_small(limit: int) -> None:
    assert sum(path.stat().st_size for path in OUTPUT.iterdir()) <= limit
