"""A group's systems in PyTorch, ONNX, int8 and served, as functions that answer requests.

The columns follow one another, so that they do not share the machine.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import safe_open

from benchmarks.harness.machine import processor
from benchmarks.local_model import LocalModel, lowered, onnx_model, torch_model
from benchmarks.panel import Respond, local_responses, served_responses
from examples.bundles import publish_example
from examples.demo.server import serving
from examples.history.system import Ask, Group, Measure, System
from export.precision import Precision
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle
from inference.errors import SetupError
from inference.process_limits import usable_cores
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


RESULTS = Path(__file__).parents[1] / "results" / "history"

Figures = dict[str, Any]
"""`items`, `cpus`, `processor` (earlier files lack it) and `systems`: checkpoint → `parameters`,
`megabytes` by form, `items_per_second`, `scores` and `curve`, the last three by column."""


def measure_group(group: Group, repository: Path, count: int, console: Console) -> Figures:
    """Measures every system of a group.

    Args:
        count: Held-out items a measure.

    Raises:
        SetupError: A checkpoint is missing.
    """
    systems = {one.checkpoint: _facts(one) for one in group.systems}
    for column, asks in columns(group, repository):
        for checkpoint, ask in asks.items():
            figures = systems[checkpoint]
            with console.status(f"{column}: {checkpoint}, {count} items a measure"):
                _score(group, ask, count, column, figures)
            figures["items_per_second"][column] = _round(ask.items_per_second)
            if column in ("ONNX", "int8"):
                figures["megabytes"][column] = _round(graph_bytes(ask.bundle) / 1e6)
    return {
        "items": count,
        "cpus": usable_cores(),
        "processor": processor(),
        "systems": systems,
    }


def _score(group: Group, ask: Ask, count: int, column: str, figures: Figures) -> None:
    points = group.curve.points if group.curve else ()
    for kind, measures in (("scores", group.measures), ("curve", points)):
        for measure in measures:
            _cell(figures[kind], measure)[column] = round(measure.score(ask, count), 2)


def _cell(rows: Figures, measure: Measure) -> Figures:
    cell: Figures = rows.setdefault(measure.name, {})
    return cell


def _facts(system: System) -> Figures:
    """What is known of a system without running it."""
    file = system.folder / "model.safetensors"
    if not file.is_file():
        return {}  # `columns` names the missing checkpoint
    with safe_open(file, "np") as tensors:
        shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    return {
        "parameters": sum(math.prod(shape) for shape in shapes),
        "megabytes": {"checkpoint": _round(file.stat().st_size / 1e6)},
        "items_per_second": {},
        "scores": {},
        "curve": {},
    }


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def record(group: Group, figures: Figures) -> None:
    """Writes a group's figures where `recorded` finds them."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    (RESULTS / f"{group.name}.json").write_text(text + "\n", encoding="utf-8")


def read_recorded(group: Group) -> Figures:
    """A group's figures of its last recorded run; without one, those of no system."""
    file = RESULTS / f"{group.name}.json"
    if not file.is_file():
        return {"items": 0, "cpus": 0, "systems": {}}
    figures: Figures = json.loads(file.read_text(encoding="utf-8"))
    return figures
