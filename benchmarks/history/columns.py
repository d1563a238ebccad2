"""A group's systems in PyTorch, ONNX, int8 and served, as functions that answer requests.

The columns follow one another, so that they do not share the machine.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.local_model import LocalModel, onnx_model, torch_model
from benchmarks.lowered import lowered
from benchmarks.panel import Respond, local_responses, served_responses
from examples.bundles import publish_example
from examples.demo.server import serving
from examples.history.system import Group, System
from export.precision import Precision
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle
from inference.errors import SetupError
from triptych import Client

COLUMNS = ("PyTorch", "ONNX", "int8", "served")


@dataclass
class TimedAsk:
    """One system's answers, and the time they took.

    The first request is not timed: it pays for what is made once.
    """

    respond: Respond
    bundle: Bundle
    seconds: float = 0.0
    items: int = 0
    is_warm: bool = field(default=False, init=False)

    def __call__(self, task: str, fields: Mapping[str, Any]) -> Sequence[Any]:
        """The items of one response."""
        start = time.perf_counter()
        items: Sequence[Any] = self.respond(self.bundle.manifest.name, task, fields).data
        if self.is_warm:
            self.seconds += time.perf_counter() - start
            self.items += len(items)
        self.is_warm = True
        return items

    @property
    def items_per_second(self) -> float | None:
        """None if fewer than two requests were made."""
        return self.items / self.seconds if self.items else None


def columns(group: Group, repository: Path) -> Iterator[tuple[str, dict[str, TimedAsk]]]:
    """Each column's name and its systems, by checkpoint; a system without int8 is left out there.

    Raises:
        SetupError: A checkpoint is missing or cannot be exported.
    """
    bundles = {system: exported(system, repository) for system in group.systems}
    yield (
        "PyTorch",
        _local({one: torch_model(one.folder, bundle) for one, bundle in bundles.items()}, bundles),
    )
    yield (
        "ONNX",
        _local({one: onnx_model(repository, bundle) for one, bundle in bundles.items()}, bundles),
    )
    with _temporary_repository() as folder:
        rewritten = {one: _int8(bundle, folder) for one, bundle in bundles.items()}
        quantised = {one: bundle for one, bundle in rewritten.items() if bundle}
        models = {one: onnx_model(folder, bundle) for one, bundle in quantised.items()}
        yield "int8", _local(models, quantised)
    with _temporary_repository() as folder:
        for bundle in bundles.values():
            _copy(bundle, repository, folder)
        with serving(folder) as url, Client(url, timeout=300) as client:
            respond = served_responses(client)
            yield (
                "served",
                {one.checkpoint: TimedAsk(respond, bundle) for one, bundle in bundles.items()},
            )


def exported(system: System, repository: Path) -> Bundle:
    """The system's bundle, exported if it is missing or stale.

    Raises:
        SetupError: Its checkpoint is missing.
        SystemExit: It cannot be exported; the reason is on stderr.
    """
    if not (system.folder / "config.json").is_file():
        raise SetupError(f"{system.folder} has no checkpoint: {system.command} trains it")
    publish_example(system.folder, repository)
    return newest_bundle(repository, system.checkpoint)


def graph_bytes(bundle: Bundle) -> int:
    """Size of all graphs, weights included."""
    manifest, repository = bundle.manifest, bundle.folder.parent.parent
    folders = [repository / part / bundle.folder.name for part in manifest.parts.values()]
    files = [file for folder in set(folders) for file in folder.glob("*.onnx*")]
    return sum(file.stat().st_size for file in files)


@contextmanager
def _temporary_repository() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "repository"
        folder.mkdir()
        yield folder


def _local(
    models: Mapping[System, LocalModel], bundles: Mapping[System, Bundle]
) -> dict[str, TimedAsk]:
    respond = local_responses({one.checkpoint: model for one, model in models.items()})
    return {one.checkpoint: TimedAsk(respond, bundles[one]) for one in models}


def _int8(bundle: Bundle, folder: Path) -> Bundle | None:
    """The bundle's int8 copy; None where nothing in it can be int8."""
    try:
        return lowered(bundle, Precision.INT8, folder)
    except SetupError:
        return None


def _copy(bundle: Bundle, repository: Path, into: Path) -> None:
    """One version of a bundle, all parts: what is served has no other models beside it."""
    for part in bundle.manifest.parts.values():
        version = repository / part / bundle.folder.name
        shutil.copytree(version, into / part / version.name)
        shutil.copy(version / "config.pbtxt", into / part)
