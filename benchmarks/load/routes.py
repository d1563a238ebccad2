"""The routes that load is sent to: those of tasks, and those of the other APIs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from triptych.messages import Model
from triptych.tasks import TASKS

SENTENCE, IMAGE, MODEL = "{sentence}", "{image}", "{model}"
"""Stand for material, or a model's name, in a path or a sample (`triptych.task.Task.sample`)."""


@dataclass(frozen=True)
class Route:
    """One path, and what is sent to it.

    Attributes:
        path: With a place for a model's name where it has one.
        sample: A body, with places for material.
        task: The task of the model that is named.
        field: What that model takes for the task.
        answer: A key of every complete answer; None: the answer is a list.
    """

    path: str
    sample: Any
    task: str
    field: str = "texts"
    answer: str | None = "data"

    @property
    def names_a_model(self) -> bool:
        """Whether its requests name a model."""
        return MODEL in self.path or MODEL in str(self.sample)

    def model(self, models: Iterable[Model]) -> str | None:
        """The model that requests name: of several that of the longest texts; None if none fits."""
        fitting = [model for model in models if self._fits(model)]
        fitting.sort(key=lambda model: -(model.limits.max_input_tokens or 0))
        return fitting[0].id if fitting else None

    def _fits(self, model: Model) -> bool:
        taken = {inputs.task: inputs.fields for inputs in model.inputs}
        return self.task in model.tasks and self.field in taken.get(self.task, [self.field])


def _hugging_face(task: str, field: str, inputs: object, **more: object) -> Route:
    return Route(f"/hf/{task}/{MODEL}", {"inputs": inputs, **more}, task, field, answer=None)


_LABELS = ["red circle", "blue square", "green ring"]

OTHERS: Mapping[str, Route] = {
    "openai/completions": Route(
        "/v1/completions",
        {"model": MODEL, "prompt": SENTENCE, "max_tokens": 16},
        "generate",
        "prompts",
        "choices",
    ),
    "openai/chat": Route(
        "/v1/chat/completions",
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": SENTENCE}],
            "max_completion_tokens": 16,
        },
        "chat",
        "messages",
        "choices",
    ),
    "openai/embeddings": Route("/v1/embeddings", {"model": MODEL, "input": SENTENCE}, "embed"),
    "hf/answer": _hugging_face(
        "answer", "question", {"question": "Where is the red circle?", "context": SENTENCE}
    ),
    "hf/translate": _hugging_face("translate", "texts", SENTENCE),
    "hf/caption": _hugging_face("caption", "images", IMAGE),
    "hf/classify": _hugging_face("classify", "texts", SENTENCE),
    "hf/detect": _hugging_face("detect", "images", IMAGE, parameters={"candidate_labels": _LABELS}),
    "hf/embed": _hugging_face("embed", "texts", [SENTENCE]),
    "hf/fill-mask": _hugging_face("fill-mask", "texts", f"{SENTENCE} [MASK]"),
    "hf/generate": _hugging_face(
        "generate", "prompts", SENTENCE, parameters={"max_new_tokens": 16}
    ),
    "hf/tag": _hugging_face("tag", "texts", SENTENCE),
    "hf/zero-shot": _hugging_face(
        "zero-shot", "images", IMAGE, parameters={"candidate_labels": _LABELS}
    ),
    "libretranslate/translate": Route(
        "/translate",
        {"q": SENTENCE, "source": "es", "target": "en"},
        "translate",
        answer="translatedText",
    ),
    "libretranslate/html": Route(
        "/translate",
        {"q": f"<p><b>¡Hola!</b> {SENTENCE}</p>", "source": "es", "target": "en", "format": "html"},
        "translate",
        answer="translatedText",
    ),
    "libretranslate/detect": Route("/detect", {"q": SENTENCE}, "translate", answer=None),
}
"""Name → route, of the other APIs; the routes of tasks have the tasks' names."""
NAMING = ("embed", "score")
"""Tasks whose requests name a model: their default takes short texts alone, or there is none."""
EVERY = "all"
"""In place of names: every route that is served."""


def route_of(name: str) -> Route:
    """The route of this name.

    Raises:
        KeyError: there is none.
    """
    task = TASKS.get(name)
    if task is None:
        return OTHERS[name]
    named = {"model": MODEL} if name in NAMING else {}
    return Route(task.path, {**task.sample, **named}, name)


def served(models: Iterable[Model], names: Iterable[str]) -> dict[str, str]:
    """The routes among these that the models serve, each with the model that it names, or ""."""
    listed = list(models)
    found: dict[str, str] = {}
    for name in names:
        route = route_of(name)
        model = route.model(listed)
        is_native = name in TASKS and any(route.task in one.tasks for one in listed)
        if model is not None or is_native:
            found[name] = (model or "") if route.names_a_model else ""
    return found
