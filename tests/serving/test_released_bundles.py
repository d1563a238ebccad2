"""Bundles that a release wrote load and answer as they did then, in every later version.

Each archive has a model repository, pictures, and `answers.json`: requests, and what that release
answered. They were exported by its own command from tiny random checkpoints and are never made
again. A format that a later release changes adds an archive.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from inference.bundle.manifest import MANIFEST, Manifest
from inference.bundle.reader import newest_bundle
from inference.tasks import TASKS
from serving.local_model import LocalModel, open_local_model

FOLDER = Path(__file__).parent / "released_bundles"
ARCHIVES = {"1.0": "dd8b343eedf8e6efd2bfd9bd3305d0ef90091a8a617e64b351ccffebb53ab4fb"}
"""Release → the checksum of its archive."""
TOLERANCE = 1e-3
"""Of scores and vectors: another processor may round an activation of int8 to the next integer."""


@pytest.fixture(scope="module", params=ARCHIVES)
def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the archive holds."""
    folder = tmp_path_factory.mktemp("released")
    with tarfile.open(FOLDER / f"{request.param}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("release", ARCHIVES)
def test_archive_is_the_one_that_was_released(release: str) -> None:
    content = (FOLDER / f"{release}.tar.xz").read_bytes()
    assert hashlib.sha256(content).hexdigest() == ARCHIVES[release]


def test_format_that_is_written_has_an_archive() -> None:
    formats = set()
    for release in ARCHIVES:
        with tarfile.open(FOLDER / f"{release}.tar.xz") as archive:
            manifests = [name for name in archive.getnames() if name.endswith(MANIFEST)]
            formats |= {json.load(archive.extractfile(name))["format"] for name in manifests}
    assert Manifest.model_fields["format"].default in formats


def test_bundles_answer_as_on_the_day_of_their_release(unpacked: Path) -> None:
    repository = unpacked / "model_repository"
    recorded = json.loads((unpacked / "answers.json").read_text(encoding="utf-8"))
    opened: dict[str, LocalModel] = {}
    for asked in recorded:
        name = asked["model"]
        if name not in opened:
            bundle = newest_bundle(repository, name)
            opened[name] = open_local_model(repository, bundle, threads=1)
        images = [(unpacked / picture).read_bytes() for picture in asked["pictures"]]
        found = answer(opened[name], asked["task"], asked["request"], images)
        assert list(differences(asked["response"], found)) == [], asked
    assert len(opened) >= 3
    assert {local.model.manifest.precision for local in opened.values()} == {"fp32", "int8"}


def answer(
    local: LocalModel, task: str, fields: dict[str, Any], images: list[bytes]
) -> dict[str, Any]:
    """The response of a task, as a client reads it."""
    served = TASKS[task]
    request = served.declaration.request.model_validate(fields)
    plan = served.prepare(request, images, local.model)
    outcomes = local.answer(plan.calls)
    while (following := plan.following(outcomes)) is not None:
        plan = following
        outcomes = local.answer(plan.calls)
    response = plan.finish(outcomes)
    return json.loads(response.model_dump_json())


def differences(recorded: Any, found: Any, path: str = "") -> list[str]:
    """Where an answer is not what was recorded; fields that did not exist then may be there."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        return [
            each
            for key, value in recorded.items()
            for each in differences(value, found.get(key, "absent"), f"{path}.{key}")
        ]
    if isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        pairs = enumerate(zip(recorded, found, strict=True))
        return [each for n, pair in pairs for each in differences(*pair, f"{path}[{n}]")]
    expected = pytest.approx(recorded, abs=TOLERANCE) if isinstance(recorded, float) else recorded
    return [] if found == expected else [f"{path}: {found!r} is not {recorded!r}"]
