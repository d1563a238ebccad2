"""The versions in a model repository, read by the supervisor, the gateway and the exporter.

Reading never fails as a whole: what cannot be read or is incomplete is skipped with one warning,
which is logged again only when its reason changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from inference.bundle.manifest import MANIFEST, Bundle
from inference.bundle.reader import open_bundle
from inference.errors import BundleError, SetupError

log = logging.getLogger(__name__)


class Repository:
    """A model repository that may change at any time. Not thread-safe.

    Args:
        root: Folder of the repository.

    Raises:
        SetupError: there is no such folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._warned: dict[str, str] = {}
        with contextlib.suppress(PermissionError):
            if not root.is_dir():
                raise SetupError(
                    f"{root} is not a folder: give --repository, or run `triptych export`"
                )

    @property
    def problem(self) -> str | None:
        """The first reason for which something was skipped; None: nothing was."""
        return next((f"{what}: {reason}" for what, reason in self._warned.items()), None)

    def names(self) -> list[str]:
        """Names of the bundles, sorted: folders that hold a manifest in at least one version."""
        folders = self._folders()
        numbers = {name: self.numbers(name) for name in folders}
        names = [
            name for name in folders if any(self._has_manifest(name, n) for n in numbers[name])
        ]
        for name in set(folders) - set(names):
            if numbers[name] and not any(name.startswith(f"{owner}-") for owner in names):
                self._warn(name, "no complete version")  # and not a further part of a bundle
        return names

    def numbers(self, name: str) -> list[int]:
        """Version numbers of a bundle, newest first, complete or not."""
        try:
            entries = [entry.name for entry in (self.root / name).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._warn(name, _unreadable(self.root / name, error))
            return []
        return sorted((int(e) for e in entries if e.isdecimal() and int(e) > 0), reverse=True)

    def open(self, name: str, version: int) -> Bundle:
        """One version of a bundle.

        Raises:
            BundleError: it is incomplete or cannot be read.
        """
        return open_bundle(self.root / name / str(version))

    def complete(self, name: str) -> list[Bundle]:
        """The complete versions of a bundle, newest first; others are skipped with a warning."""
        found = []
        for number in self.numbers(name):
            try:
                found.append(self.open(name, number))
            except BundleError as error:
                self._warn(f"{name} version {number}", error.message)
            else:
                self._warned.pop(f"{name} version {number}", None)
        return found

    def _folders(self) -> list[str]:
        try:
            folders = sorted(path.name for path in self.root.iterdir() if _is_folder(path))
        except OSError as error:
            self._warn("all bundles", _unreadable(self.root, error))
            return []
        self._warned.pop("all bundles", None)
        return folders

    def _has_manifest(self, name: str, number: int) -> bool:
        try:
            return (self.root / name / str(number) / MANIFEST).exists()
        except OSError:
            return True  # unreadable: `complete` logs the reason

    def _warn(self, what: str, reason: str) -> None:
        if self._warned.get(what) != reason:
            self._warned[what] = reason
            log.warning("skipped %s: %s", what, reason)


class VersionLock:
    """Shared locks on the versions that a supervisor serves, so that no export removes them.

    `flock` needs no write permission, works across containers that mount the same file system, and
    ends with the process.
    """

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}

    def hold(self, folders: set[Path]) -> None:
        """Lock these version folders, and release all others."""
        for folder in set(self._held) - folders:
            os.close(self._held.pop(folder))
        for folder in folders - set(self._held):
            with contextlib.suppress(OSError):  # removed meanwhile: nothing is left to protect
                descriptor = os.open(folder / MANIFEST, os.O_RDONLY)
                self._held[folder] = descriptor
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


@contextlib.contextmanager
def removable(folder: Path) -> Iterator[bool]:
    """Whether no supervisor serves this version folder; none starts to while the block runs."""
    try:
        descriptor = os.open(folder / MANIFEST, os.O_RDONLY)
    except OSError:
        yield True  # incomplete: no reader loads it
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def _unreadable(folder: Path, error: OSError) -> str:
    """Why a folder cannot be read; of missing rights, as which user and what gives them."""
    if not isinstance(error, PermissionError):
        return f"cannot read {folder}: {error.strerror}; it is tried again every few seconds"
    reason = f"user {_name(os.geteuid())} cannot read {folder}: {error.strerror}"
    with contextlib.suppress(OSError):
        found = folder.stat()
        reason += f" (mode {found.st_mode & 0o7777:04o} of {_name(found.st_uid)})"
    return f"{reason}; permit it, as by chmod -R a+rX {folder}, and it is read within seconds"


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
