"""Bundles on disk to loaded models."""

from __future__ import annotations

from serving.bundle import Bundle
from serving.errors import BundleError
from serving.planning.loaded_model import LoadedModel
from serving.planning.served_task import sections_of
from serving.processing.text import load_tokenizer
from serving.tasks import TASKS


def load_model(bundle: Bundle) -> LoadedModel:
    """A bundle checked for its tasks, with its tokenizer loaded.

    Raises:
        BundleError: the tokenizer is damaged, or something that a task needs is missing.
    """
    sections = sections_of(bundle.manifest, TASKS)
    if not sections:
        raise BundleError(f"{bundle.folder}: no task is served by its graphs")
    return LoadedModel(bundle.manifest, sections, load_tokenizer(bundle))
