"""The record of what is served: one file, written by the supervisor alone, read by gateways.

It makes a rollback survive a restart, keeps a version that does not load from being tried at every
start, and tells clients of a gateway why a model is not served (D124).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inference.bundle.manifest import Bundle

log = logging.getLogger(__name__)

FILE = "served.json"


class Choice(BaseModel):
    """The version that is served, and the newest that was published when it was chosen."""

    model_config = ConfigDict(frozen=True)

    version: int = Field(ge=1)
    newest: int = Field(ge=1)


class Refusal(BaseModel):
    """A version that does not load, and why."""

    model_config = ConfigDict(frozen=True)

    version: int = Field(ge=1)
    reason: str
    instead: int | None = None
    """The version that answers in its place."""


class Record(BaseModel):
    """The content of the file."""

    served: dict[str, Choice] = {}
    refused: dict[str, Refusal] = {}
    self_check: bool = True
    """Whether models check themselves when they are loaded."""


class ServedVersions:
    """The recorded choices, by bundle.

    A record that cannot be written (a read-only repository) is kept in memory, with one warning.

    Args:
        path: Of the file; it need not exist.
        self_check: Whether models check themselves when they are loaded.
    """

    def __init__(self, path: Path, *, self_check: bool = True) -> None:
        self._path, self._self_check = path, self_check
        record = read_record(path)
        self._choices, self._refused = dict(record.served), dict(record.refused)
        self._is_stale = record.self_check != self_check
        self.is_persistent = True
        self.is_ours = True
        """Whether this process writes the file; another supervisor of the repository may."""

    def get(self, name: str) -> Choice | None:
        """The choice for a bundle, if one has been recorded."""
        return self._choices.get(name)

    def set(self, name: str, choice: Choice | None) -> None:
        """Record a choice; None removes it."""
        if self._choices.get(name) == choice:
            return
        if choice is None:
            del self._choices[name]
        else:
            self._choices[name] = choice
        self._write()

    def set_refused(self, refused: Mapping[str, Refusal]) -> None:
        """Record which bundles have a version that does not load."""
        if self._refused != refused or self._is_stale:
            self._refused, self._is_stale = dict(refused), False
            self._write()

    def take_over(self) -> None:
        """Write the file from now on, with the choices made so far."""
        self.is_ours = True
        self._write()

    def in_order(self, name: str, complete: Sequence[Bundle]) -> list[Bundle]:
        """The versions to try at a start, best first.

        The recorded version goes first, unless a newer one has been published since; if it does not
        load, the others follow, newest first.

        Args:
            name: Of the bundle.
            complete: Its complete versions, newest first.
        """
        choice = self._choices.get(name)
        if choice is None or not complete or complete[0].version > choice.newest:
            return list(complete)
        return sorted(complete, key=lambda bundle: bundle.version != choice.version)

    def _write(self) -> None:
        if not self.is_ours:
            return
        record = Record(
            served=dict(sorted(self._choices.items())),
            refused=dict(sorted(self._refused.items())),
            self_check=self._self_check,
        )
        temporary = self._path.with_name(f".{self._path.name}.new")
        try:
            temporary.write_text(json.dumps(record.model_dump(), indent=2) + "\n", encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            if self.is_persistent:
                log.warning(
                    "cannot write %s (%s): a rollback will not survive a restart of this process; "
                    "give --state a writable file",
                    self._path,
                    error.strerror,
                )
            self.is_persistent = False
        else:
            self.is_persistent = True


def read_record(path: Path) -> Record:
    """The record in a file; an empty one where it is missing or cannot be read."""
    try:
        return Record.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Record()
    except OSError as error:
        log.warning("ignored %s: %s", path, error.strerror)
    except ValidationError as error:
        log.warning("ignored %s: %s", path, error.errors(include_url=False)[0]["msg"])
    return Record()
