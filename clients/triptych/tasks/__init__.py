"""The tasks, one file each; a file with a `TASK` in this folder is a task."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from triptych.task import Task


def _declared() -> Mapping[str, Task]:
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}."))
    tasks: list[Task] = [import_module(name).TASK for name in modules]
    return {task.name: task for task in tasks}


TASKS = _declared()
"""Task name → declaration, in alphabetical order of the files."""
