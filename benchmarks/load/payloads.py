"""Requests of a load run: each task's sample filled with sentences and images, encoded once."""

from __future__ import annotations

import base64
import functools
import json
import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Self

from examples.texts.grammar import sentences
from triptych.messages import Model
from triptych.tasks import TASKS

IMAGES = Path(__file__).resolve().parents[2] / "examples" / "demo" / "pictures"
PROFILES = ("closed", "poisson")
DEFAULT_TASKS = tuple(name for name, task in TASKS.items() if task.sample)


@dataclass(frozen=True)
class LoadSettings:
    """One run.

    Attributes:
        profile: `closed` (each user waits for its response) or `poisson` (independent arrivals).
        tasks: Tasks, or other routes, to request, in equal shares.
        models: Name of a route → the model that its requests name.
        users: Number of users of the closed profile.
        rate: Requests per second of the Poisson profile, all tasks together.
        duration: In locust's notation, e.g. 60s.
        url: URL of the gateway.
        seed: Seed of the arrivals and of the choice of requests.
        images: Folder of image files.
    """

    profile: str = "closed"
    tasks: tuple[str, ...] = DEFAULT_TASKS
    users: int = 8
    rate: float = 10.0
    duration: str = "60s"
    url: str = "http://127.0.0.1:8080"
    seed: int = 0
    images: Path = IMAGES
    models: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"PROFILE is {self.profile!r}; supported are: {', '.join(PROFILES)}")
        unknown = set(self.tasks) - {*DEFAULT_TASKS, *OTHERS}
        if unknown or not self.tasks:
            supported = ", ".join([*DEFAULT_TASKS, *OTHERS, EVERY])
            raise ValueError(f"TASKS is {','.join(self.tasks)!r}; supported are: {supported}")
        if self.users < 1:
            raise ValueError(f"USERS is {self.users}; at least 1 is needed")
        if not 0 < self.rate < float("inf"):
            raise ValueError(f"RATE is {self.rate}; expected requests a second, more than 0")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The defaults, and over them PROFILE, TASKS, MODELS, USERS, RATE, DURATION and others.

        Raises:
            ValueError: A value is not one of those supported.
        """
        value = environment.get
        tasks = value("TASKS", ",".join(cls.tasks)).split(",")
        return cls(
            profile=value("PROFILE", cls.profile),
            tasks=(*DEFAULT_TASKS, *OTHERS) if tasks == [EVERY] else tuple(tasks),
            users=int(value("USERS", cls.users)),
            rate=float(value("RATE", cls.rate)),
            duration=value("DURATION", cls.duration),
            url=value("TRIPTYCH_URL", cls.url).rstrip("/"),
            seed=int(value("SEED", cls.seed)),
            images=Path(value("IMAGES", cls.images)),
            models=json.loads(value("MODELS", "{}")),
        )


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


SENTENCES = 500


@dataclass(frozen=True)
class Payload:
    """One request, encoded before the clock runs."""

    route: str
    """Its name."""
    body: bytes
    model: str = ""

    @property
    def path(self) -> str:
        """Path of the route."""
        return route_of(self.route).path.replace(MODEL, self.model)


class Payloads:
    """A random choice of requests, the same for the same seed.

    Args:
        routes: Names of routes, in equal shares.
        seed: Seed of the choice.
        images: Folder of image files.
        models: Name of a route → the model that its requests name.

    Raises:
        FileNotFoundError: A route needs images, and the folder has none.
    """

    def __init__(
        self,
        routes: Iterable[str],
        seed: int,
        images: Path,
        models: Mapping[str, str] | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._models = models or {}
        self._by_route = {
            name: _bodies(_fill(route_of(name).sample, {MODEL: self._models.get(name, "")}), images)
            for name in routes
        }

    def draw(self, route: str | None = None) -> Payload:
        """The next request, of any route unless one is named."""
        route = route or self._random.choice(list(self._by_route))
        body = self._random.choice(self._by_route[route])
        return Payload(route, body, self._models.get(route, ""))


def failure(route: str, status: int, content: bytes) -> str | None:
    """Why a response counts as failed, or None; a failed item fails its request."""
    if status != 200:
        return f"HTTP {status}"
    key = route_of(route).answer
    try:
        answer = json.loads(content)
        items = answer if key is None else answer[key]
    except (ValueError, KeyError, TypeError):
        return "not a response of Triptych"
    if not items or (isinstance(items, dict) and "error" in items):
        return "not a response of Triptych"
    listed = [item for item in items if isinstance(item, dict)]
    errors = [item["error"]["type"] for item in listed if item.get("error")]
    return f"item: {errors[0]}" if errors else None


def _bodies(sample: Any, images: Path) -> list[bytes]:
    """One body per sentence, or per image where the sample has no sentence."""
    text = json.dumps(sample)
    material: dict[str, list[str]] = {}
    if SENTENCE in text:
        material[SENTENCE] = _sentences()
    if IMAGE in text:
        material[IMAGE] = _images(images)
    number = max(map(len, material.values()), default=1)
    columns = [islice(cycle(values), number) for values in material.values()]
    rows = zip(*columns, strict=True) if columns else [()]
    return [
        json.dumps(_fill(sample, dict(zip(material, row, strict=True)))).encode() for row in rows
    ]


def _fill(sample: Any, values: dict[str, str]) -> Any:
    """The sample with its placeholders replaced."""
    if isinstance(sample, str):
        for placeholder, value in values.items():
            sample = sample.replace(placeholder, value)
        return sample
    if isinstance(sample, dict):
        return {name: _fill(value, values) for name, value in sample.items()}
    return [_fill(value, values) for value in sample] if isinstance(sample, list) else sample


@functools.cache
def _sentences() -> list[str]:
    return [pair.spanish for pair in sentences("held_out", SENTENCES, seed=0)]


def _images(folder: Path) -> list[str]:
    files = sorted(path for path in folder.glob("*") if path.suffix in (".png", ".jpg"))
    if not files:
        raise FileNotFoundError(f"no images in {folder}")
    return [base64.b64encode(file.read_bytes()).decode("ascii") for file in files]
