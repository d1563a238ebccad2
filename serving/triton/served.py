"""The record of which version of each bundle is served: one file, written by the supervisor alone.

It makes a rollback survive a restart, and keeps a version that does not load from being tried at
every start.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
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


class _Record(BaseModel):
    served: dict[str, Choice] = {}


class ServedVersions:
    """The recorded choices, by bundle.

    A record that cannot be written (a read-only repository) is kept in memory, with one warning.

    Args:
        path: Of the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._choices = _read(path)
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
        record = _Record(served=dict(sorted(self._choices.items())))
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


def _read(path: Path) -> dict[str, Choice]:
    try:
        return dict(_Record.model_validate_json(path.read_bytes()).served)
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning("ignored %s: %s", path, error.strerror)
    except ValidationError as error:
        log.warning("ignored %s: %s", path, error.errors(include_url=False)[0]["msg"])
    return {}
