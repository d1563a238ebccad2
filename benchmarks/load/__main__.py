"""`python -m benchmarks.load`: locust without its web page, configured by the environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.machine import processor
from benchmarks.load.payloads import EVERY, LoadSettings, served
from triptych import Client, TriptychError

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Replace this process by locust, which patches sockets and so needs its own process."""
    try:
        settings = LoadSettings.from_environment()
    except ValueError as error:
        sys.exit(f"load: {error}")
    is_given = os.environ.get("TASKS") not in (None, EVERY)
    found = served_routes(settings.url, settings.tasks)
    if missing := set(settings.tasks) - set(found) if is_given else set():
        sys.exit(f"load: no model is served for {', '.join(sorted(missing))}")
    os.environ |= {"TASKS": ",".join(found), "MODELS": json.dumps(found)}
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
    print(f"on {processor()}", file=sys.stderr, flush=True)
    os.execv(sys.executable, command)


def served_routes(url: str, names: Sequence[str]) -> dict[str, str]:
    """The routes among these that a gateway serves, each with the model that it names.

    All of them if it does not list its models: the run reports what is wrong, request by request.
    """
    try:
        with Client(url, timeout=5) as client:
            return served(client.models().data, names) or dict.fromkeys(names, "")
    except TriptychError:
        return dict.fromkeys(names, "")


if __name__ == "__main__":
    main()
