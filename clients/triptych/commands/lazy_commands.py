"""Commands of the server and the exporter, which need an extra and are imported when they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import typer

from triptych.errors import TriptychError
from triptych.garbage import without_collection

SERVE = "Serve models"
EXPORT = "Export checkpoints"
LEARN = "Learn: train and compare"
_CLONE = "a clone of the repository with its example checkpoints: run it there, after make setup"


class LazyCommand(NamedTuple):
    """A command that is defined beside what it runs.

    Attributes:
        panel: Of `--help`.
        definition: `module:name` of its function, or of an app of several commands.
        extra: Of the package; None: the command is in a clone of the repository alone.
        summary: The first line of its help.
    """

    panel: str
    definition: str
    extra: str | None
    summary: str

    def load(self, name: str) -> Any:
        """The command.

        Raises:
            TriptychError: The extra that it needs is not installed.
        """
        module, _, attribute = self.definition.partition(":")
        try:
            with without_collection():
                found = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as missing:
            needs = f"pip install 'triptych[{self.extra}]'" if self.extra else _CLONE
            raise TriptychError(
                f"{missing.name} is not installed; this command needs {needs}"
            ) from missing
        return (
            typer.main.get_command(found) if isinstance(found, typer.Typer) else single(name, found)
        )


def single(name: str, function: Callable[..., object]) -> Any:
    """A function as a command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(function)
    return typer.main.get_command(app)


LAZY_COMMANDS = {
    "serve": LazyCommand(SERVE, "serving.commands.serve:serve", "serve-cpu",
        "Start Triton and the gateway, and report when they are ready; Ctrl-C stops both."),
    "triton": LazyCommand(SERVE, "serving.commands.triton:triton", "serve-cpu",
        "Start and supervise NVIDIA Triton on a model repository; SIGTERM stops it."),
    "gateway": LazyCommand(SERVE, "serving.commands.gateway:gateway", "serve-cpu",
        "Serve HTTP and gRPC in front of a running Triton; SIGTERM stops it."),
    "batch": LazyCommand(SERVE, "serving.batch.command:app", "batch",
        "Run a task over the rows of files, without a server, on all cores or a Ray cluster."),
    "plan": LazyCommand(SERVE, "serving.tensorrt.command:plan", "triton-gpu",
        "Build the TensorRT plans of newest versions, where they will be served."),
    "reload": LazyCommand(SERVE, "serving.commands.versions:reload", "serve-cpu",
        "Serve the newest exported version; running requests finish on the one they began with."),
    "rollback": LazyCommand(SERVE, "serving.commands.versions:rollback", "serve-cpu",
        "Serve the version before the one that is served now, until the next reload."),
    "key": LazyCommand(SERVE, "serving.commands.key:key", "serve-cpu",
        "Make an API key: print it once, and add its hash to the gateway's file of keys."),
    "push": LazyCommand(SERVE, "serving.commands.object_storage:push", "object-storage",
        "Store the repository's complete bundles, with a list of their SHA-256 sums."),
    "pull": LazyCommand(SERVE, "serving.commands.object_storage:pull", "object-storage",
        "Bring stored bundles into the repository; each file must have its SHA-256."),
    "export": LazyCommand(EXPORT, "export.pipeline.cli:export", "export",
        "Export checkpoints as verified bundles into the model repository."),
    "verify": LazyCommand(EXPORT, "export.report.command:verify", "export",
        "Repeat the gate on a published bundle and write a report with plots."),
    "catalog": LazyCommand(EXPORT, "export.catalog.command:catalog", "export",
        "List well-known checkpoints and whether this version exports them."),
    "train": LazyCommand(LEARN, "export.training.command:app", "train",
        "Train a small model on your own data."),
    "compare": LazyCommand(LEARN, "benchmarks.history.command:compare", None,
        "Measure the course's systems in PyTorch, ONNX, int8 and served."),
}  # fmt: skip
"""By name, in the order of `--help`."""
