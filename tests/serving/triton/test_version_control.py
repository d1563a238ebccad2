"""Which version a command chooses, over a server that notes what it loads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inference.errors import BundleError
from serving.triton.version_control import Command, VersionControl

NAME = "speaker"


class Server:
    """A server of one bundle, with versions of which some are not complete."""

    def __init__(self, served: int, versions: list[int], incomplete: tuple[int, ...] = ()) -> None:
        self.served = {NAME: served}
        self.settings = SimpleNamespace(repository="repository", watch=False)
        self.repository = self
        self._versions = versions
        self._incomplete = incomplete

    def names(self) -> list[str]:
        return [NAME]

    def numbers(self, name: str) -> list[int]:
        return self._versions

    def complete(self, name: str) -> list[Any]:
        found = [number for number in self._versions if number not in self._incomplete]
        return [SimpleNamespace(version=number) for number in found]

    def open(self, name: str, version: int) -> None:
        if version in self._incomplete:
            raise BundleError("it has no bundle.json")

    def load(self, name: str, version: int | None) -> None:
        assert version is not None
        self.served[name] = version


@pytest.mark.parametrize(
    ("action", "served", "incomplete", "wanted"),
    [
        ("rollback", 4, (), 3),
        ("rollback", 4, (3,), 2),
        ("rollback", 2, (), 1),
        ("reload", 1, (), 4),
        ("reload", 1, (4,), 3),
        ("reload", 3, (4,), 3),
    ],
)
def test_command_takes_the_nearest_complete_version(
    action: Any, served: int, incomplete: tuple[int, ...], wanted: int
) -> None:
    server: Any = Server(served, [4, 3, 2, 1], incomplete)
    [outcome] = VersionControl(server).run(Command(action=action))
    assert (outcome.before, outcome.after, server.served) == (served, wanted, {NAME: wanted})


def test_nothing_is_older_than_the_oldest_version() -> None:
    server: Any = Server(1, [2, 1])
    [outcome] = VersionControl(server).run(Command(action="rollback", name=NAME))
    assert (outcome.after, server.served) == (1, {NAME: 1})
    assert outcome.problem == "no version older than 1, nothing to go back to"
