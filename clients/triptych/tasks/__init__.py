"""The tasks, one file each; a file with a `TASK` in this folder is a task."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from triptych.task import Task


def discover() -> Mapping[str, Task]:
    """The tasks declared in the files of this package's path."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}."))
    tasks: list[Task] = [import_module(name).TASK for name in modules]
    return {task.name: task for task in tasks}


TASKS = discover()
"""Task name → declaration, in alphabetical order of the files."""
