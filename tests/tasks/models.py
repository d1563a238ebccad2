"""A small model for each task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from inference.bundle.inputs import AlignmentSpec
from inference.bundle.manifest import Graph, Limits, Manifest, Role, Tensor
from inference.generation import Generation
from inference.tasks.shared.loaded_model import LoadedModel
from tests.inference.tiny_models import (
    IMAGE,
    STEP,
    WordTokenizer,
    cross_encoder,
    detector,
    image_classifier,
    image_file,
    manifest,
    mask_filler,
    passage_reader,
    picture_reader,
    segmenter,
    served,
    text_classifier,
    two_towers,
    video_classifier,
    word_labeller,
)

RED, BLUE, JUNK = image_file("red"), image_file("blue", "JPEG"), b"not a picture"
LONG = " ".join("abcdefghijklmnopqrstuvwxyz")
"""26 tokens and the end; a model takes 12."""
SHOTS = [{"input": "uno", "output": "one"}]
CHAT = {
    "template": "{{ bos_token }}{% for m in messages %} {{ m.role }} : {{ m.content }}"
    "{% endfor %}\n{% if add_generation_prompt %} assistant :{% endif %}",
    "special_tokens": {"bos_token": "<s>"},
}
SOURCE = Tensor(name="ids", dtype="int64", shape=("B", "S"), role=Role.SOURCE_TOKENS)
ENCODES = {"admit": Graph(file="admit.onnx", inputs=(SOURCE,), outputs=()), "step": STEP}
"""Graphs of an encoder-decoder."""


def words(described: Manifest, text: str = "") -> LoadedModel:
    """A model whose tokenizer has these words as its tokens from 3 on."""
    tokenizer = WordTokenizer()
    tokenizer.words += text.split(" ") if text else []
    return served(described, tokenizer)


def generator(task: str = "generate", section: Any = None, **fields: Any) -> LoadedModel:
    """A generator of the words "\\n", "one", "two", "three" (3 to 6), without beams."""
    greedy = Generation(pad_token_id=0, max_new_tokens=20, length_penalty=2.0)
    limits = Limits(max_total_tokens=16)
    given = {"generation": greedy, "limits": limits, **fields}
    return words(manifest(task, section, **given), "\n one two three")


def beams() -> LoadedModel:
    """A generator that searches with four beams by default."""
    return generator(generation=Generation(pad_token_id=0, max_new_tokens=20, num_beams=4))


def translator(**section: Any) -> LoadedModel:
    """From Spanish to English."""
    return words(manifest("translate", section or {"languages": [("es", "en")]}))


def pictures(*, attention: bool = True) -> LoadedModel:
    """A classifier of images."""
    return words(image_classifier(attention=attention))


def with_alignment(task: str, over: Literal["tokens", "patches"]) -> LoadedModel:
    """A translator or captioner that returns attention."""
    described = MODELS[task]().manifest
    return words(described.model_copy(update={"alignment": AlignmentSpec(over=over)}), "picture")


def with_part(model: LoadedModel, name: str, **update: Any) -> LoadedModel:
    """A model whose graph has other fields."""
    graphs = model.manifest.graphs
    graphs = {**graphs, name: graphs[name].model_copy(update=update)}
    return replace(model, manifest=model.manifest.model_copy(update={"graphs": graphs}))


def prompted(**section: Any) -> LoadedModel:
    """Two towers with this section of `embed`."""
    return words(two_towers().model_copy(update={"tasks": {"embed": section}}))


STARTED = Generation(
    pad_token_id=0, max_new_tokens=5, eos_token_ids=(1,), num_beams=2, decoder_start_ids=(2,)
)
BOTH = Limits(max_input_tokens=12, max_total_tokens=16)
MODELS: dict[str, Callable[[], LoadedModel]] = {
    "translate": translator,
    "caption": lambda: words(
        manifest("caption", image=IMAGE, limits=Limits(max_total_tokens=16)), "picture"
    ),
    "zero-shot": lambda: words(two_towers()),
    "zero-shot videos": lambda: words(video_classifier()),
    "embed": lambda: words(two_towers()),
    "generate": generator,
    "chat": lambda: generator("chat", CHAT),
    "score": lambda: generator(graphs=ENCODES, generation=STARTED, limits=BOTH),
    "classify": lambda: words(text_classifier()),
    "classify images": pictures,
    "classify images with texts": lambda: words(picture_reader()),
    "tag": lambda: words(word_labeller(), "ib ob o ba ia bb"),
    "fill-mask": lambda: words(mask_filler(), "? red green blue white black"),
    "rerank": lambda: words(cross_encoder()),
    "answer": lambda: words(passage_reader(), "q a b c d e f g"),
    "detect": lambda: words(detector()),
    "segment": lambda: words(segmenter()),
}
"""By task; labels of `tag` are a token's number modulo 5, and token 3 is the mask."""
