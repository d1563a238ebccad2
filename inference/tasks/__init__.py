"""The tasks as the gateway serves them; a file with a `TASK` in this folder is a task.

The other half of each is the file of the same name in `triptych.tasks`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from inference.tasks.shared.served_task import AnyTask


def _load_tasks() -> Mapping[str, AnyTask]:
    modules = sorted(
        module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.") if not module.ispkg
    )
    tasks: list[AnyTask] = [import_module(name).TASK for name in modules]
    return {task.name: task for task in tasks}


TASKS = _load_tasks()
"""Task name → how it is served, in alphabetical order of the files."""
