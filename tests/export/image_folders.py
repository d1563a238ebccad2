"""Small random models that read images first: their folders, and their answers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    Blip2Processor,
    BlipImageProcessorPil,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    InstructBlipProcessor,
    MllamaImageProcessorPil,
    MllamaProcessor,
    PaliGemmaProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
)

from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.ort.runner import OrtRunner
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from tests.export.oracle import has_source
from tests.export.twins import make_twin

NEW_TOKENS = 8
WORDS = ["<pad>", "<s>", "</s>", *(f"w{number}" for number in range(3, 61)), "<image>", "w62", "\n"]
PROMPTS = ("w9 w12", "")
KINDS = {
    "paligemma": ("paligemma", "odd", "$A"),
    "instructblip": ("instructblip", "odd", "<s> $A"),
    "instructblip over t5": ("instructblip", "flan-t5", "$A </s>"),
    "blip-2 over opt": ("blip-2", "odd", "</s> $A"),
    "blip-2 over t5": ("blip-2", "flan-t5", "$A </s>"),
    "mllama": ("mllama", "plain", "<s> $A"),
    "t5gemma2": ("t5gemma2", "untied", "<s> $A"),
}
"""Architecture, configuration, and the special tokens that the tokenizer adds."""


CONTINUES = {"instructblip", "blip-2 over opt", "mllama"}
"""Those whose caption begins with its prompt."""


def _tokenizer(layout: str, words: list[str] = WORDS, **named: str) -> PreTrainedTokenizerFast:
    """One of words."""
    ids = {word: place for place, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="w3"))
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    special = ["<pad>", "<s>", "</s>", "<image>"]
    backend.add_special_tokens([AddedToken(text) for text in special])
    used = [(word, ids[word]) for word in special if word in layout]
    backend.post_processor = processors.TemplateProcessing(single=layout, special_tokens=used)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="w3",
        extra_special_tokens=named,
    )


def write(kind: str, folder: Path) -> tuple[Any, Any]:
    """A checkpoint with all files of such a folder: processor and model."""
    name, config, layout = KINDS[kind]
    named, words = {"image_token": "<image>"} if name == "mllama" else {}, list(WORDS)
    if name == "t5gemma2":
        words[59], words[61], words[5] = "<image>", "<vector>", "<end>"
        named = {"boi_token": "<image>", "image_token": "<vector>", "eoi_token": "<end>"}
    model, tokenizer = make_twin(name, config, folder), _tokenizer(layout, words, **named)
    tokenizer.save_pretrained(folder)
    size = {"height": 16, "width": 16}
    processor: Any
    if name == "paligemma":
        recipe = SiglipImageProcessorPil(size=size)
        recipe.image_seq_length = 4
        processor = PaliGemmaProcessor(recipe, tokenizer)
    elif name == "mllama":
        recipe = MllamaImageProcessorPil(size={"height": 8, "width": 8})
        processor = MllamaProcessor(recipe, tokenizer)
    elif name == "t5gemma2":
        recipe = Gemma3ImageProcessorPil(size=size)
        processor = Gemma3Processor(recipe, tokenizer, image_seq_length=4)
    else:
        recipe, queries = BlipImageProcessorPil(size=size), model.config.num_query_tokens
        if name == "instructblip":  # its second tokenizer has the same words with other ids
            second = _tokenizer("<s> $A </s>", [*WORDS[:3], *WORDS[:2:-1]])
            second.save_pretrained(folder / "qformer_tokenizer")
            processor = InstructBlipProcessor(recipe, tokenizer, second, queries)
        else:
            processor = Blip2Processor(recipe, tokenizer, queries)
    recipe.save_pretrained(folder)
    return processor, model


def read(processor: Any, picture: bytes, prompt: str) -> Any:
    """The inputs of the model."""
    is_prefix = isinstance(processor, PaliGemmaProcessor | MllamaProcessor | Gemma3Processor)
    opened, text = Image.open(io.BytesIO(picture)), f"<image>{prompt}" if is_prefix else prompt
    inputs = processor(images=opened, text=text, return_tensors="pt")
    inputs.pop("labels", None)
    return inputs


def wanted(processor: Any, model: Any, picture: bytes, prompt: str, num_beams: int) -> str:
    """The answer without the prompt."""
    inputs = read(processor, picture, prompt)
    with torch.no_grad():
        (found,) = model.generate(
            **inputs, num_beams=num_beams, max_new_tokens=NEW_TOKENS, do_sample=False
        )
    behind = found[1:] if has_source(model.config) else found[inputs["input_ids"].shape[1] :]
    answer: str = processor.tokenizer.decode(behind, skip_special_tokens=True)
    return answer


def log_probs(model: Any, inputs: Any, ids: list[int]) -> list[float]:
    """Of `generate` where it may write these ids alone."""
    left = iter(ids)
    with torch.no_grad():
        found = model.generate(
            **inputs, num_beams=1, max_new_tokens=len(ids), do_sample=False, output_logits=True,
            return_dict_in_generate=True, prefix_allowed_tokens_fn=lambda *_: [next(left)],
        )  # fmt: skip
    assert len(found.logits) == len(ids)
    pairs = zip(found.logits, ids, strict=True)
    return [float(logits[0].log_softmax(-1)[token]) for logits, token in pairs]


def ask(
    name: str, model: LoadedModel, runner: OrtRunner, picture: bytes, new_tokens: int, **asked: Any
) -> Any:
    """What a task returns for one picture, in answers of that many tokens at most."""
    task = TASKS[name]
    request = task.declaration.request.model_validate({"images": ["beside"], **asked})
    plan = task.prepare(request, [picture], model)
    (call,) = plan.calls
    limited = model.generation.with_overrides(call.options)
    limited = limited.model_copy(update={"max_new_tokens": new_tokens, "do_sample": False})
    given = dict(call.inputs)
    if "prompt_ids" in given:
        given["prompt_ids"] = tuple(given["prompt_ids"].tolist())
    (item,) = plan.finish(decode(runner, [EngineRequest(limited, **given)])).data
    return item
