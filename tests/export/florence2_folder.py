"""A small random Florence-2 with all files of such a folder, and `transformers`' answers of it."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import CLIPImageProcessorPil, Florence2Processor, PreTrainedTokenizerFast

from tests.export.twins import bart, make_twin

Labelled = tuple[str, tuple[float, ...]]
"""A label, and corners in pixels."""

NEW_TOKENS = 40
LOCATIONS = 700
"""Of the thousand, as many as the vocabulary holds: most random tokens are locations."""
CONTROL = ("<s>", "<pad>", "</s>", "<unk>")
LETTERS = "\u0120" + "".join(sorted(set(map(chr, range(33, 127))) - {"<", ">"}))
"""A space, and what else is printable; a label has no part of a token's text."""
BYTES = "".join(sorted(pre_tokenizers.ByteLevel.alphabet()))
HEIGHT, WIDTH = 20, 28
BANNED = ["it", "the image"]
"""Phrases that grounding leaves out."""
RULES = {
    "num_beams": 3,
    "no_repeat_ngram_size": 3,
    "early_stopping": True,
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 2,
}
"""What published checkpoints have in `generation_config.json`."""


def tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """Characters of GPT-2's bytes, and the tokens of boxes and polygons behind them."""
    ids = {text: number for number, text in enumerate(CONTROL)}
    ids |= {character: len(ids) + place for place, character in enumerate(characters)}
    backend = Tokenizer(models.BPE(ids, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    written = [f"<loc_{number}>" for number in range(LOCATIONS)]
    added = (*CONTROL, *written, "<poly>", "</poly>", "<sep>", "<image>")
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in added])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        extra_special_tokens={"image_token": "<image>"},
        **{f"{name}_token": text for name, text in names.items()},
    )


def processor_of(tokens: PreTrainedTokenizerFast, count: int) -> Florence2Processor:
    """Of images with that many vectors."""
    recipe = CLIPImageProcessorPil(
        size={"height": HEIGHT, "width": WIDTH},
        do_center_crop=False,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    recipe.image_seq_length = count
    kinds = ("ocr", "pure_text", "description_with_bboxes", "polygons", "bboxes")
    rules: dict[str, Any] = {kind: {} for kind in kinds}
    rules["phrase_grounding"] = {"banned_grounding_tokens": BANNED}
    return Florence2Processor(recipe, tokens, post_processor_config=rules)


def write(folder: Path, **rules: Any) -> tuple[Florence2Processor, Any]:
    """Saves a checkpoint: its processor and its model.

    Args:
        rules: Of generation, beside `RULES`.
    """
    tokens = tokenizer(LETTERS)
    sizes = {"vocab_size": len(tokens), "max_position_embeddings": 128, "model_type": "bart"}
    text = {**bart.ODD, **sizes, "pad_token_id": 1, "bos_token_id": 0}
    changes = {"text_config": text, "image_token_id": tokens.convert_tokens_to_ids("<image>")}
    model = make_twin("florence2", "odd", folder, changes)
    model.generation_config.update(**RULES, **rules)
    model.generation_config.save_pretrained(folder)
    made = processor_of(tokens, 13)
    made.save_pretrained(folder)
    return made, model


def wanted(
    processor: Florence2Processor, model: Any, picture: bytes, prompt: str, **rules: Any
) -> str:
    """The answer with its locations, without the tokens that begin and end it."""
    inputs = processor(images=Image.open(io.BytesIO(picture)), text=prompt, return_tensors="pt")
    with torch.no_grad():
        (found,) = model.generate(**inputs, max_new_tokens=NEW_TOKENS, **rules)
    answer: str = processor.tokenizer.decode(found, skip_special_tokens=False)
    for text in CONTROL:
        answer = answer.replace(text, "")
    return answer


def read_boxes(
    processor: Florence2Processor, text: str, task: str, size: tuple[int, int]
) -> list[Labelled]:
    """What `transformers` reads of an answer, without the ends of tokens in front of labels."""
    read = processor.post_process_generation(text=text, task=task, image_size=size)[task]
    labels = [re.sub(r"^/?[a-z]+(_\d+)?>", "", label).strip() for label in read["labels"]]
    return list(zip(labels, map(tuple, read["bboxes"]), strict=True))
