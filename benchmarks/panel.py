"""The examples as plain functions, whatever answers: PyTorch, ONNX in this process, or the gateway.

All columns of `make quality` make the same requests; they differ only in what responds to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.local_model import LocalModel
from examples.bert.facts import Roles
from examples.chat.dialogues import Message
from examples.gpt import scores as score_gpt
from examples.gpt.episodes import Question
from examples.history.task_requests import BATCH, as_pngs, question_about
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import TaskLimits
from triptych import Client
from triptych.messages import Response
from triptych.operation import operation

Respond = Callable[[str, str, Mapping[str, Any]], Response[Any]]
"""Bundle, task, fields of the request → the response."""


def local_responses(models: Mapping[str, LocalModel]) -> Respond:
    """The tasks over models in this process, by bundle."""
    limits = TaskLimits(max_client_batch_size=BATCH)

    def respond(bundle: str, task: str, fields: Mapping[str, Any]) -> Response[Any]:
        declared = TASKS[task].declaration
        request: Any = operation(declared, declared.response, **fields).request
        model = models[bundle]
        images = getattr(request, "images", None) or ()
        loaded = replace(model.model, task_limits=limits)
        plan = TASKS[task].prepare(request, images, loaded)
        return plan.finish(model.answer(plan.calls))

    return respond


def served_responses(client: Client) -> Respond:
    """The tasks over a running gateway."""

    def respond(bundle: str, task: str, fields: Mapping[str, Any]) -> Response[Any]:
        declared = TASKS[task].declaration
        return client.send(operation(declared, declared.response, **fields, model=bundle))

    return respond


class Panel:
    """What is measured of the examples, in the form that the scores take."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond

    def translate(self, texts: list[str]) -> list[str]:
        """Translations from Spanish."""
        items = self._items("example-es-en", "translate", {"texts": texts})
        return [str(item.text) for item in items]

    def caption(self, images: list[Image.Image]) -> list[str]:
        """Captions of scenes."""
        items = self._items("example-captioner", "caption", {"images": as_pngs(images)})
        return [str(item.text) for item in items]

    def choose(self, image: Image.Image, labels: list[str]) -> str:
        """The best of some labels for one picture."""
        fields = {"images": as_pngs([image]), "labels": labels}
        (item,) = self._respond("example-clip", "zero-shot", fields).data
        return str(item.labels[0].label)

    def answer(self, questions: list[Question]) -> list[str]:
        """Continuations of few-shot prompts; each has examples of its own."""
        return [self._answer(question) for question in questions]

    def _answer(self, question: Question) -> str:
        fields = {
            "prompts": [question.prompt],
            "instruction": question.instruction,
            "examples": [(example.given, example.answer) for example in question.examples],
            "max_new_tokens": score_gpt.MAX_ANSWER,
        }
        (item,) = self._respond("example-gpt", "generate", fields).data
        return str(item.text)

    def reply(self, conversations: list[Sequence[Message]]) -> list[str]:
        """The next messages of conversations."""
        return [
            str(self._respond("example-chat", "chat", {"messages": list(one)}).data[0].text)
            for one in conversations
        ]

    def answer_about(self, asked: list[tuple[Image.Image, str]]) -> list[str]:
        """Answers to questions, each about a picture."""
        return [
            str(self._respond("example-vqa", "chat", question_about(*one)).data[0].text)
            for one in asked
        ]

    def fill(self, texts: list[str], choices: list[str]) -> list[str]:
        """The most likely word behind the mask of each text, among the choices or of all."""
        fields = {"targets": choices or None, "top_k": 1}
        items = self._items("example-bert", "fill-mask", {"texts": texts}, fields)
        return [item.masks[0][0].token for item in items]

    def classify_texts(self, texts: list[str]) -> list[str]:
        """Sentiments of reviews."""
        items = self._items("example-bert-sentiment", "classify", {"texts": texts}, {"top_k": 1})
        return [item.labels[0].label for item in items]

    def classify_images(self, images: list[Image.Image]) -> list[str]:
        """Classes of scenes."""
        items = self._items("example-vit", "classify", {"images": as_pngs(images)}, {"top_k": 1})
        return [item.labels[0].label for item in items]

    def attend(self, images: list[Image.Image]) -> list[NDArray[Any]]:
        """Attention over the patches of each picture."""
        fields = {"return_attention": True}
        items = self._items("example-vit", "classify", {"images": as_pngs(images)}, fields)
        return [np.array(item.attention) for item in items]

    def tag(self, texts: list[str]) -> list[Roles]:
        """Whole roles of each text."""
        fields = {"aggregation": "simple"}
        items = self._items("example-bert-tags", "tag", {"texts": texts}, fields)
        return [[(one.start, one.end, one.label) for one in item.tokens] for item in items]

    def rank(self, query: str, documents: list[str]) -> int:
        """Index of the most relevant document."""
        fields = {"query": query, "documents": documents}
        (item,) = self._respond("example-bert-rerank", "rerank", fields).data
        return int(item.results[0].index)

    def find_answers(
        self, questions: list[str], passages: list[str], may_be_none: bool
    ) -> list[str]:
        """Answers to questions, each from a passage; empty where none is likelier."""
        fields = {"null_threshold": 0.0} if may_be_none else {}
        return [
            str(item.answers[0].text)
            for question, passage in zip(questions, passages, strict=True)
            for item in self._respond(
                "example-bert-answer",
                "answer",
                {"question": question, "passages": passage, **fields},
            ).data
        ]

    def embed(self, texts: list[str]) -> NDArray[Any]:
        """Vectors of unit length, (B, D)."""
        items = self._items("example-bert-embed", "embed", {"texts": texts})
        return np.array([item.embedding for item in items])

    def _items(
        self,
        bundle: str,
        task: str,
        inputs: Mapping[str, Sequence[Any]],
        fields: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """One item for each input, in requests of at most `BATCH`."""
        ((name, values),) = inputs.items()
        requests = [
            {name: values[start : start + BATCH], **(fields or {})}
            for start in range(0, len(values), BATCH)
        ]
        return [item for request in requests for item in self._respond(bundle, task, request).data]
