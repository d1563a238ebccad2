"""The course's translators, exported and served in one stack, answer as PyTorch does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.bundles import publish_example
from examples.demo.server import serving
from examples.en_fr.gazette import sentences
from examples.history.gazette.card import translator
from examples.history.system import System
from examples.history.systems import writers
from triptych import Client

pytestmark = [pytest.mark.integration, pytest.mark.full]
SYSTEMS = [one for one in writers.GAZETTE.systems if one.checkpoint.startswith("history-")]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    repository = tmp_path_factory.mktemp("history") / "repository"
    for system in SYSTEMS:
        publish_example(system.folder, repository)
    with serving(Path(repository)) as url, Client(url, timeout=60) as connected:
        yield connected


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("system", SYSTEMS, ids=[one.checkpoint for one in SYSTEMS])
def test_served_translations_are_pytorchs(client: Client, system: System, num_beams: int) -> None:
    texts = [pair.source for pair in sentences("compositional", 16, seed=5)]
    answer = client.translate(texts, model=system.checkpoint, num_beams=num_beams)
    assert [item.text for item in answer.data] == translator(system.folder, num_beams)(texts)
