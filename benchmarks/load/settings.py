"""What a load run does, read from the environment: no flags reach a file that locust imports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PICTURES = Path(__file__).resolve().parents[2] / "export" / "examples" / "pictures"
PROFILES = ("closed", "poisson")
TASKS = ("translate", "caption", "zero-shot")


@dataclass(frozen=True)
class LoadSettings:
    """One run.

    Attributes:
        profile: `closed` (each user waits for its answer) or `poisson` (arrivals of their own).
        tasks: What is asked, in equal shares.
        users: Of the closed profile.
        rate: Requests a second of the Poisson profile, all tasks together.
        duration: As locust reads it, e.g. 60s.
        url: The gateway.
        seed: Of arrivals and of what is asked.
        pictures: Folder of image files.
    """

    profile: str = "closed"
    tasks: tuple[str, ...] = TASKS
    users: int = 8
    rate: float = 10.0
    duration: str = "60s"
    url: str = "http://127.0.0.1:8080"
    seed: int = 0
    pictures: Path = PICTURES

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"PROFILE is {self.profile!r}; supported are: {', '.join(PROFILES)}")
        unknown = set(self.tasks) - set(TASKS)
        if unknown or not self.tasks:
            raise ValueError(f"TASKS is {','.join(self.tasks)!r}; known are: {', '.join(TASKS)}")
        if self.users < 1:
            raise ValueError(f"USERS is {self.users}; one at least")
        if not 0 < self.rate < float("inf"):
            raise ValueError(f"RATE is {self.rate}; expected requests a second, more than 0")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """PROFILE, TASKS, USERS, RATE, DURATION, TRIPTYCH_URL, SEED and PICTURES over the defaults.

        Raises:
            ValueError: A value is not one of those supported.
        """
        value = environment.get
        return cls(
            profile=value("PROFILE", cls.profile),
            tasks=tuple(value("TASKS", ",".join(cls.tasks)).split(",")),
            users=int(value("USERS", cls.users)),
            rate=float(value("RATE", cls.rate)),
            duration=value("DURATION", cls.duration),
            url=value("TRIPTYCH_URL", cls.url).rstrip("/"),
            seed=int(value("SEED", cls.seed)),
            pictures=Path(value("PICTURES", cls.pictures)),
        )
