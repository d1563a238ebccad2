"""What is asked: the example world's sentences and pictures as ready-made bodies."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from export.examples.grammar import sentences

SENTENCES = 500
LABELS = [
    f"{colour} {shape}"
    for colour in ("red", "green", "blue", "yellow")
    for shape in ("circle", "square", "triangle")
]


@dataclass(frozen=True)
class Payload:
    """One request, encoded before the clock runs."""

    task: str
    body: bytes

    @property
    def path(self) -> str:
        """Route of the task."""
        return f"/v1/{self.task}"


class Payloads:
    """An endless choice of requests, the same for the same seed.

    Args:
        tasks: In equal shares.
        seed: Of the choice.
        pictures: Folder of image files.

    Raises:
        FileNotFoundError: A task's material is not there.
    """

    def __init__(self, tasks: Iterable[str], seed: int, pictures: Path) -> None:
        self._random = random.Random(seed)
        self._by_task = {task: _bodies(task, pictures) for task in tasks}

    def draw(self, task: str | None = None) -> Payload:
        """The next request, of any task unless one is named."""
        task = task or self._random.choice(list(self._by_task))
        return Payload(task, self._random.choice(self._by_task[task]))


def failure(status: int, content: bytes) -> str | None:
    """Why an answer does not count; None for one that does. A failed item fails its request."""
    if status != 200:
        return f"HTTP {status}"
    try:
        items = json.loads(content)["data"]
    except (ValueError, KeyError, TypeError):
        return "not an answer of Triptych"
    errors = [item["error"]["type"] for item in items if item.get("error")]
    return f"item: {errors[0]}" if errors else None


def _bodies(task: str, pictures: Path) -> list[bytes]:
    if task == "translate":
        pairs = sentences("held_out", SENTENCES, seed=0)
        requests = [{"texts": [pair.spanish], "source": "es"} for pair in pairs]
    else:
        requests = [{"images": [image]} for image in _images(pictures)]
    if task == "zero-shot":
        requests = [{**request, "labels": LABELS} for request in requests]
    return [json.dumps(request).encode() for request in requests]


def _images(folder: Path) -> list[str]:
    files = sorted(path for path in folder.glob("*") if path.suffix in (".png", ".jpg"))
    if not files:
        raise FileNotFoundError(f"no pictures in {folder}")
    return [base64.b64encode(file.read_bytes()).decode("ascii") for file in files]
