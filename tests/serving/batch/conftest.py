from pathlib import Path

import pytest

from tests.serving.batch.embedder import embedder


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedder(tmp_path_factory.mktemp("batch") / "model_repository")
