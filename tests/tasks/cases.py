"""Requests that are answered: fields, what the model is sent, what it returns, the response.

The fields of a row take the place of those of `GOOD`. What a model returns without `outputs` is
`FakeInference`'s: a generator repeats its input, or "picture" for an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from inference.bundle.manifest import Role
from inference.errors import DeadlineExceeded, Overloaded, ServingError
from inference.generation import Finished
from inference.tasks.shared.loaded_model import LoadedModel
from tests.inference.tiny_models import cross_encoder, finished, manifest, text_classifier
from tests.tasks.models import (
    BLUE,
    ENCODES,
    JUNK,
    LONG,
    MODELS,
    RED,
    SHOTS,
    STARTED,
    generator,
    prompted,
    translator,
    with_alignment,
    words,
)
from tests.tasks.refusals import GOOD

Model = Callable[[], LoadedModel]


@dataclass(frozen=True)
class Case:
    """A row.

    Attributes:
        given: Fields of the request; `...` leaves one out.
        data: A part of each item of the response.
        usage: Tokens of the prompts and of the completions.
        sent: A part of each call of a model: its inputs, options, and `text`, the tokens decoded.
        outputs: Results of a generator, call by call.
        model: What serves the request, where it is not the task's own.
        settings: Of the gateway.
    """

    given: Mapping[str, Any]
    data: Sequence[Mapping[str, Any]] | None = None
    usage: tuple[Any, Any] | None = None
    sent: Sequence[Mapping[str, Any]] | None = None
    outputs: Sequence[Finished | ServingError] = ()
    model: Model | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    task: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the whole request."""
        whole = {**GOOD[self.task], **self.given}
        return {name: value for name, value in whole.items() if value is not ...}

    def served(self) -> LoadedModel:
        """The model that answers it."""
        return (self.model or MODELS[self.task])()


def softmax(*logits: float) -> list[float]:
    """Probabilities of logits."""
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def texts(*values: str) -> list[dict[str, str]]:
    """Items with these texts."""
    return [{"text": value} for value in values]


def labels(*names: str, scores: Sequence[float] | None = None) -> dict[str, Any]:
    """An item with these labels."""
    known = scores or [...] * len(names)
    return {"labels": [{"label": n, "score": s} for n, s in zip(names, known, strict=True)]}


def tokens(*found: tuple[str, int, int, str]) -> dict[str, Any]:
    """An item with these tokens."""
    names = ("text", "start", "end", "label")
    return {"tokens": [dict(zip(names, one, strict=True)) for one in found]}


def ranks(*found: tuple[int, float | None]) -> dict[str, Any]:
    """An item with these documents and scores."""
    return {"results": [{"index": index, "score": score} for index, score in found]}


def found(*spans: tuple[int | None, int, int]) -> dict[str, Any]:
    """An item with answers in these passages, from one character to another."""
    names = ("passage", "start", "end")
    return {"answers": [dict(zip(names, one, strict=True)) for one in spans]}


def failed(kind: str, name: str | None = None) -> dict[str, Any]:
    """An item that failed."""
    return {"text": None, "error": {"type": kind, "field": name}}


def masks(*texts_of: Sequence[str]) -> dict[str, Any]:
    """An item whose masks are filled to these texts."""
    return {"masks": [[{"text": text} for text in one] for one in texts_of]}


POLYGLOT = {
    "codes": {"eng_Latn": 70, "fra_Latn": 80}, "place": "before",
    "aliases": {"en": ["eng_Latn"], "fr": ["fra_Latn"]},
}  # fmt: skip
PREFIXES = {
    "languages": [["en", "de"], ["en", "fr"]],
    "prefixes": {"en-de": "to German: ", "en-fr": "to French: "},
}
PROMPTS = {"prompts": {"query": "q: ", "passage": "p: "}}
TOP = (((5, -0.5),), ((5, -0.5),))


def polyglot() -> LoadedModel:
    """A translator of many languages, whose tokens name the pair."""
    spec = manifest("translate").tokenizer.model_copy(update={"eos_token_id": 1})
    return words(manifest("translate", {"tokens": POLYGLOT}, tokenizer=spec))


def multilingual() -> LoadedModel:
    """A translator whose texts begin with the target language."""
    prefixes = {"target_prefixes": (">>en<<", ">>fr<<")}
    spec = manifest("translate").tokenizer.model_copy(update=prefixes)
    return words(manifest("translate", tokenizer=spec))


# fmt: off
_CASES: dict[str, list[Case]] = {
    "translate": [
        Case({"texts": ["  uno dos.  tres\n\n\tcuatro\n", "cinco"]},
             [{"index": 0, "text": "  uno dos.  tres\n\n\tcuatro\n", "score": -1.5, "error": None},
              {"index": 1, "text": "cinco", "score": -0.5}], (9, 9),
             [{"model": "tiny-translate", "version": 3, "text": "uno dos.",
               "inputs": ["source_ids"]},
              {"text": "tres"}, {"text": "cuatro"},
              {"text": "cinco", "source_ids": ..., "num_beams": 2}]),
        Case({"texts": ["a b. c d"], "alternatives": 3}, [{"alternatives": [
            {"text": "a b. c d", "score": -1.0}, {"text": "b. a d c", "score": -3.0},
            {"text": "b. a d c", "score": -5.0}]}],
             sent=[{"num_return_sequences": 3, "num_beams": 3}] * 2,
             outputs=[finished(([3, 4, 1], [4, 3, 1], [4, 3, 1]), (-0.5, -1.5, -2.5)),
                      finished(([5, 6, 1], [6, 5, 1], [6, 5, 1]), (-0.5, -1.5, -2.5))],
             model=lambda: words(translator().manifest, "a b. c d")),
        Case({"alternatives": 2}, sent=[{"num_beams": 2}]),
        Case({"num_beams": 1}, sent=[{"num_beams": 1}]),
        Case({"num_beams": 4, "alternatives": 3, "length_penalty": 0.5},
             [{"alternatives": [..., ..., ...]}],
             sent=[{"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.5,
                    "forced_bos_token_id": None}]),
        Case({"texts": ["uno dos. tres"], "max_new_tokens": 3}, sent=[{"max_new_tokens": 3}] * 2),
        Case({"texts": ["uno. dos", "tres"]},
             [{"finish_reason": "length"}, {"finish_reason": "stop"}],
             outputs=[finished(([3],), (-1.0,), (reason,)) for reason in ("stop", "length",
               "stop")],
             model=lambda: words(translator().manifest, "uno")),
        Case({"texts": ["uno. dos", "tres"]}, [failed("overloaded"), {"text": "uno"}],
             outputs=[finished(([3],), (-1.0,)), Overloaded("full"), finished(([3],), (-1.0,))],
             model=lambda: words(translator().manifest, "uno")),
        Case({"texts": ["uno. dos"], "target": "fr"}, model=multilingual,
             sent=[{"text": ">>fr<< uno."}, {"text": ">>fr<< dos"}]),
        Case({"texts": [">>en<< uno. dos"]}, model=multilingual,
             sent=[{"text": ">>en<< uno."}, {"text": ">>en<< dos"}]),
        Case({"texts": ["uno. dos"], "target": "de"},
             model=lambda: words(manifest("translate", PREFIXES)),
             sent=[{"text": "to German: uno."}, {"text": "to German: dos"}]),
        Case({"texts": ["uno. dos"], "source": "en", "target": "fra_Latn"}, model=polyglot,
             sent=[{"source_ids": [70, number, 1], "forced_bos_token_id": 80} for number in (3, 4)],
             outputs=[finished(([3, 1],), (-1.0,))] * 2),
        Case({"texts": ["uno dos"], "return_attention": True}, [{"alignment": {
            "source_tokens": ["uno", "dos", "</s>"], "target_tokens": ["uno", "dos", "</s>"],
            "weights": [[1 / 3] * 3] * 3}}], model=lambda: with_alignment("translate", "tokens")),
    ],
    "caption": [
        Case({"images": [RED, BLUE], "prompt": "a", "num_beams": 3},
             texts("a picture", "a picture"),
             sent=[{"pixels": (4, 4, 3), "num_beams": 3, "text": "a"}] * 2),
        Case({"prompt": "a red", "max_new_tokens": 5},
             [{"text": "a red picture", "score": -0.25, "alternatives": None}], (2, 2),
             [{"max_new_tokens": 5, "inputs": ["pixels", "prompt_ids"], "types": {"int64"}}],
             [finished(([3, 1],), (-0.25,), prompt_tokens=2)]),
        Case({"alternatives": 2},
             [{"alternatives": [{"text": "picture picture", "score": -0.5},
               {"text": "picture", "score": -0.75}]}],
             sent=[{"inputs": ["pixels"]}], outputs=[finished(([3, 3], [3]), (-0.5, -0.75))]),
        Case({"top_p": 0.9, "n": 3}, [{"text": "picture", "score": -0.5, "alternatives": [
            {"score": -0.5, "finish_reason": "length"}, {"score": -1.0}, {"score": -2.0}]}],
             sent=[{"do_sample": True}],
             outputs=[finished(([3, 3], [3], [3, 3]), (-2.0, -0.5, -1.0),
               ("stop", "length", "stop"))]),
    ],
    "generate": [
        Case({"prompts": ["a b", "c"]}, texts("a b", "c"), (5, 5),
             [{"model": "tiny-generate", "version": 3, "text": "a b", "inputs": ["prompt_ids"],
               "types": {"int64"}, "is_read_live": False},
              {"text": "c"}]),
        Case({"prompts": ["dos"], "instruction": "Translate:", "examples": SHOTS},
             sent=[{"text": "Translate: uno => one dos =>"}]),
        Case({"prompts": ["a\nb"], "instruction": " sum up: "},
             model=lambda: generator(graphs=ENCODES),
             sent=[{"text": "sum up: a b", "inputs": ["source_ids"]}]),
        Case({"prompts": ["dos"], "instruction": "To English:", "examples": SHOTS},
             model=lambda: generator(graphs=ENCODES),
             sent=[{"text": "To English: uno => one dos =>"}]),
        Case({"prompts": ["dos"], "examples": SHOTS},
             [{"text": "one two ", "finish_reason": "stop", "score": -1.5 / 3**2, "logprobs": None,
               "alternatives": None}], (..., 3),
             outputs=[finished(([4, 5, 3, 6, 1],), (-9.0,), log_probs=((-0.5,) * 5,))]),
        Case({"prompts": ["dos"], "stop": ["four", "three four"]},
             [{"text": "one two three", "finish_reason": "length", "score": -1.0}], (3, 3),
             outputs=[finished(([4, 5, 6],), (-1.0,), ("length",), 3, log_probs=((-0.5,) * 3,))]),
        Case({"prompts": ["dos"], "stop": ["two"], "logprobs": 1},
             [{"text": "one ", "score": -0.75 / 4, "logprobs": [
                 {"token": "one", "logprob": -0.5, "top": [{"token": "one"}]},
                 {"token": "two", "logprob": -0.25}]}], (2, 2),
             outputs=[finished(([4, 5, 6, 1],), (-2.75,), (), 2,
               log_probs=((-0.5, -0.25, -1.0, -1.0),),
                               top=((((4, -0.5),),) * 4,))]),
        Case({"stop": ["two"], "n": 2, "logprobs": 0}, [{"text": "one ", "alternatives": [
            {"text": "one ", "finish_reason": "stop", "score": -0.25, "logprobs": [..., ...]},
            {"text": "three", "finish_reason": "stop", "score": -2.0, "logprobs": [..., ...]}]}],
            (..., 4),
             outputs=[finished(([4, 5, 6], [6, 1]), (-1.0, -2.0), ("length", "stop"), 1,
                               log_probs=((-0.5,) * 3, (-0.1, -0.2)), top=(((),) * 3, ((),) * 2))]),
        Case({"n": 3}, [{"text": "two", "score": -1.0, "alternatives": [
            {"text": "two", "score": -1.0}, {"text": "three", "score": -1.5},
            {"text": "one", "score": -2.0}]}],
             outputs=[finished(([4], [5], [6]), (-2.0, -1.0, -1.5))]),
        Case({"prompts": ["a", "b " * 20, "c"]},
             [{"text": "one"}, failed("too_long", "prompts.1"), failed("deadline_exceeded")],
             outputs=[finished(([4],), (0.0,)), DeadlineExceeded("late")]),
        Case({"stop": ["two"], "length_penalty": 0.5}, [{"score": -3 / math.sqrt(2)}],
             outputs=[finished(([4, 5],), (-3.0,), ("length",), log_probs=((-1.0, -2.0),))]),
        Case({"prompts": ["one two"], "echo": True, "logprobs": 1},
             [{"text": "one twothree", "logprobs": [{"logprob": -0.125}, {"logprob": -0.5}],
               "prompt_logprobs": [{"token": "one", "logprob": None, "top": []},
                                   {"token": "two", "logprob": -0.25, "top": [{"token": "two"}]},
                                   {"token": "</s>", "logprob": -2.0}]}], (3, 2),
             outputs=[finished(([6, 1],), (-0.5,), (), 3, log_probs=((-0.125, -0.5),), top=(TOP,)),
                      finished(([5, 1],), (-1.0,), (), 1, log_probs=((-0.25, -2.0),), top=(TOP,))]),
        Case({"prompts": ["one two"], "echo": True},
             [{"text": "one twothree", "prompt_logprobs": None}],
             sent=[{"text": "one two"}], outputs=[finished(([6],), (-0.5,), ("length",))]),
        Case({"prompts": ["uno dos", "x " * 50], "n": 2, "logprobs": 1, "logit_bias": {3: -1.0},
              "stop": ["dos"]},
             [{"text": "uno ", "finish_reason": "stop", "score": -0.25 * 2 / 4, "alternatives":
               texts("uno ", "uno "),
               "logprobs": [{"token": "uno", "top": [{"logprob": -0.25}]}, ...]},
              failed("too_long", "prompts.1")], sent=[{"logit_bias": {3: -1.0}}]),
        Case({"regex": "a+"}, [{"is_incomplete": False}],
             sent=[{"num_beams": 1, "allows_space": False}],
             outputs=[finished(([3],), (-1.0,))], model=lambda: generator(generation=STARTED)),
        Case({"regex": "a+"}, [{"is_incomplete": True}],
             outputs=[finished(([3],), (-1.0,), ("length",))]),
        Case({}, [{"is_incomplete": None}], outputs=[finished(([3],), (-1.0,), ("length",))]),
    ],
    "chat": [
        Case({"messages": [{"role": "system", "content": "be brief"},
               {"role": "user", "content": "hi"}]},
             [{"text": "one", "finish_reason": "stop", "score": -0.5}], (9, 1),
             [{"pieces": "<s> system : be brief user : hi assistant :"}],
             [finished(([4],), (-0.5,), (), 9)]),
        Case({"temperature": 0.5, "max_new_tokens": 3, "stop": ["x"], "logprobs": 2},
             sent=[{"do_sample": True, "temperature": 0.5, "max_new_tokens": 3, "top_log_probs": 2,
                    "is_read_live": True}]),
    ],
    "score": [
        Case({"with_end": False}, sent=[{"given_ids": (3,)}],
             model=lambda: words(MODELS["score"]().manifest, "b")),
        Case({"texts": ["el gato", "un perro"], "targets": ["the cat", "a dog"]},
             sent=[{"text": "el gato", "given_ids": (3, 4, 1), "max_new_tokens": 3, "num_beams": 1,
                    "do_sample": False}, {"text": "un perro", "given_ids": (5, 6, 1)}],
             model=lambda: words(MODELS["score"]().manifest, "the cat a dog")),
        Case({"texts": ["x"], "targets": ["a b", "c", "d"], "logprobs": 2},
             [{"score": -1.5, "tokens": 2, "logprobs": [{"logprob": -1.0}, {"logprob": -0.5}]},
              {"score": None, "error": {"type": "overloaded"}}, {"score": -2.0}],
             outputs=[finished(([3, 4],), (-99.0,), log_probs=((-1.0, -0.5),), top=((),)),
                      Overloaded("full"),
                      finished(([3],), (-99.0,), log_probs=((-2.0,),), top=((),))]),
    ],
    "classify": [
        Case({"texts": ["a b c", "b"]},
             [labels("y", "x", "z", scores=softmax(4, 3, 0)),
               labels("x", "y", "z", scores=softmax(4, 2, 0))]),
        Case({"texts": ["a", "b", "a"]},
             [labels("x", "y", "z"), labels("x", "y", "z"), labels("x", "y", "z")], (4, 0),
             [{"rows": 2}]),
        *(Case({"texts": ["a b c"], **given}, [labels("y", "x", "z", scores=scores)], model=model)
          for kind, scores in (("sigmoid", [0.982, 0.9526, 0.5]), ("none", [4.0, 3.0, 0.0]))
          for given, model in (({}, lambda kind=kind: words(text_classifier(activation=kind))),
                               ({"function_to_apply": kind}, None))),
        *(Case({"top_k": count}, [labels(*"xyz"[:count])]) for count in (1, 2, 3)),
        Case({"top_k": 1000}, [labels("x", "y", "z")]),
        Case({"texts": ...,
               "pairs": [{"first": "a b", "second": "c d e"}, {"first": "c", "second": "d"}]},
             [labels("y", "z", "x", scores=(7, 4, 3)), labels("x", "y", "z", scores=(5, 4, 2))],
             (11, 0),
             model=lambda: words(text_classifier(activation="none"))),
        Case({"texts": ..., "images": [RED, b"junk", BLUE], "return_attention": True},
             [labels("red", "green", "blue") | {"attention": [[0.25] * 2] * 2},
              {"labels": None, "attention": None, "error": {"type": "unsupported_image"}},
              labels("blue", "red", "green")], model=MODELS["classify images"]),
        Case({"texts": ..., "images": [RED]}, [{"attention": None}],
             sent=[{"model": "tiny-classify"}],
             model=MODELS["classify images"]),
        Case({"texts": ["a", "a b c", ""], "images": [RED, BLUE, RED]},
             [labels("red", "green", "blue", scores=(1, 0, 0)),
              labels("blue", "red", "green", scores=(4 * 254 / 255, 0, 0)),
              {"labels": None, "error": {"field": "texts.2"}}],
             (6, 0), [{"rows": 1}, {"rows": 1}], model=MODELS["classify images with texts"]),
        Case({"texts": ["a"], "images": [RED, JUNK, BLUE]},
             [labels("red", "green", "blue"), {"error": {"field": "images.1"}},
              labels("blue", "red", "green", scores=(2 * 254 / 255, 0, 0))], (2, 0),
             model=MODELS["classify images with texts"]),
        Case({"texts": ["a", LONG], "images": [RED], "truncate": True, "top_k": 1},
             [labels("red") | {"truncated_characters": None}, {"truncated_characters": 29}],
             model=MODELS["classify images with texts"]),
    ],
    "embed": [
        Case({"texts": ..., "images": [RED]},
             [{"embedding": [256 / 65538**0.5, 1 / 65538**0.5, 1 / 65538**0.5]}]),
        Case({"texts": ..., "images": [RED, BLUE, RED], "frame_counts": [2, 1]},
             [{"embedding": [257 / 132102**0.5, 2 / 132102**0.5, 257 / 132102**0.5]},
              {"embedding": [256 / 65538**0.5, 1 / 65538**0.5, 1 / 65538**0.5]}]),
        Case({"texts": ["a", "a b"]}, [{"embedding": [4 / 33**0.5, 1 / 33**0.5, -4 / 33**0.5]}, {}],
             (5, 0)),
        Case({"texts": ["a", LONG], "truncate": True, "truncation_direction": "left"},
             [{"truncated_characters": None}, {"truncated_characters": 29}]),
        *(Case(given, sent=[{"first": first}], model=lambda: prompted(**PROMPTS))
          for given, first in (({"prompt_name": "query"}, "q:"), ({"prompt": "x "}, "x"),
            ({}, "a"))),
        *(Case(given, sent=[{"first": first}],
               model=lambda: prompted(**PROMPTS, default_prompt="query"))
          for given, first in (({}, "q:"), ({"prompt_name": "passage"}, "p:"),
                               ({"prompt": ""}, "a"))),
    ],
    "fill-mask": [
        Case({"texts": ["blue ? white"], "top_k": 3},
             [{"masks": [[{"text": "blue ? white"},
               {"token": "red", "token_id": 4, "score": 0.25, "text": "blue red white"},
               {"text": "blue green white"}]]}]),
        Case({"texts": ["? blue ?", "a"], "top_k": 2},
             [masks(["? blue ?", "red blue ?"], ["? blue ?", "? blue red"]),
              {"masks": None, "error": {"field": "texts.1"}}]),
        Case({"texts": ["?", "? a"], "targets": ["green", "white", "green"], "top_k": 5},
             [{"masks": [[{"token": "white", "score": 0.07},
               {"token": "green", "score": 0.05}]]}] * 2,
             sent=[{"choices": [[5, 7]] * 2, "returns": {Role.CHOICE_SCORES}}]),
        Case({"top_k": 6}, [masks(["?", "red", "green", "blue", "white", "black"])]),
        Case({"top_k": 100, "targets": ["red"]}, [masks(["red"])]),
    ],
    "tag": [
        Case({"texts": ["  ba  o ia 🙂"]},
             [tokens(("ba", 2, 4, "B-a"), ("ia", 8, 10, "I-a"), ("🙂", 11, 12, "I-b"))]),
        Case({"texts": ["ba"]}, [{"tokens": [{"score": math.exp(4) / (math.exp(4) + 4)}]}]),
        Case({"texts": ["ba o"], "return_outside": True},
             [tokens(("ba", 0, 2, "B-a"), ("o", 3, 4, "O"))]),
        Case({"texts": ["o o", "ba"]},
             [{"tokens": [], "error": None}, tokens(("ba", 0, 2, "B-a"))]),
        Case({"texts": ["ba ia ia o ba ba"], "aggregation": "simple"},
             [tokens(("ba ia ia", 0, 8, "a"), ("ba", 11, 13, "a"), ("ba", 14, 16, "a"))]),
        Case({"texts": ["ba ##x ##y o"], "aggregation": "first"},
             [tokens(("ba ##x ##y", 0, 10, "a"))]),
    ],
    "rerank": [
        Case({"documents": ["b", "a b", "c", "a"]}, [ranks((1, 9.0), (2, 6.0), (3, 5.0), (0, 4.0))
                                                     | {"index": 0}]),
        Case({"documents": ["b"]}, [ranks((0, 0.98201))],
             model=lambda: words(cross_encoder("sigmoid"))),
        Case({"documents": ["b", "a b", "c"], "top_n": 2, "return_documents": True},
             [{"results": [{"index": 1, "text": "a b"}, {"index": 2, "text": "c"}]}]),
        Case({"documents": ["b"]}, [{"results": [{"text": None}]}]),
        Case({"documents": ["a", "a a", " "], "top_n": 1}, [{"results": [
            {"index": 1, "error": None},
            {"index": 2, "score": None, "error": {"field": "documents.2"}}]}]),
    ],
    "answer": [
        Case({"passages": ["a b c d"]}, [{"index": 0, "answers": [
            {"text": "a b", "start": 0, "end": 3, "passage": 0,
             "score": softmax(4, 0, 1, 2, 2)[0] * softmax(1, 2, 0, 1, 2)[1]}],
             "null_score": softmax(4, 0, 1, 2, 2)[4] * softmax(1, 2, 0, 1, 2)[4]}]),
        Case({"question": ["q", "q f"], "passages": ["c", " a  b"], "n": 2},
             [found((1, 1, 5), (0, 0, 1))] * 2, (20, 0)),
        Case({"passages": ["a b c d"], "n": 3, "max_answer_tokens": 1},
             [found((0, 0, 1), (0, 6, 7), (0, 2, 3))]),
        Case({"passages": ["c"], "null_threshold": 0.0, "n": 2},
             [found((None, 0, 0), (0, 0, 1))]),
        Case({"passages": ["c"], "null_threshold": 3.1}, [found((0, 0, 1))]),
        Case({"passages": ["b c b c b c b c a b"], "max_window_tokens": 7, "stride": 1},
             [found((0, 16, 19))], (21, 0)),
        Case({"passages": ["a b"], "align_to_words": False}, [found((0, 0, 3))]),
    ],
    "zero-shot": [
        Case({"images": [RED, b"junk", BLUE], "labels": ["red", "very blue"],
              "templates": ["a {}", "the {}"]},
             [{"labels": [..., ...]}, {"error": {"field": "images.1"}}, {"labels": [..., ...]}]),
        Case({"images": [RED, b"junk", BLUE, BLUE], "frame_counts": [2, 2]},
             [{"labels": None, "error": {"field": "images.1"}}, {"labels": [...], "error": None}]),
        Case({"labels": ["red"]}, [labels("red", scores=[1.0])]),
        Case({"labels": ["red", "red"]}, [labels("red", "red", scores=[0.5, 0.5])]),
        Case({"images": [RED, RED, BLUE, RED, BLUE, b"junk"], "labels": ["red", "a red"],
              "frame_counts": [1, 4, 1]},
             [{"labels": [{"cosine": 0.99997}] * 2}, {"labels": [{"cosine": 0.59875}] * 2},
              {"error": {"field": "images.5"}}], (5, 0), model=MODELS["zero-shot videos"]),
    ],
    "detect": [
        Case({"labels": ["a", "b"]}, [{"width": 6, "height": 5, "boxes": [..., ...]}]),
    ],
    "segment": [
        Case({"labels": ["a", "b"]},
             [{"width": 6, "height": 5, "mask_width": 3, "mask_height": 2,
               "masks": [{"label": "a"}, {"label": "b"}]}],
             sent=[{"model": "tiny-segment-text"}, {"model": "tiny-segment"}]),
    ],
}
# fmt: on
for _task, _cases in _CASES.items():
    for _case in _cases:
        object.__setattr__(_case, "task", _task)
CASES = [case for cases in _CASES.values() for case in cases]


def match(found: Any, wanted: Any, place: str = "") -> None:
    """Fails where something is not as it is wanted; `...` is anything."""
    if wanted is ...:
        return
    if isinstance(wanted, Mapping) and found is not None:
        for name, value in wanted.items():
            match(found[name], value, f"{place}.{name}")
    elif isinstance(wanted, list | tuple) and found is not None:
        assert len(found) == len(wanted), place
        for number, value in enumerate(wanted):
            match(found[number], value, f"{place}.{number}")
    else:
        near = pytest.approx(wanted, abs=1e-4) if isinstance(wanted, float) else wanted
        assert found == near, place
