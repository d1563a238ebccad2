"""Small models as fixtures."""

import pytest

from inference.tasks.shared.loaded_model import LoadedModel
from tests.inference.tiny_models import IMAGE, manifest, served, two_towers


@pytest.fixture
def translator() -> LoadedModel:
    return served(manifest("translate", {"languages": [("es", "en")]}))


@pytest.fixture
def captioner() -> LoadedModel:
    return served(manifest("caption", image=IMAGE))


@pytest.fixture
def classifier() -> LoadedModel:
    return served(two_towers())
