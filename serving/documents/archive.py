"""Documents that are ZIP archives, within limits.

Files that stay are copied as they are stored: unpacking and packing them again would cost whatever
the client chose to pack them with.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from inference.errors import InvalidRequest, PayloadTooLarge

T = TypeVar("T")

MAX_SEGMENTS = 10_000
"""Texts of one document."""
MAX_UNPACKED_BYTES = 100_000_000
"""All files of an archive together."""
MAX_XML_BYTES = 10_000_000
"""The files of an archive that are parsed; a parsed one takes several times its size."""
MAX_ENTRIES = 5_000
"""Files of an archive."""
MAX_PIECES = 200_000
"""Tags and texts of a page, paragraphs of a part, lines of a text: each takes memory when read."""
MAX_CHILDREN = 5_000
"""Elements of a paragraph."""


def take_at_most(pieces: Iterable[T], most: int = MAX_PIECES) -> Iterator[T]:
    """The pieces, as long as there are not too many.

    Raises:
        PayloadTooLarge: there are.
    """
    for number, piece in enumerate(pieces):
        if number == most:
            raise PayloadTooLarge(
                f"the text has more than {most} tags, paragraphs or lines: divide it"
            )
        yield piece


def check_segments(count: int) -> None:
    """Raises PayloadTooLarge where there are more segments than one document may have."""
    if count > MAX_SEGMENTS:
        raise PayloadTooLarge(f"the text has more than {MAX_SEGMENTS} paragraphs: divide it")


_ENCRYPTED = 0x1
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""Office programs write no others, and these are quick to unpack."""
_HEADER = struct.Struct("<4s22x2H")
"""In front of a file: signature, lengths of its name and of further fields."""


class Archive:
    """An archive in memory.

    Raises:
        InvalidRequest: not an archive, a damaged or an encrypted one.
        PayloadTooLarge: it would unpack to more than the limit, or has too many files.
    """

    def __init__(self, content: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(content))
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error):
            raise InvalidRequest("file is damaged, or of another kind than its name says") from None
        self._bytes = content
        entries = self._zip.infolist()
        if len(entries) > MAX_ENTRIES:
            raise PayloadTooLarge(f"file contains more than {MAX_ENTRIES} files")
        if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
            raise PayloadTooLarge(f"file unpacks to more than {MAX_UNPACKED_BYTES} bytes")
        if any(entry.flag_bits & _ENCRYPTED for entry in entries):
            raise InvalidRequest("file is encrypted: remove its password")
        if any(entry.compress_type not in _METHODS for entry in entries):
            raise InvalidRequest(
                "file is packed in another way than office programs do: pack it again with deflate"
            )
        if sum(entry.compress_size for entry in entries) > len(content):
            raise InvalidRequest("file is damaged: its parts are larger than the file")
        self.names = [entry.filename for entry in entries]
        if len(set(self.names)) < len(self.names):
            raise InvalidRequest("file is damaged: it contains two files of one name")
        self._parsed_bytes = 0

    def read(self, name: str) -> bytes:
        """A file that is going to be parsed.

        Raises:
            InvalidRequest: there is none, or it is damaged.
            PayloadTooLarge: it and those read before are larger than the limit.
        """
        if name not in self.names:
            raise InvalidRequest(f"file is damaged: it has no {name}")
        self._parsed_bytes += self._zip.getinfo(name).file_size
        if self._parsed_bytes > MAX_XML_BYTES:
            raise PayloadTooLarge(f"file has more than {MAX_XML_BYTES} bytes of text and markup")
        return self._content(self._zip.getinfo(name))

    def write(self, replaced: Mapping[str, bytes]) -> bytes:
        """The archive with some files replaced; order and compression stay.

        Raises:
            InvalidRequest: a file is damaged.
        """
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w") as archive:
            for entry in self._zip.infolist():
                content = replaced.get(entry.filename)
                kept = zipfile.ZipInfo(entry.filename, entry.date_time)
                kept.compress_type, kept.external_attr = entry.compress_type, entry.external_attr
                if content is None:
                    kept.CRC, kept.file_size = entry.CRC, entry.file_size
                    _add_packed(archive, kept, self._pack(entry))
                else:
                    archive.writestr(kept, content)
        return target.getvalue()

    def _pack(self, entry: zipfile.ZipInfo) -> bytes:
        """A file as it is stored."""
        begin = entry.header_offset
        header = self._bytes[begin : begin + _HEADER.size]
        if len(header) == _HEADER.size and header.startswith(b"PK\x03\x04"):
            _, name, further = _HEADER.unpack(header)
            start = begin + _HEADER.size + name + further
            content = self._bytes[start : start + entry.compress_size]
            if len(content) == entry.compress_size:
                return content
        raise InvalidRequest("file is damaged: a part of it is not where its list says")

    def _content(self, entry: zipfile.ZipInfo) -> bytes:
        try:
            with self._zip.open(entry) as file:
                content = file.read(entry.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError):
            raise InvalidRequest("file is damaged: a part of it cannot be unpacked") from None
        if len(content) != entry.file_size:
            raise InvalidRequest("file is damaged: a part of it has another size than it says")
        return content


def _add_packed(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, content: bytes) -> None:
    """Add a file that is packed already.

    `zipfile` has no method for that; this is what its `writestr` does, without packing.
    """
    assert archive.fp is not None
    entry.header_offset, entry.compress_size = archive.fp.tell(), len(content)
    archive.fp.write(entry.FileHeader() + content)
    archive.filelist.append(entry)
    archive.NameToInfo[entry.filename] = entry
    archive.start_dir, archive._didModify = archive.fp.tell(), True  # type: ignore[attr-defined]
