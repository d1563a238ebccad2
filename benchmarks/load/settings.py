"""Settings of a load run, from the environment: locust passes no flags to the file it imports."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.load.routes import EVERY, OTHERS
from triptych.tasks import TASKS

IMAGES = Path(__file__).resolve().parents[2] / "examples" / "demo" / "pictures"
PROFILES = ("closed", "poisson")
DEFAULT_TASKS = tuple(name for name, task in TASKS.items() if task.sample)


@dataclass(frozen=True)
class LoadSettings:
    """One run.

    Attributes:
        profile: `closed` (each user waits for its response) or `poisson` (independent arrivals).
        tasks: Tasks, or other routes, to request, in equal shares.
        models: Name of a route → the model that its requests name.
        users: Number of users of the closed profile.
        rate: Requests per second of the Poisson profile, all tasks together.
        duration: In locust's notation, e.g. 60s.
        url: URL of the gateway.
        seed: Seed of the arrivals and of the choice of requests.
        images: Folder of image files.
    """

    profile: str = "closed"
    tasks: tuple[str, ...] = DEFAULT_TASKS
    users: int = 8
    rate: float = 10.0
    duration: str = "60s"
    url: str = "http://127.0.0.1:8080"
    seed: int = 0
    images: Path = IMAGES
    models: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"PROFILE is {self.profile!r}; supported are: {', '.join(PROFILES)}")
        unknown = set(self.tasks) - {*DEFAULT_TASKS, *OTHERS}
        if unknown or not self.tasks:
            supported = ", ".join([*DEFAULT_TASKS, *OTHERS, EVERY])
            raise ValueError(f"TASKS is {','.join(self.tasks)!r}; supported are: {supported}")
        if self.users < 1:
            raise ValueError(f"USERS is {self.users}; at least 1 is needed")
        if not 0 < self.rate < float("inf"):
            raise ValueError(f"RATE is {self.rate}; expected requests a second, more than 0")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The defaults, and over them PROFILE, TASKS, MODELS, USERS, RATE, DURATION and others.

        Raises:
            ValueError: A value is not one of those supported.
        """
        value = environment.get
        tasks = value("TASKS", ",".join(cls.tasks)).split(",")
        return cls(
            profile=value("PROFILE", cls.profile),
            tasks=(*DEFAULT_TASKS, *OTHERS) if tasks == [EVERY] else tuple(tasks),
            users=int(value("USERS", cls.users)),
            rate=float(value("RATE", cls.rate)),
            duration=value("DURATION", cls.duration),
            url=value("TRIPTYCH_URL", cls.url).rstrip("/"),
            seed=int(value("SEED", cls.seed)),
            images=Path(value("IMAGES", cls.images)),
            models=json.loads(value("MODELS", "{}")),
        )
