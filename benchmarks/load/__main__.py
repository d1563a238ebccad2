"""`python -m benchmarks.load`: locust without its web page, configured by the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.load.settings import DEFAULT_TASKS, LoadSettings
from triptych import Client, TriptychError

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Replace this process by locust, which patches sockets and so needs its own process."""
    try:
        settings = LoadSettings.from_environment()
    except ValueError as error:
        sys.exit(f"load: {error}")
    os.environ.setdefault("TASKS", ",".join(served_tasks(settings.url)))
    users = settings.users if settings.profile == "closed" else 1
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    command = [
        *(sys.executable, "-m", "locust", "--headless", "--only-summary"),
        *("--locustfile", str(Path(__file__).with_name("locustfile.py"))),
        *("--users", str(users), "--spawn-rate", str(users)),
        *("--run-time", settings.duration, "--stop-timeout", "10"),
        *sys.argv[1:],
    ]
    os.execv(sys.executable, command)


def served_tasks(url: str) -> tuple[str, ...]:
    """The tasks that a gateway's models serve; all of them if it does not list its models."""
    try:
        with Client(url, timeout=5) as client:
            served = {task for model in client.models().data for task in model.tasks}
    except TriptychError:
        return DEFAULT_TASKS  # the run reports what is wrong, request by request
    return tuple(task for task in DEFAULT_TASKS if task in served) or DEFAULT_TASKS


if __name__ == "__main__":
    main()
