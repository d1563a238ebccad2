"""Requests that are refused: the field that is wrong, its value, the error.

The fields of a row take the place of those of `GOOD`; `...` leaves a field out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inference.errors import (
    InvalidRequest,
    PayloadTooLarge,
    ServingError,
    TooLong,
    UnknownModel,
    UnsupportedImage,
)
from inference.tasks.shared.loaded_model import LoadedModel
from tests.inference.processing.test_image import png_header
from tests.inference.tiny_models import passage_reader, served, text_classifier
from tests.tasks.models import (
    ENCODES,
    JUNK,
    LONG,
    MODELS,
    RED,
    SHOTS,
    beams,
    generator,
    pictures,
    prompted,
    with_alignment,
    with_part,
)

GOOD: dict[str, dict[str, Any]] = {
    "translate": {"texts": ["a"]},
    "caption": {"images": [RED]},
    "zero-shot": {"images": [RED], "labels": ["a"]},
    "embed": {"texts": ["a"]},
    "generate": {"prompts": ["a"]},
    "chat": {"messages": [{"role": "user", "content": "a"}]},
    "score": {"texts": ["a"], "targets": ["b"]},
    "classify": {"texts": ["a"]},
    "tag": {"texts": ["a"]},
    "fill-mask": {"texts": ["?"]},
    "rerank": {"query": ["q"], "documents": ["a"]},
    "answer": {"question": ["q"], "passages": ["a"]},
    "detect": {"images": [RED], "labels": ["a"]},
    "segment": {"images": [RED], "labels": ["a"]},
}
"""A request of each task that is served."""


@dataclass(frozen=True)
class Refusal:
    """A row.

    Attributes:
        given: Fields of the request.
        field: Name of the field that is wrong.
        says: A part of the message, as a regular expression.
        kind: Type of the error.
        model: What serves the request, where it is not the task's own.
        settings: Of the gateway.
    """

    task: str
    given: Mapping[str, Any]
    field: str | None
    says: str = ""
    kind: type[ServingError] = InvalidRequest
    model: Callable[[], LoadedModel] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the whole request."""
        whole = {**GOOD[self.task], **self.given}
        return {name: value for name, value in whole.items() if value is not ...}

    def served(self) -> LoadedModel:
        """The model that refuses it."""
        return (self.model or MODELS[self.task])()


PAIR = [{"first": "a", "second": "b"}]
BLANK = ("", " ", "\n\t", "\u200b", "\ufeff\n\x00 ")
ROOM = {"max_input_tokens": 30}

# fmt: off
_ROWS: dict[str, list[tuple[Any, ...]]] = {
    "translate": [
        ({"texts": ...}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a"] * 33}, "texts", "texts holds 33 items, at most 32"),
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 17}, "num_beams", "16.*17"),
        ({"model": "tiny"}, "model", "no such model; served are: tiny-translate", UnknownModel),
        ({"texts": [""]}, "texts.0", "texts.0 is empty"),
        ({"texts": ["a " * 50], "divide_long_sentences": False}, "texts.0", "at most 12", TooLong),
        ({"texts": ["uno. " + "dos " * 13], "divide_long_sentences": False}, "texts.0",
         r"texts.0 \(sentence 2\) has 14 tokens.* at most 12", TooLong),
        ({"texts": ["dos. " * 20]}, "texts.0",
         r"more than 30 tokens \(32 in its first 16 of 20 sentences", TooLong, None, ROOM),
        ({"texts": ["x" * 10_000]}, "texts.0", "has 10000 characters, at most 30 tokens", TooLong,
         None, ROOM),
        ({"texts": ["a " * 12, ""], "divide_long_sentences": False}, "texts.0", "", TooLong),
        ({"texts": ["", "a " * 12], "divide_long_sentences": False}, "texts.0", "texts.0 is empty"),
        ({"alternatives": 3, "num_beams": 2}, "n", "n is 3, but num_beams is 2"),
        ({"num_beams": 1, "alternatives": 2}, "n"),
        ({"return_attention": True}, "return_attention",
         "tiny-translate does not return attention"),
        *(({"texts": [text]}, "texts.0", "texts.0 is empty") for text in BLANK),
        ({"texts": ["a " * 12], "divide_long_sentences": False}, "texts.0",
         r"^texts.0 \(sentence 1\) has 13 tokens, tiny-translate takes at most 12: shorten it$",
         TooLong),
        ({"texts": ["a " * 100], "divide_long_sentences": False}, "texts.0", "101 tokens", TooLong),
        ({"texts": ["palabra " * 10_000], "divide_long_sentences": False}, "texts.0",
         "79999 characters.*at most 12", TooLong),
        ({"stream": True, "num_beams": 2}, "num_beams", "cannot stream"),
        ({"stream": True, "n": 2}, "n", "cannot stream"),
        ({"stream": True, "texts": [""]}, "texts.0"),
        ({"stream": True, "num_beams": 1, "return_attention": True}, "return_attention", "stream"),
        ({"length_penalty": 11.0}, "length_penalty"),
        ({"length_penalty": -10.5}, "length_penalty"),
        ({"texts": ["uno dos tres. " * 300], "return_attention": True}, "return_attention",
         "1200 tokens, at most 1024", InvalidRequest,
         lambda: with_alignment("translate", "tokens")),
        ({"stream": True, "num_beams": 1, "return_attention": True}, "return_attention",
         "stream does not carry return_attention", InvalidRequest,
         lambda: with_alignment("translate", "tokens")),
    ],
    "caption": [
        ({"images": []}, "images"),
        ({"images": ...}, "images"),
        ({"images": [RED] * 33}, "images", "images holds 33 items, at most 32"),
        ({"images": [b""]}, "images.0", "", UnsupportedImage),
        ({"images": [JUNK]}, "images.0", "", UnsupportedImage),
        ({"prompt": "a " * 16}, "prompt", "prompt has 16 tokens, tiny-caption takes at most 15",
         TooLong),
        ({"return_attention": True}, "return_attention", "tiny-caption does not return attention"),
        ({"num_beams": 2, "top_p": 0.5}, "num_beams"),
        ({"num_beams": 2, "n": 3}, "n"),
        ({"best_of": 2, "temperature": 0.0}, "best_of"),
        ({"images": [b"", b"x"]}, "images.0", "", UnsupportedImage),
        ({"images": [JUNK], "stream": True, "num_beams": 1}, "images.0", "", UnsupportedImage),
        ({"stream": True, "num_beams": 2}, "num_beams"),
        ({"stream": True, "n": 2}, "n"),
        ({"stream": True, "alternatives": 2}, "n"),
        ({"stream": True, "best_of": 2}, "best_of"),
        ({"stream": True, "return_attention": True}, "return_attention"),
        ({"return_attention": True}, "return_attention", "does not return attention",
         InvalidRequest, lambda: with_alignment("caption", "tokens")),
    ],
    "zero-shot": [
        ({"labels": []}, "labels"),
        ({"labels": ["a"] * 1001}, "labels"),
        ({"labels": ["a", "\u200b"]}, "labels.1", "labels.1 is empty"),
        ({"labels": ["a", ""]}, "labels.1", "labels.1 is empty"),
        ({"templates": ["a {}", "x"]}, "templates.1", r"templates.1 has no \{\}"),
        ({"images": [b""]}, "images.0", "", UnsupportedImage),
        ({"images": [JUNK]}, "images.0", "", UnsupportedImage),
        ({"labels": ["very " * 11 + "red"]}, "labels.0",
         "labels.0 in its template has 17 tokens, .* at most 12", TooLong),
        ({"labels": ["red", "  "]}, "labels.1", "labels.1 is empty"),
        ({"images": [RED, JUNK], "frame_counts": [2]}, "images.1", "", UnsupportedImage),
        ({"images": [RED] * 3, "frame_counts": [2, 2]}, "frame_counts",
         "frame_counts adds up to 4, images holds 3"),
        ({"images": [RED] * 33, "frame_counts": [33]}, "images", "images holds 33 items"),
        ({"frame_counts": [1, 0]}, "frame_counts.1"),
        ({"images": [], "frame_counts": [1]}, "images"),
    ],
    "generate": [
        ({"prompts": []}, "prompts"),
        ({"prompts": ["a"] * 33}, "prompts"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": 10**9}, "top_k"),
        ({"n": 17}, "n"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["x" * 257]}, "stop.0"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {1: 1e9}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"examples": SHOTS * 101}, "examples"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"prompts": ["x " * 16]}, "prompts.0", "", TooLong),
        ({"prompts": ["x " * 50]}, "prompts.0", "", TooLong),
        ({"prompts": ["x " * 31]}, "prompts.0", "", TooLong, None, ROOM),
        ({"prompts": ["x" * 4000]}, "prompts.0", "", TooLong),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"prompts": ["a\nb"], "examples": SHOTS}, "prompts.0"),
        ({"prompts": [" "], "instruction": "Do:"}, "prompts.0"),
        ({"examples": [{"input": "", "output": "x"}]}, "examples.0.input"),
        ({"prompts": ["one"], "echo": True}, "echo", "encoder", InvalidRequest,
         lambda: generator(graphs=ENCODES)),
        ({"prompts": [""], "instruction": ""}, "prompts.0", "prompts.0 is empty", InvalidRequest,
         lambda: generator(graphs=ENCODES)),
        ({"prompts": [""], "instruction": "sum up:"}, "prompts.0", "prompts.0 is empty",
         InvalidRequest, lambda: generator(graphs=ENCODES)),
        ({"prompts": [" "], "instruction": ""}, "prompts.0", "prompts.0 is empty", InvalidRequest,
         lambda: generator(graphs=ENCODES)),
        ({"prompts": [" "], "instruction": "sum up:"}, "prompts.0", "prompts.0 is empty",
         InvalidRequest, lambda: generator(graphs=ENCODES)),
        ({"prompts": ["\u200b"], "instruction": ""}, "prompts.0", "prompts.0 is empty",
         InvalidRequest, lambda: generator(graphs=ENCODES)),
        ({"prompts": ["\u200b"], "instruction": "sum up:"}, "prompts.0", "prompts.0 is empty",
         InvalidRequest, lambda: generator(graphs=ENCODES)),
        ({"echo": True, "logprobs": 1}, "echo", "does not score them", InvalidRequest,
         lambda: with_part(generator(), "step", whole_prompts=True)),
        ({"regex": "a", "stop": ["b"]}, "stop"),
        ({"regex": "a", "num_beams": 2}, "num_beams"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": "[" * 60_000}, "json_schema"),
        ({"regex": "a", "choices": ["b"]}, None),
        ({"regex": "a" * 4097}, "regex"),
        ({"json_schema": "1" * 65_537}, "json_schema"),
        ({"choices": [""]}, "choices.0"),
        ({"choices": ["a"] * 1001}, "choices"),
        ({"stream": True, "prompts": []}, "prompts"),
        ({"stream": True, "n": 2}, "n", "a stream carries one output"),
        ({"stream": True, "best_of": 2}, "best_of", "a stream carries one output"),
        ({"stream": True, "num_beams": 2}, "num_beams", "set num_beams to 1"),
        ({"stream": True, "seed": -1}, "seed"),
        ({"stream": True, "stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stream": True, "prompts": ["a " * 50]}, "prompts.0", "", TooLong),
        ({"stream": True, "echo": True}, "echo", "stream"),
        ({"examples": [{"input": "a"}]}, "examples.0.output"),
        ({"logit_bias": {100: 1.0}}, "logit_bias", "token 100, .* 0 to 99", InvalidRequest,
         lambda: generator(vocabulary_size=100)),
        ({"temperature": 0.0, "n": 2}, "n", "n is 2, but num_beams is 1"),
        ({"num_beams": 2, "n": 3}, "n", "n is 3, but num_beams is 2"),
        ({"num_beams": 2, "top_p": 0.5}, "num_beams", "top_p samples"),
        ({"best_of": 2, "n": 3}, "n", "n is 3, but best_of is 2"),
        ({"best_of": 2, "temperature": 0.0}, "best_of", "temperature is 0"),
        ({"n": 6}, "n", "n is 6, at most 5", InvalidRequest, None, {"max_best_of": 5}),
        ({"best_of": 6}, "best_of", "best_of is 6, at most 5", InvalidRequest, None,
         {"max_best_of": 5}),
        ({"stop": ["a", "b", "c"]}, "stop", "stop holds 3 strings, at most 2", InvalidRequest, None,
         {"max_stop_sequences": 2}),
        ({"stream": True, "n": 2}, "n", "a stream carries one output", InvalidRequest, beams),
        ({"regex": "a", "stop": ["b"]}, "stop", "", InvalidRequest, beams),
        ({"regex": "a", "num_beams": 2}, "num_beams", "", InvalidRequest, beams),
        ({"json_schema": "{"}, "json_schema", "", InvalidRequest, beams),
        ({"json_schema": "[" * 60_000}, "json_schema", "", InvalidRequest, beams),
    ],
    "embed": [
        ({"texts": ["a"] * 33}, "texts", "texts holds 33 items"),
        ({"texts": [" "]}, "texts.0", "texts.0 is empty"),
        ({"texts": ..., "images": [JUNK]}, "images.0", "", UnsupportedImage),
        ({"texts": [LONG]}, "texts.0", "", TooLong),
        ({"texts": ...}, None, "either texts or images"),
        ({"images": [RED]}, None, "either texts or images"),
        ({"normalize": False}, "normalize", "unit length"),
        ({"prompt": "a", "prompt_name": "b"}, None, "prompt"),
        ({"texts": ..., "images": [RED], "prompt": "a"}, None, "prompt"),
        ({"prompt_name": "title"}, "prompt_name", "it has: none"),
        ({"prompt_name": "title"}, "prompt_name", "it has: query, passage", InvalidRequest,
         lambda: prompted(prompts={"query": "q: ", "passage": "p: "})),
        ({"texts": ..., "images": [RED], "truncate": True}, None, "truncate is for texts"),
        ({"frame_counts": [1]}, None, "frame_counts is for images"),
        ({"texts": ..., "images": [RED], "frame_counts": [1], "normalize": False}, None,
         "averages of frames have unit length"),
        ({"model": "tiny-translate"}, "model", "", UnknownModel),
    ],
    "classify": [
        ({"texts": ..., "pairs": PAIR * 33}, "pairs", "holds 33"),
        ({"top_k": 0}, "top_k"),
        ({"stride": -1}, "stride"),
        ({"texts": [" \n"]}, "texts.0", "texts.0 is empty"),
        ({"texts": [LONG]}, "texts.0", "27 tokens, tiny-classify takes at most 12", TooLong),
        ({"texts": [f"{LONG} {LONG}"], "stride": 3}, "texts.0", "53 tokens", TooLong, None, ROOM),
        ({"texts": ...}, None, "give one of texts, pairs and images"),
        ({"images": [RED], "pairs": PAIR, "texts": ...}, None, "give one of texts, pairs and"),
        ({"pairs": PAIR}, None, "give one of texts, pairs and images, or images with texts"),
        ({"images": [RED]}, "images",
         "tiny-classify cannot classify images with texts, only texts, pairs"),
        *(({"texts": ..., **given}, *named, InvalidRequest, MODELS["classify images with texts"])
          for given, *named in (
              ({"texts": ["a"]}, "texts", "cannot classify texts, only images with texts"),
              ({"images": [RED]}, "images", "cannot classify images, only images with texts"),
              ({"texts": ["a"] * 3, "images": [RED] * 2}, "images", "images holds 2 for 3 items"),
              ({"texts": ["a"] * 2, "images": [RED] * 3}, "texts", "texts holds 2 for 3 items"),
              ({"texts": ["a"] * 33, "images": [RED]}, "texts", "holds 33"),
              ({"texts": ["a"], "images": [RED] * 33}, "images", "holds 33"),
              ({"texts": ["a"], "images": [RED], "stride": 1}, "stride", "texts alone"),
              ({"texts": ["a"], "images": [RED], "return_attention": True}, "return_attention",
               "returns no attention"))),
        ({"texts": [LONG], "images": [RED]}, "texts.0", "27 tokens, tiny-classify takes at most 12",
         TooLong, MODELS["classify images with texts"]),
        ({"return_attention": True}, "return_attention"),
        ({"texts": ..., "pairs": PAIR, "stride": 1}, "stride"),
        ({"texts": ..., "pairs": PAIR}, "pairs",
         "tiny-classify cannot classify pairs", InvalidRequest,
         lambda: served(text_classifier(pairs="none"))),
        ({"texts": ..., "images": [RED]}, "images", "tiny-classify cannot classify images"),
        ({"texts": ..., "images": [RED], "return_attention": True}, "return_attention",
         "tiny-classify returns no attention", InvalidRequest,
         lambda: pictures(attention=False)),
        ({"truncate": True, "stride": 2}, None, "either truncate or stride"),
        ({}, "texts", "tiny-classify cannot classify texts", InvalidRequest, pictures),
        ({"texts": ..., "images": [RED], "truncate": True}, "truncate", "truncate is for texts",
         InvalidRequest, pictures),
    ],
    "tag": [
        ({"texts": ["a"] * 33}, "texts", "holds 33"),
        ({"aggregation": "last"}, "aggregation"),
        ({"texts": ["ba " * 60], "stride": 2}, "texts.0", "61 tokens", TooLong, None,
         {"max_input_tokens": 60}),
        ({"texts": ["ba " * 20], "stride": 11}, "stride", "a window has 11 tokens"),
        ({"truncate": True, "stride": 2}, None, "either truncate or stride"),
    ],
    "rerank": [
        ({"query": ["q"] * 33}, "query", "query holds 33 items"),
        ({"query": ["q"] * 2, "documents": ["a"] * 501}, "documents",
         "are 1002 pairs, at most 1000"),
        ({"query": [" "]}, "query.0", "query.0 is empty"),
        ({"documents": [LONG]}, "documents.0", "", TooLong),
        ({"query": ["q" * 50_000], "documents": ["a"] * 100, "truncate": True}, "documents",
         "have 5000100 characters, at most 5000000"),
    ],
    "answer": [
        ({"question": ["q"] * 33}, "question", "question holds 33 items"),
        ({"question": ..., "passages": ["a"]}, "question"),
        ({"question": [" "]}, "question.0", "question.0 is empty"),
        ({"passages": ...}, "passages"),
        ({"passages": []}, "passages"),
        ({"passages": ["a"] * 101}, "passages"),
        ({"passages": ["a", "\u200b"]}, "passages.1", "passages.1 is empty"),
        ({"question": [LONG]}, "question.0", "27 tokens, tiny-answer takes at most 12", TooLong),
        ({"question": ["a " * 7], "passages": ["b " * 9]}, "question.0",
         "question.0 has 7 tokens, which leaves 3 of a window's 12", TooLong),
        ({"question": ["a " * 11]}, "question.0", "leaves 0 of a window's 12", TooLong),
        ({"passages": ["b " * 30]}, "passages.0", "33 tokens, the gateway takes at most 30",
         TooLong, None, ROOM),
        ({"question": ["q" * 50_000], "passages": ["a"] * 101}, "passages"),
        ({"max_window_tokens": 13}, "max_window_tokens", "is 13, tiny-answer takes at most 12"),
        ({"max_window_tokens": 0}, "max_window_tokens"),
        ({"max_answer_tokens": 0}, "max_answer_tokens"),
        ({"max_answer_tokens": 129}, "max_answer_tokens"),
        ({"stride": -1}, "stride"),
        ({"question": ["q a"], "stride": 8, "passages": ["b " * 10]}, "question.0",
         "windows share 8", TooLong),
        ({"n": 0}, "n"),
        ({"n": 21}, "n"),
        ({"null_threshold": 101.0}, "null_threshold"),
        ({"null_threshold": 0.0}, "null_threshold", "tiny-answer has no null answer",
         InvalidRequest, lambda: served(passage_reader(null_token_id=None))),
    ],
    "segment": [
        ({"images": [RED] * 5, "labels": [f"t{n}" for n in range(64)]}, "images",
         "5 images with 64 labels are more than 256 masks"),
        ({"labels": ["a", " \ufeff"]}, "labels.1", "labels.1 is empty"),
        ({"images": [JUNK]}, "images.0", "", UnsupportedImage),
    ],
    "detect": [
        ({"labels": ["a", " \ufeff"]}, "labels.1", "labels.1 is empty"),
        ({"images": [b""]}, "images.0", "", UnsupportedImage),
        ({"labels": ...}, "labels", "tiny-detect finds things by their labels: give some"),
    ],
    "fill-mask": [
        ({"texts": ["red"]}, "texts.0", "texts.0 has no mask: tiny-fill-mask fills ?"),
        ({"targets": ["red", "red green"]}, "targets.1", "targets.1 is not one token"),
        ({"targets": ["red", ""]}, "targets.1", "targets.1 is not one token"),
        ({"targets": ["x" * 101]}, "targets.0", "targets.0 is not one token"),
        ({"texts": ["? " * 12]}, "texts.0", "", TooLong),
        ({"top_k": 7}, "top_k", "top_k is 7, tiny-fill-mask returns at most 6"),
        ({"texts": ["? " * 11] * 20, "targets": list("abcdefghijklm")},
         "texts", "220 masks with 13 tokens each, at most 2000"),
    ],
    "chat": [
        ({"messages": [{"role": "user", "content": "a " * 14}]}, "messages",
         "messages have 19 tokens", TooLong),
        ({"messages": [{"role": "user", "content": "a" * 1601}]}, "messages",
         "more than 1600 characters"),
        ({"regex": "a", "choices": ["b"]}, None),
        ({"regex": "a" * 4097}, "regex"),
        ({"json_schema": "1" * 65_537}, "json_schema"),
        ({"choices": [""]}, "choices.0"),
        ({"choices": ["a"] * 1001}, "choices"),
        ({}, "messages", "empty in the model's chat template", InvalidRequest,
         lambda: generator("chat", {"template": "{# nothing #}"})),
    ],
    "score": [
        ({"texts": [" "]}, "texts.0", "texts.0 is empty"),
        ({"texts": ["\u200b"]}, "texts.0", "texts.0 is empty"),
        ({"texts": ["a " * 20]}, "texts.0", "texts.0 has 21 tokens", TooLong),
        ({"texts": ["a", "b"], "targets": ["a", "b", "c"]}, "texts", "texts holds 2 for 3 targets"),
    ],
}
# fmt: on
for _task in ("caption", "zero-shot"):
    _ROWS[_task] += [
        ({"images": [RED[:50]]}, "images.0", "", UnsupportedImage),
        ({"images": [b"%!PS-Adobe-3.0 EPSF-3.0"]}, "images.0", "", UnsupportedImage),
        ({"images": [png_header(20_000, 20_000)]}, "images.0", "", PayloadTooLarge),
    ]
REFUSALS = [Refusal(task, *row) for task, rows in _ROWS.items() for row in rows]

# fmt: off
UNTYPED: list[tuple[str, dict[str, Any], str]] = [
    ("translate", {"texts": 7}, "texts"),
    ("translate", {"texts": ["a", 7]}, "texts.1"),
    ("translate", {"texts": [None]}, "texts.0"),
    ("translate", {"num_beams": "4"}, "num_beams"),
    ("translate", {"num_beams": 1.5}, "num_beams"),
    ("translate", {"num_beams": 10**30}, "num_beams"),
    ("translate", {"tempo": 1}, "tempo"),
    ("translate", {"model": 3}, "model"),
    ("generate", {"temperature": "1"}, "temperature"),
    ("generate", {"seed": 2**63}, "seed"),
    ("generate", {"priority": 1}, "priority"),
    ("generate", {"stream": "yes"}, "stream"),
    ("generate", {"examples": [{"input": "a", "output": "b", "x": 1}]}, "examples.0.x"),
    ("generate", {"logit_bias": {"hunter2": 1}}, "logit_bias"),
    ("embed", {"normalise": True}, "normalise"),
    ("classify", {"texts": ..., "pairs": [["a"]]}, "pairs.0"),
    ("classify", {"texts": ..., "pairs": [["a", "b", "c"]]}, "pairs.0"),
    ("classify", {"texts": ..., "pairs": ["ab"]}, "pairs.0"),
    ("classify", {"texts": ..., "pairs": [["a", 1]]}, "pairs.0.second"),
]
"""Values that no protobuf message can hold, and the field that JSON names."""
# fmt: on
