"""Files and folders by path or URI: on this machine, or in object storage."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from triptych.errors import InvalidArgument

UNFINISHED = "_unfinished"
"""Folder of an output's files that are being written; what lies there belongs to no result."""


@dataclass(frozen=True)
class Place:
    """A file or folder.

    Attributes:
        filesystem: Of pyarrow, or one of fsspec behind pyarrow's interface.
        path: Within it.
    """

    filesystem: Any
    path: str

    @classmethod
    def of(cls, uri: str) -> Place:
        """The place of a path, or of a URI: `s3://`, `gs://`, or any that fsspec opens.

        Raises:
            InvalidArgument: no file system is known for it.
        """
        if "://" not in uri:
            return cls(fs.LocalFileSystem(), str(Path(uri).absolute()))
        try:
            return cls(*fs.FileSystem.from_uri(uri))
        except pa.ArrowInvalid:
            pass
        import fsspec

        try:
            opened, path = fsspec.core.url_to_fs(uri)
        except (ImportError, ValueError) as error:
            raise InvalidArgument(f"cannot open {uri}: {error}") from None
        return cls(fs.PyFileSystem(fs.FSSpecHandler(opened)), path)

    def __truediv__(self, name: str) -> Place:
        """A place below this folder."""
        return Place(self.filesystem, f"{self.path.rstrip('/')}/{name}")

    @property
    def parent(self) -> Place:
        """The folder that it is in."""
        return Place(self.filesystem, str(PurePosixPath(self.path).parent))

    @property
    def info(self) -> fs.FileInfo:
        """Its type, size and time of modification."""
        return self.filesystem.get_file_info(self.path)

    @property
    def exists(self) -> bool:
        """Whether there is a file or folder."""
        return bool(self.info.type != fs.FileType.NotFound)

    def files(self) -> list[fs.FileInfo]:
        """The files below a folder in the order of their paths; hidden ones are left out."""
        below = self.filesystem.get_file_info(fs.FileSelector(self.path, recursive=True))
        start = len(self.path.rstrip("/")) + 1
        return sorted(
            (
                one
                for one in below
                if one.type == fs.FileType.File
                and not any(part[:1] in "._" for part in one.path[start:].split("/"))
            ),
            key=lambda one: one.path,
        )

    def read(self) -> bytes:
        """A file's content.

        Raises:
            OSError: it cannot be read.
        """
        with self.filesystem.open_input_stream(self.path) as file:
            content: bytes = file.read()
        return content

    def delete(self) -> None:
        """Delete a file, or a folder with all that is in it; none is no error."""
        kind = self.info.type
        if kind == fs.FileType.Directory:
            self.filesystem.delete_dir(self.path)
        elif kind == fs.FileType.File:
            self.filesystem.delete_file(self.path)

    @contextmanager
    def replacing(self, name: str) -> Iterator[Any]:
        """A file of this folder that appears when the block ends, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        self.filesystem.create_dir((self / UNFINISHED).path)
        temporary = self / UNFINISHED / f"{name}.{secrets.token_hex(8)}"
        with self.filesystem.open_output_stream(temporary.path) as file:
            yield file
        if isinstance(self.filesystem, fs.LocalFileSystem):
            with Path(temporary.path).open("rb") as written:
                os.fsync(written.fileno())
        self.filesystem.move(temporary.path, (self / name).path)
