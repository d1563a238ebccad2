"""Conditions that a manifest must meet for a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inference.bundle.manifest import Manifest, Role


@dataclass(frozen=True, eq=False)
class Need:
    """One condition; `a & b` and `a | b` combine conditions."""

    what: str
    """Words for an error, e.g. "an image recipe"."""
    is_met: Callable[[Manifest], bool]

    def __and__(self, other: Need) -> Need:
        return Need(f"{self.what} and {other.what}", lambda m: self.is_met(m) and other.is_met(m))

    def __or__(self, other: Need) -> Need:
        return Need(f"{self.what} or {other.what}", lambda m: self.is_met(m) or other.is_met(m))


def part(*, takes: Role, returns: Role) -> Need:
    """A stateless part with an input and an output of these roles."""
    return Need(
        f"a part that takes {takes} and returns {returns}",
        lambda manifest: manifest.part(takes=takes, returns=returns) is not None,
    )


def scores(*, takes: Role, shape: str) -> Need:
    """A stateless part that returns LOGITS of that shape.

    Args:
        takes: TOKENS or PIXELS.
        shape: `(B, C)` for scores of a whole item, `(B, T, C)` for those of its tokens.
    """
    rank = shape.count(",") + 1

    def is_met(manifest: Manifest) -> bool:
        found = manifest.part(takes=takes, returns=Role.LOGITS)
        logits = found.graph.output(Role.LOGITS) if found else None
        return logits is not None and len(logits.shape) == rank

    return Need(f"a part that takes {takes} and returns {Role.LOGITS} {shape}", is_met)


def labelled(section: str) -> Need:
    """As many labels in a section as the graph has scores; the section itself is checked later."""

    def is_met(manifest: Manifest) -> bool:
        labels = manifest.tasks.get(section, {}).get("labels")
        outputs = (graph.output(Role.LOGITS) for graph in manifest.graphs.values())
        sizes = [output.shape[-1] for output in outputs if output is not None]
        return labels is None or all(size == len(labels) for size in sizes)

    return Need("one label for each of its scores", is_met)


GENERATOR = Need(
    "a generator with its defaults",
    lambda manifest: manifest.generator is not None and manifest.generation is not None,
)
TOKENIZER = Need("a tokenizer", lambda manifest: manifest.tokenizer is not None)
ONE_LANGUAGE = Need(
    "no tokens that choose languages",
    lambda manifest: not any(section.get("tokens") for section in manifest.tasks.values()),
)
SPANS = Need(
    "a tokenizer with offsets (kind tokenizers)",
    lambda manifest: manifest.tokenizer is not None and manifest.tokenizer.kind == "tokenizers",
)
IMAGE_RECIPE = Need("an image recipe", lambda manifest: manifest.image is not None)


def _shows_all(manifest: Manifest) -> bool:
    image = manifest.image
    if image is None or image.resize not in ("exact", "padded"):
        return False
    return (image.crop, image.centre) == (None, None)


WHOLE_IMAGE = Need("an image recipe that keeps the whole image", _shows_all)
"""Parts of the graph's image are then parts of the request's, or of the square that it fills."""

TEXT_EMBEDDING = part(takes=Role.TOKENS, returns=Role.EMBEDDING) & SPANS
IMAGE_EMBEDDING = part(takes=Role.PIXELS, returns=Role.EMBEDDING) & IMAGE_RECIPE
