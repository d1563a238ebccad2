"""The section of `detect` in a manifest."""

from __future__ import annotations

from inference.tasks.generation.image_places import WithImages


class DetectSection(WithImages):
    """What a model needs beyond regions that the vectors of labels score.

    A generator that writes boxes has `images` (`written.py`), a detector that reads the text of all
    labels with the image has `strides` (`grounded.py`).
    """

    prompt: str = ""
    """Of a generator: for all things that it finds."""
    labelled: str = ""
    """Of a generator: for things by their labels, which follow."""
    ignored: tuple[str, ...] = ()
    """Phrases of an answer to labels that stand for nothing in the image."""
    delimiters: tuple[int, ...] = ()
    """Tokens that end a label in a text of several; for verification."""
    strides: tuple[tuple[int, int], ...] = ()
    """Height and width in pixels of the places of each grid, which regions are chosen from."""
