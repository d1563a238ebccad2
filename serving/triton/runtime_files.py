"""Files that one server creates outside its repository, named so that only ours are removed.

A server keeps shared-memory files in `/dev/shm`, and its backend directory, links to its models and
the socket of its management endpoints in a folder of the temporary folder; after SIGKILL they stay.
Each server therefore has its own file name prefix and a lock file that its processes inherit. The
lock is held while any of them lives, across pid namespaces too; if a lock can be taken, all files
with its prefix are stale.

All paths that Triton gets are plain: it starts a model's process by `bash -c` without quotes, and
the Python within encodes file names as ASCII, whatever the locale. So models, and whatever else
lies under another path, are links in that folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from inference.errors import SetupError

SHARED_MEMORY = Path("/dev/shm")
TEMPORARY = Path("/tmp")
"""Instead of a temporary folder whose path is not plain; Triton writes there in any case."""
FAMILY = "triptych_"
FOLDER = "run"
SOCKET = "http"
_LONGEST_SOCKET_PATH = 107
"""In bytes: Linux stores 108, the last of which is zero."""
_ENVIRONMENT = "python_env_"
_BLOCK = 512  # bytes, whatever the file system: stat(2)
_CONFIG = "config.pbtxt"
"""Empty: each load has the configuration with it, and Triton logs an error where no file is."""
_PLAIN = re.compile(r"[\w./+@%-]+", re.ASCII)


class RuntimeFiles:
    """The prefix, lock and private folder of one server; held until `remove`.

    Creating one first removes the files of dead servers.

    Args:
        shared_memory: Where Triton's python backend keeps its regions.
        temporary: Where the folder is made, or `TEMPORARY` if that path is not plain; None: the
            system's temporary folder.

    Raises:
        SetupError: `TEMPORARY` cannot be written, or the temporary folder allows no execution or
            has too long a path for a socket.
    """

    def __init__(self, shared_memory: Path = SHARED_MEMORY, temporary: Path | None = None) -> None:
        self._folders = _folders(shared_memory, temporary)
        _check_folder(self._folders[1])
        remove_stale(shared_memory, temporary)
        self.prefix = f"{FAMILY}{secrets.token_hex(8)}_"
        folder = self._folders[1] / f"{self.prefix}{FOLDER}"
        self.folder = folder
        """This user's alone."""
        self.socket = folder / SOCKET
        """Where Triton's HTTP endpoints listen."""
        if len(os.fsencode(self.socket)) > _LONGEST_SOCKET_PATH:
            raise SetupError(
                f"the path of the temporary folder {self._folders[1]} is too long for a socket "
                f"({self.socket} has more than {_LONGEST_SOCKET_PATH} bytes): set TMPDIR to a "
                "shorter one"
            )
        self.backends = folder / "backends"
        self.models = folder / "models"
        """Triton's model repository: `<model>/<version>` is a link to a version's folder."""
        self.current = folder / "current"
        """The current folder of the server, empty: models' processes import from there first."""
        self._links: dict[Path, Path] = {}
        self.lock = -1
        try:
            self.lock = _create_lock(shared_memory / f"{self.prefix}lock")
            for each in (folder, self.backends, self.models, self.current):
                each.mkdir(mode=0o700)
        except BaseException:  # a signal's, too
            self.remove()
            raise

    def plain(self, path: Path) -> Path:
        """The path if it is plain, else a link to it."""
        if is_plain(path):
            return path
        if path not in self._links:
            link = self.folder / f"link{len(self._links)}"
            link.symlink_to(path)
            self._links[path] = link
        return self._links[path]

    def link_versions(self, model: Path, versions: Collection[int]) -> None:
        """Have Triton's repository contain these versions of a model, and no others.

        Triton loads no version of a model that has a link to a missing folder.

        Args:
            model: Its folder in the model repository.
            versions: None of them removes the model.
        """
        folder = self.models / model.name
        if not versions:
            shutil.rmtree(folder, ignore_errors=True)
            return
        folder.mkdir(exist_ok=True)
        (folder / _CONFIG).touch()
        for link in folder.iterdir():
            if link.name != _CONFIG and int(link.name) not in versions:
                link.unlink()
        for version in versions:
            with contextlib.suppress(FileExistsError):
                (folder / str(version)).symlink_to((model / str(version)).resolve())

    def is_python(self, backend: str) -> bool:
        """Whether the models of a backend have processes of their own."""
        return (self.backends / backend / "model.py").exists()

    @contextlib.contextmanager
    def noting_environments(self) -> Iterator[None]:
        """Note the folders that Triton makes in the block, to remove them with the other files.

        Triton's python backend makes one when a backend is loaded, for packed environments of
        models, of which we have none. Only an empty one is removed, for it may be another Triton's.
        """
        before = _environments()
        try:
            yield
        finally:
            for path in _environments() - before:
                with contextlib.suppress(FileExistsError):
                    (self.folder / path.name).symlink_to(path)

    @property
    def shared_bytes(self) -> int:
        """Size of all shared memory."""
        status = os.statvfs(self._folders[0])
        return status.f_blocks * status.f_frsize

    def regions(self) -> dict[str, int]:
        """Bytes that each of this server's regions takes in shared memory, by its name."""
        found = {}
        for path in self._folders[0].glob(f"{self.prefix}*"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if path.name != f"{self.prefix}lock":
                    found[path.name] = path.stat().st_blocks * _BLOCK
        return found

    def free_region(self, name: str) -> None:
        """Give back the memory of a region whose process has ended, and remove its name.

        Triton still maps it: an unlinked file would keep its memory, a shorter one would crash it.
        Nothing happens where Triton has removed it meanwhile.
        """
        path = self._folders[0] / name
        with contextlib.suppress(FileNotFoundError):
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as region:
                region.madvise(mmap.MADV_REMOVE)
            path.unlink()

    def paths(self) -> list[Path]:
        """All files with this server's prefix, the lock included."""
        return _matching(self._folders, self.prefix)

    def remove(self) -> None:
        """Remove all of them, when the server and its stubs have ended; may be repeated."""
        for path in self.paths():
            _remove(path)
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def remove_stale(shared_memory: Path = SHARED_MEMORY, temporary: Path | None = None) -> None:
    """Remove the files of servers that have ended; the arguments are those of `RuntimeFiles`."""
    folders = _folders(shared_memory, temporary)
    for lock in shared_memory.glob(f"{FAMILY}*_lock"):
        # suppressed: it is another user's, has been removed, or is held
        with contextlib.suppress(OSError), lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in _matching(folders, lock.name.removesuffix("lock")):
                _remove(path)


def _folders(shared_memory: Path, temporary: Path | None) -> tuple[Path, Path]:
    temporary = temporary or Path(tempfile.gettempdir())
    return shared_memory, temporary if is_plain(temporary) else TEMPORARY


def _matching(folders: tuple[Path, Path], prefix: str) -> list[Path]:
    return sorted(path for folder in folders for path in folder.glob(f"{prefix}*"))


def is_plain(path: Path) -> bool:
    """Whether a shell and a Python without a locale take the path as it is."""
    return _PLAIN.fullmatch(os.fspath(path)) is not None


def _check_folder(folder: Path) -> None:
    """Refuse what Triton would crash over.

    Raises:
        SetupError: see `RuntimeFiles`.
    """
    if not os.access(TEMPORARY, os.W_OK | os.X_OK):
        raise SetupError(
            f"{TEMPORARY} cannot be written, and Triton makes a folder there whatever TMPDIR says: "
            f"mount a writable one, as by --tmpfs {TEMPORARY}:exec"
        )
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise SetupError(
            f"{folder} is mounted with noexec, and the models' processes are started from there: "
            "set TMPDIR to a folder that allows execution, or mount it with exec"
        )


def _environments() -> set[Path]:
    """This user's folders of Triton's python backend."""
    found = set()
    for path in TEMPORARY.glob(f"{_ENVIRONMENT}*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if path.lstat().st_uid == os.getuid():
                found.add(path)
    return found


def _create_lock(path: Path) -> int:
    """The descriptor of a new file, locked; another's `remove_stale` may come before the lock."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for link in path.glob(f"{_ENVIRONMENT}*"):
            with contextlib.suppress(OSError):
                link.readlink().rmdir()
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
