"""Bundles on disk to loaded models."""

from __future__ import annotations

from inference.bundle.manifest import MANIFEST, Bundle
from inference.errors import BundleError
from inference.processing.tokenizer_kinds import load_instruction_tokenizer, load_tokenizer
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.served_task import sections_of


def load_model(bundle: Bundle) -> LoadedModel:
    """A bundle checked for its tasks, with its tokenizer loaded.

    Raises:
        BundleError: the tokenizer is damaged, or something that a task needs is missing.
    """
    try:
        sections = sections_of(bundle.manifest, TASKS)
    except BundleError as error:
        path = bundle.folder / MANIFEST
        raise BundleError(f"{path}: {error.message}: export it again") from error
    if not sections:
        raise BundleError(f"{bundle.folder}: no task is served by its graphs")
    try:
        instructions = load_instruction_tokenizer(bundle)
        return LoadedModel(bundle.manifest, sections, load_tokenizer(bundle), instructions)
    except BundleError:
        raise
    except Exception as error:  # libraries of tokenizers raise what they like
        cause = f"{type(error).__name__}: {error}"
        raise BundleError(f"{bundle.folder}: cannot be loaded: {cause}") from error
