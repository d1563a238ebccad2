"""Requests of a load run: each task's sample filled with sentences and images, encoded once."""

from __future__ import annotations

import base64
import functools
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.load.routes import IMAGE, MODEL, SENTENCE, route_of
from examples.texts.grammar import sentences

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
            name: _bodies(
                _filled(route_of(name).sample, {MODEL: self._models.get(name, "")}), images
            )
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
        json.dumps(_filled(sample, dict(zip(material, row, strict=True)))).encode() for row in rows
    ]


def _filled(sample: Any, values: dict[str, str]) -> Any:
    """The sample with its placeholders replaced."""
    if isinstance(sample, str):
        for placeholder, value in values.items():
            sample = sample.replace(placeholder, value)
        return sample
    if isinstance(sample, dict):
        return {name: _filled(value, values) for name, value in sample.items()}
    return [_filled(value, values) for value in sample] if isinstance(sample, list) else sample


@functools.cache
def _sentences() -> list[str]:
    return [pair.spanish for pair in sentences("held_out", SENTENCES, seed=0)]


def _images(folder: Path) -> list[str]:
    files = sorted(path for path in folder.glob("*") if path.suffix in (".png", ".jpg"))
    if not files:
        raise FileNotFoundError(f"no images in {folder}")
    return [base64.b64encode(file.read_bytes()).decode("ascii") for file in files]
